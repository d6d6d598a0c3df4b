"""Where a draft model goes, what it takes, and when it is too much."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from backends.controller.degraded_plan import counts_text, degraded_text, plan_without
from backends.engine.ask import parse_flags
from backends.errors import EngineError, PlanError
from backends.planning.checking import remarks
from backends.planning.memory_fit import require_room
from backends.planning.proposal import plan_devices
from backends.speculation.memory import best_place, whole_on, with_draft
from backends.speculation.methods import (
    check_draft,
    method_for,
    methods_known,
    methods_of,
    speculation_argv,
)
from backends.state import (
    NO_DRAFT,
    DeviceMemory,
    MemorySource,
    Peer,
    Plan,
    ServerSettings,
    Speculation,
)
from tests.unit.planning.machines import (
    ADA,
    GIB,
    MIB,
    MODEL,
    PLAIN,
    WITH_GPU,
    device,
    here,
    model_of,
    plan_for,
)

DRAFT = replace(model_of(10 * MIB), path="/d.gguf")
SERVER = ServerSettings(draft="/d.gguf")
MEMORY = DeviceMemory(device="local/CPU", model_bytes=30 * MIB, kv_bytes=2 * MIB)
METHOD = Speculation(
    type="draft-simple", model="/d.gguf", device="local/CPU", memory=(MEMORY,)
)


def drafted(**changes: object) -> Plan:
    plan = replace(plan_for(PLAIN, ADA, peers=("ada",)), server=SERVER)
    return replace(plan, **{"speculation": METHOD, **changes})


def place(*machines: Peer) -> str:
    plan = plan_for(*machines, peers=("ada",))
    found = {one.name: one for one in machines}
    devices = plan_devices(plan.head, plan.workers, found)
    return best_place(DRAFT, plan, MODEL, devices)


def test_it_goes_to_the_heads_gpu_where_that_has_room() -> None:
    assert place(WITH_GPU, ADA) == "local/CUDA0"
    assert place(here("CPU", device("local", "CUDA0", 100 * MIB)), ADA) == "local/CPU"


def test_a_workers_gpu_is_none_of_the_heads() -> None:
    assert place(PLAIN, replace(WITH_GPU, name="ada")) == "local/CPU"


def test_the_whole_of_it_is_on_one_device() -> None:
    plan = drafted(ctx_size=512, server=replace(SERVER, slots=2, cache_type_k="q8_0"))
    alone = whole_on(DRAFT, "local/CUDA0", plan)
    assert [share.layers for share in alone.split.shares] == [0, 13]
    assert (alone.ctx_size, alone.server) == (512, ServerSettings(slots=2))
    on_cpu = whole_on(DRAFT, "local/CPU", plan)
    assert [share.layers for share in on_cpu.split.shares] == [13]


def test_its_memory_is_added_to_that_of_the_device() -> None:
    said = DeviceMemory(device="local/CPU", model_bytes=5, source=MemorySource.MEASURED)
    both = with_draft(said, METHOD)
    assert (both.model_bytes, both.kv_bytes) == (30 * MIB + 5, 2 * MIB)
    assert both.source is MemorySource.PREDICTED
    other = replace(said, device="ada/CPU")
    assert with_draft(other, METHOD) == other
    assert with_draft(said, None) == said


def test_too_little_room_on_the_head_is_said_before_anything_starts() -> None:
    small = here(device("local", "CPU", 20 * MIB))
    plan = drafted()
    devices = plan_devices("local", plan.workers, {"local": small, "ada": ADA})
    with pytest.raises(PlanError, match=r"local/CPU is too small for the draft model"):
        require_room(plan, MODEL, devices)
    require_room(replace(plan, speculation=None), MODEL, devices)
    assert plan.asked is not None
    require_room(replace(plan, asked=replace(plan.asked, force=True)), MODEL, devices)
    big = {"local": here(device("local", "CPU", GIB)), "ada": ADA}
    require_room(plan, MODEL, plan_devices("local", plan.workers, big))


def test_what_a_draft_costs_is_said_before() -> None:
    def told(plan: Plan) -> list[str]:
        said = remarks(plan, MODEL, (), {"local": PLAIN, "ada": ADA})
        return [sentence for sentence in said if "draft" in sentence]

    assert "is not gone on with" in told(drafted())[0]
    assert told(replace(drafted(), speculation=None)) == []


def test_drafting_across_the_network_is_told_before() -> None:
    server = replace(SERVER, draft="mtp")
    far = Speculation(type="draft-mtp", device="ada/CPU", n_layer=1)
    plan = drafted(server=server, speculation=far)
    check_draft(plan)

    def told(plan: Plan) -> str:
        return " ".join(remarks(plan, MODEL, (), {"local": PLAIN, "ada": ADA}))

    assert "each drafted token takes round trips" in told(plan)
    near = replace(plan, speculation=replace(far, device="local/CUDA0"))
    assert "each drafted token takes" not in told(near)
    assert "each drafted token takes" not in told(drafted())


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, ""),
        ({"speculation": None}, "does not say how its draft /d.gguf runs"),
        ({"speculation": replace(METHOD, model="/e.gguf")}, "does not say how"),
        ({"speculation": replace(METHOD, device="ada/CPU")}, "runs on local"),
        ({"extra_args": ("-md", "/e.gguf")}, "-md cannot be given beside a draft"),
        ({"extra_args": ("--spec-type", "none")}, "--spec-type cannot be given"),
        ({"extra_args": ("-devd", "RPC0")}, "-devd cannot be given"),
        ({"extra_args": ("--temp", "1")}, ""),
    ],
)
def test_a_plan_says_how_its_draft_runs(changes: dict[str, object], what: str) -> None:
    plan = drafted(**changes)
    if not what:
        check_draft(plan)
        return
    with pytest.raises(PlanError, match=what):
        check_draft(plan)


def test_a_stand_ins_own_layers_draft_on_its_last_device() -> None:
    far = Speculation(type="draft-mtp", device="ada/CPU", n_layer=1)
    plan = drafted(server=replace(SERVER, draft="mtp"), speculation=far)
    model = replace(MODEL, n_layer_nextn=1)
    rest = plan_without(plan, ["ada"], model, {"local": PLAIN, "ada": ADA})
    assert rest.speculation is not None
    assert rest.speculation.device == "local/CPU"
    check_draft(rest)


def test_a_stand_in_has_no_draft_that_does_not_fit() -> None:
    plan = drafted(split=plan_for(PLAIN, ADA, peers=("ada",)).split)
    tight = here(device("local", "CPU", 20 * MIB))
    roomy = {"local": PLAIN, "ada": ADA}
    assert plan_without(plan, ["ada"], MODEL, roomy).speculation == METHOD
    rest = plan_without(plan, ["ada"], MODEL, {"local": tight, "ada": ADA})
    assert (rest.speculation, rest.server.draft) == (None, NO_DRAFT)
    assert rest.ctx_size == plan.ctx_size
    check_draft(rest)
    assert degraded_text(rest, plan).endswith(", without its draft")


def test_auto_keeps_the_methods_that_fit_a_stand_in() -> None:
    table = Speculation(type="ngram-map-k")
    plan = drafted(
        split=plan_for(PLAIN, ADA, peers=("ada",)).split,
        server=replace(SERVER, draft="auto"),
        speculation=replace(METHOD, instead=(table,)),
    )
    tight = here(device("local", "CPU", 20 * MIB))
    rest = plan_without(plan, ["ada"], MODEL, {"local": tight, "ada": ADA})
    assert (rest.speculation, rest.server.draft) == (table, "auto")
    assert methods_of(rest) == (NO_DRAFT, "ngram")
    assert degraded_text(rest, plan).endswith(", without the drafts of d")
    roomy = plan_without(plan, ["ada"], MODEL, {"local": PLAIN, "ada": ADA})
    assert roomy.speculation == plan.speculation
    assert degraded_text(roomy, plan) == counts_text(roomy)
    alone = plan_without(
        replace(plan, speculation=METHOD), ["ada"], MODEL, {"local": tight, "ada": ADA}
    )
    assert (alone.speculation, alone.server.draft) == (None, "auto")


# --- Speculation methods, in the words of llama-server's own help ---

HELP = parse_flags(
    (Path(__file__).parent / "data" / "help_speculative.txt").read_text()
)
BEFORE = frozenset({"-md", "-devd", "-ngld", "--draft-max", "--device"})
"""Of a llama.cpp that had draft models alone."""
ON_CPU = Speculation(type="draft-simple", model="/d.gguf", device="a/CPU", n_layer=4)
ON_GPU = Speculation(type="draft-simple", model="/d.gguf", device="a/CUDA1", n_layer=4)


def test_the_methods_are_read_from_the_help() -> None:
    assert "--spec-type draft-simple" in HELP
    assert "--spec-type ngram-cache" in HELP
    assert method_for(HELP, "/d.gguf") == "draft-simple"
    assert method_for(HELP, "ngram") == "ngram-map-k"


def test_the_next_best_table_where_the_best_is_not_known() -> None:
    flags = {"--spec-type", "--spec-type ngram-simple"}
    assert method_for(flags, "ngram") == "ngram-simple"


@pytest.mark.parametrize(
    ("flags", "draft", "what"),
    [
        (BEFORE, "ngram", "cannot draft without a draft model"),
        (BEFORE - {"-devd"}, "/d.gguf", "cannot keep a draft model on the head"),
        (HELP - {"--spec-type draft-simple"}, "/d.gguf", "cannot keep a draft model"),
        (BEFORE | {"--spec-type"}, "/d.gguf", "cannot keep a draft model"),
    ],
)
def test_an_unable_engine_is_told(flags: frozenset[str], draft: str, what: str) -> None:
    with pytest.raises(EngineError, match=what):
        method_for(flags, draft)


def test_all_of_a_draft_model_stays_on_the_head() -> None:
    argv = speculation_argv(HELP, ON_CPU, "/there/d.gguf", 8)
    assert argv == (
        *("-md", "/there/d.gguf", "-devd", "none", "-ngld", "0"),
        *("--spec-type", "draft-simple", "--spec-draft-n-max", "8"),
    )
    for name in ("CUDA1", "BLAS"):
        elsewhere = replace(ON_GPU, device=f"a/{name}")
        argv = speculation_argv(HELP, elsewhere, "/d", 8)
        assert argv[2:6] == ("-devd", name, "-ngld", "5")


@pytest.mark.parametrize(("mib", "told"), [(9, ("-td", "1")), (17, ()), (0, ())])
def test_a_tiny_draft_model_has_one_thread(mib: int, told: tuple[str, ...]) -> None:
    taken = DeviceMemory(device="a/CPU", model_bytes=mib << 20)
    drafted = replace(ON_CPU, memory=(taken,))
    assert speculation_argv(HELP, drafted, "/d.gguf", 8)[10:] == told
    alone = speculation_argv(HELP, drafted, "/d.gguf", 8, is_alone=True)
    assert alone[10:] == (*told, *(("-t", "1") if told else ()))
    assert speculation_argv(HELP - {"-td"}, drafted, "/d.gguf", 8)[10:] == ()
    assert "-td" not in speculation_argv(
        HELP, replace(drafted, device="a/GPU"), "/d", 8
    )


def test_an_earlier_engine_is_told_in_its_own_words() -> None:
    assert speculation_argv(BEFORE, ON_CPU, "/d.gguf", 8)[-2:] == ("--draft-max", "8")
    assert "--spec-type" not in speculation_argv(BEFORE, ON_CPU, "/d.gguf", 8)


def test_ngrams_are_as_long_as_the_draft() -> None:
    argv = speculation_argv(HELP, Speculation(type="ngram-map-k"), "", 12)
    assert argv == (
        *("--spec-type", "ngram-map-k", "--spec-ngram-map-k-size-n", "4"),
        *("--spec-ngram-map-k-size-m", "12"),
    )


def test_layers_of_the_model_itself_stay_where_they_are() -> None:
    method = method_for(HELP, "mtp")
    assert method == "draft-mtp"
    drafted = Speculation(type=method, device="w/CPU", n_layer=1)
    assert speculation_argv(HELP, drafted, "", 3) == (
        *("--spec-type", "draft-mtp", "--spec-draft-n-max", "3"),
    )
    with pytest.raises(EngineError, match="does not know the method draft-mtp"):
        method_for(HELP - {"--spec-type draft-mtp"}, "mtp")


def test_a_head_has_the_method_that_it_is_made_for() -> None:
    flags = {"--spec-type", "--spec-type draft-eagle3", "-md", "-devd", "-ngld"}
    assert methods_known(flags) == {"draft-eagle3"}
    assert method_for(flags, "/m/head.gguf", "draft-eagle3") == "draft-eagle3"
    drafted = Speculation(
        type="draft-eagle3", model="/m/head.gguf", device="local/CPU", n_layer=1
    )
    argv = speculation_argv(flags, drafted, "/m/head.gguf", 4)
    assert argv[-2:] == ("--spec-type", "draft-eagle3")
    with pytest.raises(EngineError, match="does not know the method draft-dflash"):
        method_for(flags, "/m/head.gguf", "draft-dflash")
