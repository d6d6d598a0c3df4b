"""Best plans asked for, and plans for machines that are not there."""

from __future__ import annotations

import dataclasses

import pytest
from msgspec.structs import replace

from backends.controller.best_plans import (
    Option,
    best_plan,
    best_plans,
    heads_of,
    require_kept,
    require_open,
    told_of,
)
from backends.controller.preparation import imagined_options
from backends.errors import PlanError
from backends.planning.cluster_file import EXAMPLE, read_cluster
from backends.split import objectives, tensor_parallel
from backends.split.cost import forecast, workload
from backends.split.flags import compile_split
from backends.split.layout import counts, make_split
from backends.split.moved_experts import NAME as MOVED_NAME
from backends.split.objectives import Best, best_split
from backends.split.problem import PartsPlan, SplitProblem
from backends.split.tensor_parallel import NAME
from backends.state import (
    Ask,
    ClusterSpeeds,
    DraftTrial,
    Forecast,
    Layer,
    ModelInfo,
    Objective,
    ServerSettings,
    SparseModel,
    Speculation,
    SpeedSource,
    Split,
)
from tests.unit.split.test_moved_experts import large_at_home, with_experts
from tests.unit.split.test_objectives import site
from tui.model.best_choices import candidate

GIVEN = read_cluster(EXAMPLE)
MODEL = ModelInfo(
    path="/m.gguf",
    arch="llama",
    n_layer=48,
    n_embd=4096,
    n_vocab=100_000,
    n_ctx_train=8192,
    layers=tuple(Layer(index=i, bytes=1_100_000_000) for i in range(48)),
    output_bytes=600_000_000,
    embedding_bytes=600_000_000,
)
SPREAD = make_split(
    48, ["studio/CPU", "mini/MTL0", "mini2/MTL0", "studio/MTL0"], [0, 6, 6, 37]
)
ASK = Ask(model="/m.gguf", objective=Objective.DECODE)


def options(ask: Ask = ASK, model: ModelInfo = MODEL) -> list[Option]:
    return imagined_options(GIVEN, ask, model)


async def test_a_model_for_two_machines_uses_two() -> None:
    """73 GB are more than the studio has; what is left goes over the link."""
    large = replace(MODEL, layers=MODEL.layers[:1] * 66, n_layer=66)
    plan, *_ = await best_plan(options(model=large), Objective.DECODE)
    held = {s.device: s.layers for s in plan.split.shares if s.layers}
    assert sum(held.values()) == 67
    assert held["studio/MTL0"] > 45
    assert held["mini/MTL0"] > 3
    assert plan.head == "studio"
    compile_split(plan, {})


async def test_heads_are_compared_where_none_is_named() -> None:
    """The one with the model's layers beside it needs no network."""
    anyone = replace(GIVEN, head="")
    small = replace(MODEL, layers=MODEL.layers[:8], n_layer=8)
    found = imagined_options(anyone, ASK, small)
    assert {one.plan.head for one in found} == {"studio", "mini", "mini2"}
    best = await best_plan(found, Objective.DECODE)
    assert best.plan.head == "studio"
    assert {one.name for one in best.heads} == {
        "studio as the head",
        "mini as the head",
        "mini2 as the head",
    }
    chosen = next(one for one in found if one.plan.head == "studio")
    chosen_plan = replace_plan(chosen, best.plan)
    told = await told_of(chosen_plan, Objective.DECODE, best, explain=True)
    rows = {one.name: one.forecast for one in told.alternatives}
    assert "studio as the head" not in rows
    other = rows["mini as the head"]
    assert other is not None
    assert 0 < other.tok_per_s <= told.forecast.tok_per_s
    others = [one for one in found if one is not chosen]
    assert (await heads_of(others, None))[-1].name == "mini2 as the head"


@pytest.mark.parametrize("objective", [Objective.NETWORK, Objective.CONTEXT])
async def test_of_heads_that_reach_the_aim_alike_the_fastest_is_taken(
    objective: Objective,
) -> None:
    """A small model needs no network anywhere, and has its whole context."""
    slow_first = replace(GIVEN, head="", machines=GIVEN.machines[::-1])
    small = replace(MODEL, layers=MODEL.layers[:8], n_layer=8)
    plan, *_ = await best_plan(imagined_options(slow_first, ASK, small), objective)
    assert plan.head == "studio"


async def test_a_plan_is_told_with_its_alternatives() -> None:
    option = options()[0]
    plan, *_ = await best_plan([option], Objective.DECODE)
    told = await told_of(replace_plan(option, plan), Objective.DECODE, explain=True)
    names = [one.name for one in told.alternatives]
    assert "solo on studio/MTL0" in names
    assert "with one more like mini" in names
    assert "A pass takes" in told.why
    assert told.forecast.source is SpeedSource.GIVEN
    alone = await told_of(replace_plan(option, plan), Objective.DECODE)
    assert alone.forecast == told.forecast
    assert alone.alternatives == ()


async def test_parts_of_tensors_are_proposed_where_they_win_alone() -> None:
    """Two slow devices, and between them more than any network there is."""
    text = EXAMPLE.replace('"400 GB/s"', '"2 GB/s"').replace('"100 GB/s"', '"2 GB/s"')
    text = text.replace('"0.4 ms"', '"1 us"').replace('"118 MB/s"', '"90 GB/s"')
    given = read_cluster(text.replace("most = 12", ""))
    small = replace(MODEL, layers=MODEL.layers[:8], n_layer=8)
    option = imagined_options(given, replace(ASK, peers=("mini",)), small)[0]
    quick = replace(option.speeds.devices[0], ms=(1000.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    speeds = replace(option.speeds, devices=(quick, *option.speeds.devices[1:]))
    option = dataclasses.replace(option, speeds=speeds)
    plan, *_ = await best_plan([option], Objective.DECODE)
    assert plan.extra_args == ("-sm", "tensor")
    told = await told_of(replace_plan(option, plan), Objective.DECODE, explain=True)
    named = {one.name: one for one in told.alternatives}
    alone = named["solo on mini/MTL0"].forecast
    assert alone is not None
    assert told.forecast.tok_per_s > 1.1 * alone.tok_per_s
    assert alone.trips_per_token == 0
    assert named[NAME].forecast == told.forecast
    for aim in (Objective.NETWORK, Objective.CONTEXT):
        assert (await best_plan([option], aim)).plan.extra_args == ()


def replace_plan(option: Option, plan: object) -> Option:
    return Option(
        plan=plan,  # type: ignore[arg-type]
        model=option.model,
        devices=option.devices,
        speeds=option.speeds,
        pins=option.pins,
    )


async def test_a_worse_split_is_told_a_better_one() -> None:
    option = options(replace(ASK, objective=None))[0]
    told = await told_of(option, None, explain=True)
    assert "The best split is" in told.why
    assert "(--best)" in told.why


SMALL = Speculation(type="draft-simple", model="/small.gguf", device="studio/CPU")
DRAFT_MODEL = replace(MODEL, path="/small.gguf", layers=MODEL.layers[:0], n_layer=0)
TRIAL = DraftTrial(draft="/small.gguf", tok_per_s=9.0, acceptance=0.9, drafted=8, at=1)


def drafting(draft: str, output_bytes: int) -> Option:
    plain = options()[0]
    plan = replace(
        plain.plan, server=ServerSettings(draft=draft), speculation=SMALL, split=SPREAD
    )
    small = replace(DRAFT_MODEL, output_bytes=output_bytes)
    return dataclasses.replace(
        plain, plan=plan, draft_models={"/small.gguf": small}, trials=(TRIAL,)
    )


async def test_a_plan_with_a_draft_is_told_with_it_and_without() -> None:
    option = drafting("/small.gguf", 50_000_000)
    told = await told_of(option, None)
    assert told.undrafted is not None
    bare = replace(option.plan, server=ServerSettings(), speculation=None)
    assert told.undrafted == (await told_of(replace_plan(option, bare), None)).forecast
    gain = told.forecast.tok_per_s / told.undrafted.tok_per_s
    assert gain > 1.5
    assert f"The draft: ×{gain:.2f} predicted (" in told.why
    assert "Other plans" not in told.why
    compared = await told_of(option, None, explain=True)
    assert compared.why.endswith(". Other plans are told without it.")


@pytest.mark.parametrize(
    ("output_bytes", "says"),
    [
        (50_000_000, "The draft: with small, ×"),
        (50_000_000_000, "The draft: auto begins without one, as none surely gains."),
    ],
)
async def test_auto_is_told_with_what_it_begins_with(
    output_bytes: int, says: str
) -> None:
    told = await told_of(drafting("auto", output_bytes), None)
    assert says in told.why
    assert (told.undrafted is None) == ("without one" in says)


async def test_a_file_s_limits_are_pins() -> None:
    plan, *_ = await best_plan(options(), Objective.NETWORK)
    held = {s.device: s.layers for s in plan.split.shares}
    assert held["mini/MTL0"] <= 12


@pytest.mark.parametrize(
    ("limit", "counts", "says"),
    [
        ("most = 12", (0, 13, 7, 29), "mini/MTL0 13 layers, .* wants at most 12"),
        ("least = 9", (0, 10, 8, 31), "mini2/MTL0 8 layers, .* wants at least 9"),
        ("most = 12", (0, 12, 8, 29), ""),
    ],
)
def test_a_split_that_is_given_keeps_to_the_file_s_limits(
    limit: str, counts: tuple[int, ...], says: str
) -> None:
    given = read_cluster(EXAMPLE.replace("most = 12", limit))
    ask = replace(ASK, objective=None, counts=counts)
    option = imagined_options(given, ask, MODEL)[0]
    if says:
        with pytest.raises(PlanError, match=says):
            require_kept(option)
    else:
        require_kept(option)


async def test_the_best_split_is_searched_once_for_all_comparisons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Split, ClusterSpeeds]] = []

    def counted(problem: SplitProblem, objective: Objective) -> Best:
        asked.append((problem.plan.split, problem.speeds))
        return best_split(problem, objective)

    monkeypatch.setattr(objectives, "best_split", counted)
    option = options(replace(ASK, objective=None))[0]
    await told_of(option, None, explain=True)
    assert asked.count((option.plan.split, option.speeds)) == 1


@pytest.mark.parametrize("aim", [None, Objective.DECODE])
async def test_parts_of_tensors_are_searched_once(
    monkeypatch: pytest.MonkeyPatch, aim: Objective | None
) -> None:
    """Also for what a best plan is compared with."""
    searched: list[SplitProblem] = []
    search = tensor_parallel.by_tensor

    def counted(problem: SplitProblem, by_layers: Forecast) -> PartsPlan:
        searched.append(problem)
        return search(problem, by_layers)

    monkeypatch.setattr(tensor_parallel, "by_tensor", counted)
    await told_of(options()[0], aim, explain=True)
    assert len(searched) == 1
    await best_plans(options()[0])
    assert len(searched) == 2
    found = await best_plan(options(), Objective.DECODE)
    assert len(searched) == 3
    best_one = replace_plan(options()[0], found.plan)
    told = await told_of(best_one, Objective.DECODE, found, explain=True)
    assert len(searched) == 3
    assert NAME in {one.name for one in told.alternatives}


async def test_the_longest_context_is_the_plan_s() -> None:
    plan, *_ = await best_plan(options(), Objective.CONTEXT)
    assert plan.ctx_size == MODEL.n_ctx_train
    assert sum(counts(plan.split)) == 49


def option_of(there: SplitProblem) -> Option:
    return Option(
        plan=there.plan, model=there.model, devices=there.devices, speeds=there.speeds
    )


async def test_a_plan_that_is_too_large_is_told_the_longest_context() -> None:
    there = site(rooms_gib=(0.9, 1.2, 1.2))
    large = there._replace(plan=replace(there.plan, ctx_size=32_768))
    now, *others = await best_plans(option_of(large))
    assert (now.name, now.ctx_size) == ("as it is", 32_768)
    longest, whole = others
    assert longest.objectives == (Objective.CONTEXT,)
    assert 4096 < longest.ctx_size < 32_768
    assert "No split of these devices fits" in whole.why


async def test_experts_elsewhere_are_told_where_no_whole_layers_fit() -> None:
    there = site(rooms_gib=(0.9, 0.75, 0.75))
    option = option_of(there._replace(model=with_experts(there.model)))
    named = {one.name: one for one in await best_plans(option)}
    assert named[MOVED_NAME].why.startswith("experts of ")
    told = await told_of(option, Objective.DECODE, explain=True)
    assert "No split of these devices fits" in told.why
    (moved,) = told.alternatives
    assert moved.forecast is not None
    assert moved.forecast == named[MOVED_NAME].forecast
    assert sum(moved.counts) == there.model.n_layer + 1


async def test_experts_elsewhere_can_be_taken_as_they_are_launched() -> None:
    """The list says which experts, so that its plan is the one of ``up --best``."""
    there = large_at_home(0.7, rtt_ms=20)
    option = option_of(there)
    named = {one.name: one for one in await best_plans(option)}
    moved = named[MOVED_NAME]
    assert Objective.DECODE in moved.objectives, "it is on the front"
    best_one, *_ = await best_plan([option], Objective.DECODE)
    assert moved.experts == best_one.experts != ()
    taken = candidate(option.plan, moved)
    assert taken is not None
    assert (taken.split, taken.experts) == (best_one.split, best_one.experts)
    assert taken.asked is not None
    assert taken.asked.experts == taken.experts
    (now, *_) = await best_plans(dataclasses.replace(option, plan=taken))
    assert now.experts == taken.experts
    assert now.forecast == moved.forecast


async def test_a_model_without_experts_has_no_row_for_them() -> None:
    told = await best_plans(option_of(site()))
    assert MOVED_NAME not in {one.name for one in told}


def sixteen(*pins: str) -> Option:
    """Unlike machines of which nearly all are needed, slow links, many words."""
    text = 'head = "m0"\nnetwork = {rtt = "0.4 ms", rate = "118 MB/s"}\n'
    for number in range(16):
        text += f"""
            [machines.m{number}]
            memory = "1.5 GiB"
            bandwidth = "30 GB/s"
            [machines.m{number}.devices.CUDA0]
            memory = "4.8 GiB"
            bandwidth = "{300 + 10 * number} GB/s"
        """
    vast = replace(
        with_experts(MODEL),
        n_embd=2048,
        n_vocab=150_000,
        n_expert_used=1,
        output_bytes=175_000_000,
        embedding_bytes=175_000_000,
    )
    ask = replace(ASK, ctx_size=4096, pins=pins)
    (option,) = imagined_options(read_cluster(text), ask, vast)
    return option


@pytest.mark.parametrize("pins", [(), ("output=m0/CUDA0",)])
async def test_of_many_machines_the_head_has_the_output(pins: tuple[str, ...]) -> None:
    """It spares the output's way over the network; other layers go elsewhere."""
    option = sixteen(*pins)
    plan, *_ = await best_plan([option], Objective.DECODE)
    held = {share.device: share.layers for share in plan.split.shares if share.layers}
    by_hand = dict.fromkeys((f"m{number}/CUDA0" for number in range(4, 16)), 4)
    by_hand["m0/CUDA0"] = 1
    assert [*held][-1] == "m0/CUDA0"
    told = [
        forecast(option.model, replace(plan, split=split), option.speeds).tok_per_s
        for split in (
            plan.split,
            option.plan.split,
            make_split(48, [*by_hand], [*by_hand.values()]),
        )
    ]
    assert told[0] == max(told)


async def test_a_search_in_part_is_told_without_explaining() -> None:
    option = sixteen()
    aim = Objective.DECODE
    found = await best_plan([option], aim)
    assert not found.exact
    for explain in (False, True):
        told = await told_of(
            replace_plan(option, found.plan), aim, found, explain=explain
        )
        assert told.why.count("Not every set of devices was tried") == 1
    assert (await best_plan(options(), aim)).exact


async def test_a_head_dropped_by_a_search_in_part_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last of three is looked at quickly alone, and might have been the best."""
    given = replace(GIVEN, head="")
    small = replace(MODEL, layers=MODEL.layers[:8], n_layer=8)

    def in_part(problem: SplitProblem, objective: Objective) -> Best:
        found = best_split(problem, objective)
        return found._replace(exact=problem.plan.head != "mini2")

    monkeypatch.setattr(objectives, "best_split", in_part)
    found = imagined_options(given, ASK, small)
    assert not (await best_plan(found, Objective.DECODE)).exact


async def test_too_large_for_all_is_one_sentence() -> None:
    layers = tuple(replace(layer, bytes=9_000_000_000) for layer in MODEL.layers)
    with pytest.raises(PlanError, match="No split of these devices fits"):
        await best_plan(options(model=replace(MODEL, layers=layers)), Objective.DECODE)


@pytest.mark.parametrize(
    ("ask", "model", "says"),
    [
        (Ask(model="m", pins=("output=a",)), MODEL, "Add --best"),
        (replace(ASK, counts=(1, 2)), MODEL, "The split is given"),
        (replace(ASK, extra_args=("-sm", "tensor")), MODEL, "-sm says where tensors"),
        (replace(ASK, split={"a": 1}), MODEL, "The split is given"),
        (
            ASK,
            replace(
                MODEL,
                sparse=SparseModel(
                    source="",
                    identity="",
                    layers=(),
                    output=True,
                    embedding=True,
                    kept_bytes=0,
                ),
            ),
            "sparse",
        ),
    ],
)
def test_where_nothing_is_open_no_best_is_sought(
    ask: Ask, model: ModelInfo, says: str
) -> None:
    with pytest.raises(PlanError, match=says):
        require_open(ask, model)


def test_an_unknown_head_is_told() -> None:
    with pytest.raises(PlanError, match="Did you mean studio"):
        options(replace(ASK, head="stuido"))
    with pytest.raises(PlanError, match="no machine nuc") as caught:
        options(replace(ASK, peers=("nuc",)))
    assert "peers add" not in caught.value.hint


def test_slots_count_for_throughput_alone() -> None:
    plan = replace(options()[0].plan, server=ServerSettings(slots=4), ctx_size=600)
    assert workload(plan, Objective.THROUGHPUT).slots == 4
    assert workload(plan, Objective.DECODE).slots == 1
    assert workload(plan, None).depth == 300
    for asked, depth in (500, 500), (9999, 600):
        deep = replace(plan, asked=Ask(model=plan.model, depth=asked))
        assert workload(deep, None).depth == depth
