"""Which devices take part in a plan, in which order, with how much; or why not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from backends.config import Config, PeerConfig
from backends.controller.degraded_plan import plan_without
from backends.errors import PlanError
from backends.planning.memory_fit import (
    STEP_MIB,
    ClusterMemory,
    prompts_kept_mib,
    require_room,
    room_for,
    with_prompt_cache,
)
from backends.planning.proposal import plan_devices
from backends.split.device_memory import CTX_STEP, device_loads, plan_loads
from backends.split.experts import dropped_text
from backends.state import (
    DeviceMemory,
    LayerBytes,
    LayerRange,
    Peer,
    PeerState,
    Plan,
    Transport,
)
from tests.unit.planning.machines import (
    ADA,
    AWAY,
    BARE,
    BOB,
    GIB,
    MIB,
    MODEL,
    PLAIN,
    WITH_GPU,
    device,
    here,
    model_of,
    peer,
    plan_for,
    shares,
)
from tui.model.peer_words import why_not

STUDIO = here(device("local", "CPU", 64 * GIB), device("local", "MTL0", 55 * GIB))
MINI = peer("mini", device("mini", "CPU"), device("mini", "MTL0", 12 * GIB))
SMALL_GPU = here(device("local", "CPU", 4 * GIB), device("local", "CUDA0", GIB))
ASKING = peer("ada", "CPU", state=PeerState.ASKING)
BIG = model_of(100 * MIB)
EXPERTS = LayerBytes(experts=80 * MIB)
MIXTURE = replace(BIG, layers=tuple(replace(one, groups=EXPERTS) for one in BIG.layers))
ON_CPU = (LayerRange("local/CPU", 0, 11),)
ALONE = "local/CPU 13"
GPU_ALONE = "local/CPU 0, local/CUDA0 13"
OWN_TWO = "local/CPU 0, worker1/CPU 6, worker2/CPU 7"


@pytest.mark.parametrize(
    ("machines", "asked", "expected"),
    [
        # CPU workers here are for trying things, never proposed beside a GPU.
        ([PLAIN], {}, OWN_TWO),
        ([PLAIN, AWAY], {}, OWN_TWO),
        ([PLAIN, ASKING], {}, OWN_TWO),
        ([WITH_GPU], {}, GPU_ALONE),
        ([WITH_GPU], {"workers": 1}, "local/CPU 0, worker1/CPU 6, local/CUDA0 7"),
        # 82 to 18 where the head has 55 GiB and the other machine 12.
        ([STUDIO, MINI, AWAY], {}, "local/CPU 0, mini/MTL0 2, local/MTL0 11"),
        # Thirteen parts of 100 MiB on a GPU of 1 GiB: the head's CPU has the rest.
        ([SMALL_GPU], {"model": BIG}, "local/CPU 3, local/CUDA0 10"),
        ([SMALL_GPU], {"model": MIXTURE, "experts": ON_CPU}, GPU_ALONE),
        ([SMALL_GPU], {"model": BIG, "exclude": ("local/CPU",)}, "local/CUDA0 13"),
        ([WITH_GPU, ADA], {"head": "ada"}, "ada/CPU 0, local/CUDA0 13"),
        # Nothing of this machine is put between: that would be the slowest of all.
        ([PLAIN, ADA], {"head": "ada", "peers": ("ada",)}, "ada/CPU 13"),
        ([PLAIN, ADA, BOB], {"workers": 0}, ALONE),
        ([WITH_GPU, ADA, BOB], {"workers": 0}, GPU_ALONE),
        # The server of a bare peer has a device that is excluded all the same.
        ([PLAIN, BARE], {"exclude": ("box/RPC0",)}, "local/CPU 0, box/RPC1 13"),
        # Counts follow the order of the plan; the head's CPU may be left out.
        (
            [WITH_GPU, ADA],
            {"counts": (2, 11)},
            "local/CPU 0, ada/CPU 2, local/CUDA0 11",
        ),
        (
            [WITH_GPU, ADA],
            {"counts": (1, 2, 10)},
            "local/CPU 1, ada/CPU 2, local/CUDA0 10",
        ),
        ([PLAIN], {"workers": 0, "counts": (13,)}, ALONE),
        (
            [PLAIN],
            {"counts": (4, 4, 5)},
            "local/CPU 0, worker1/CPU 4, worker2/CPU 4, worker3/CPU 5",
        ),
        (
            [WITH_GPU, ADA],
            {"split": {"local/CUDA0": 10, "ada/CPU": 3}},
            "local/CPU 0, ada/CPU 3, local/CUDA0 10",
        ),
        # Only machines the split names take part, with all their accelerators.
        (
            [WITH_GPU, ADA, BOB],
            {"split": {"bob/CUDA1": 13}},
            "local/CPU 0, bob/CUDA0 0, bob/CUDA1 13, local/CUDA0 0",
        ),
        # A CPU beside accelerators works where it is named.
        (
            [PLAIN, BOB],
            {"split": {"bob/CPU": 3, "bob/CUDA0": 10}},
            "local/CPU 0, bob/CPU 3, bob/CUDA0 10, bob/CUDA1 0",
        ),
        (
            [WITH_GPU],
            {"split": {"worker2/CPU": 3, "local/CUDA0": 10}},
            "local/CPU 0, worker1/CPU 0, worker2/CPU 3, local/CUDA0 10",
        ),
    ],
)
def test_the_layers_of_each_device(
    machines: list[Peer], asked: dict[str, Any], expected: str
) -> None:
    found = shares(plan_for(*machines, **asked))
    assert ", ".join(f"{name} {count}" for name, count in found.items()) == expected


@pytest.mark.parametrize(
    ("machines", "asked", "workers", "devices"),
    [
        (
            [PLAIN, ADA, BOB, AWAY],
            {},
            "ada bob-CUDA0 bob-CUDA1",
            "local/CPU ada/CPU bob/CUDA0 bob/CUDA1",
        ),
        (
            [PLAIN, ADA, BOB],
            {"head": "ada", "workers": 1},
            "worker1",
            "ada/CPU worker1/CPU",
        ),
        # The devices of a head that is named as a peer, too, take part once.
        (
            [PLAIN, ADA, BOB],
            {"head": "bob", "peers": ("ada", "bob")},
            "ada",
            "bob/CPU ada/CPU bob/CUDA0 bob/CUDA1",
        ),
        (
            [PLAIN, ADA, BOB],
            {"peers": ("bob", "ada"), "counts": (5, 4, 4)},
            "bob-CUDA0 bob-CUDA1 ada",
            "local/CPU bob/CUDA0 bob/CUDA1 ada/CPU",
        ),
        ([PLAIN, BARE], {}, "box", "local/CPU box/RPC0 box/RPC1"),
        (
            [WITH_GPU, BOB],
            {"exclude": ("bob/CUDA0", "local/CUDA0")},
            "bob",
            "local/CPU bob/CUDA1",
        ),
        # Without its accelerators a machine computes on its CPU.
        (
            [PLAIN, BOB],
            {"exclude": ("bob/CUDA0", "bob/CUDA1")},
            "bob",
            "local/CPU bob/CPU",
        ),
    ],
)
def test_workers_and_the_order_of_devices(
    machines: list[Peer], asked: dict[str, Any], workers: str, devices: str
) -> None:
    plan = plan_for(*machines, **asked)
    assert " ".join(worker.name for worker in plan.workers) == workers
    assert " ".join(shares(plan)) == devices
    assert plan.head == asked.get("head", "local")


def test_workers_on_a_cpu_share_cores_or_have_the_performance_cores() -> None:
    assert [worker.threads for worker in plan_for(PLAIN).workers] == [4, 4]
    assert [w.threads for w in plan_for(PLAIN, ADA, BOB).workers] == [6, None, None]
    config = Config(peers={"ada": PeerConfig(ssh="ada", threads=3)})
    assert plan_for(PLAIN, ADA, config=config).workers[0].threads == 3


def test_a_bare_peer_is_one_worker_with_all_its_devices() -> None:
    (worker,) = plan_for(PLAIN, BARE, exclude=("box/RPC0",)).workers
    assert worker.endpoint == "10.0.0.3:50052"
    assert worker.devices == ("RPC0", "RPC1")


def test_the_context_stays_within_the_training_unless_asked() -> None:
    assert plan_for(PLAIN).ctx_size == 1024
    assert plan_for(PLAIN, ctx_size=8192).ctx_size == 8192


def test_a_machine_that_is_not_lent_is_named_once() -> None:
    note = "cy is not lent now: its owner has paused it"
    paused = replace(AWAY, note=note)
    with pytest.raises(PlanError) as refused:
        plan_for(PLAIN, paused, peers=("cy",))
    told = "cy cannot take part now: its owner has paused it"
    assert refused.value.what == told
    assert why_not(paused).startswith(told)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"ctx_size": -5}, "context of -5 tokens is too small"),
        ({"ctx_size": 0}, "context of 0 tokens is too small"),
        ({"depth": 5000, "ctx_size": 4096}, "depth of 5000 tokens is more than"),
        ({"ctx_size": 2_000_000_000}, "trained for 1024. At most 8192"),
        ({"workers": -1}, "-1 workers"),
        ({"workers": 16}, "16 workers"),
        ({"api_port": 0}, "0 as port"),
        ({"api_port": 65536}, "65536 as port"),
        ({"counts": (-1, 14)}, "negative share"),
        ({"exclude": ("ada/CPU",), "counts": (0,) * 15 + (13,)}, "16 workers"),
        ({"split": {"worker1/CPU": 14, "worker2/CPU": -1}}, "negative share"),
        ({"counts": (13,), "split": {"local/CPU": 13}}, "twice"),
        ({"workers": 2, "counts": (4, 4, 4, 1)}, "4 shares for 2 devices"),
        ({"workers": 2, "counts": (4, 4, 4, 1)}, "worker1/CPU, worker2/CPU"),
        ({"peers": ("cy",)}, "cy cannot take part now: it is unreachable"),
        ({"peers": ("dan",)}, "no peer dan"),
        ({"workers": 0, "exclude": ("local/CPU",)}, "No device is left"),
        ({"exclude": ("ada/CUDA0",)}, "no device ada/CUDA0 to exclude"),
        (
            {"split": {"mini/MTL0": 13}},
            "There is no peer mini. Known: local, ada, cy. Add it: dllm-tui peers add "
            "mini.",
        ),
        (
            {"split": {"worker1/cpu": 6, "worker2/CPU": 7}},
            "Did you mean worker1/CPU? It has",
        ),
        (
            {"split": {"ada/cpu": 13}},
            "no device ada/cpu. Did you mean ada/CPU? It has local/CPU",
        ),
        (
            {"split": {"worker1": 13}},
            "no device worker1. Did you mean worker1/CPU? It has",
        ),
        (
            {"split": {"ada/CUDA7": 13}},
            "no device ada/CUDA7. It has local/CPU, ada/CPU",
        ),
        (
            {"peers": ("ada",), "split": {"studio/MTL0": 13}},
            "no device studio/MTL0. It has local/CPU, ada/CPU",
        ),
        # It is told as it was typed.
        (
            {"split": {"local/CPU": 9, "ada/CPU": 3}},
            "The split local/CPU=9,ada/CPU=3 sums to 12, but the model has 12 layers",
        ),
    ],
)
def test_refusals_tell_what_can_be_meant(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PlanError) as refused:
        plan_for(PLAIN, ADA, AWAY, **asked)
    assert sentence in str(refused.value)


# --- What a plan becomes when a machine of it is gone ---


def known(*machines: Peer) -> dict[str, Peer]:
    return {machine.name: machine for machine in machines}


def test_experts_stay_where_their_device_does() -> None:
    """Those on the lost machine are with their layers again."""
    layers = tuple(
        replace(one, groups=LayerBytes(experts=one.bytes // 2)) for one in MODEL.layers
    )
    model = replace(MODEL, layers=layers)
    plan = plan_for(WITH_GPU, ADA, BOB, peers=("ada", "bob"))
    at_head, at_bob = LayerRange("local/CPU", 2, 3), LayerRange("bob/CPU", 0, 1)
    plan = replace(plan, experts=(at_head, at_bob))
    rest = plan_without(plan, ["bob"], model, known(WITH_GPU, ADA, BOB))
    assert rest.experts == (at_head,)
    assert dropped_text(plan, rest) == (
        "Experts of 0–1 on bob/CPU are with their layers again: no layer is there now"
    )
    assert dropped_text(rest, rest) == ""


def test_the_others_share_what_it_had() -> None:
    plan = plan_for(WITH_GPU, ADA, BOB, peers=("ada", "bob"))
    plan = replace(plan, experts=(LayerRange("bob/CPU", 0, 1),))
    rest = plan_without(plan, ["bob"], MODEL, known(WITH_GPU, ADA, BOB))
    assert rest.experts == ()
    assert [worker.name for worker in rest.workers] == ["ada"]
    found = shares(rest)
    assert set(found) == {"local/CPU", "ada/CPU", "local/CUDA0"}
    assert sum(found.values()) == 13
    assert found["ada/CPU"]
    assert found["local/CUDA0"]
    assert (rest.model, rest.head, rest.ctx_size) == (
        plan.model,
        plan.head,
        plan.ctx_size,
    )


def test_a_device_that_took_no_part_takes_none_now() -> None:
    plan = plan_for(WITH_GPU, ADA, peers=("ada",), exclude=("local/CUDA0",))
    rest = plan_without(plan, ["ada"], MODEL, known(WITH_GPU, ADA))
    assert shares(rest) == {"local/CPU": 13}


def test_without_its_head_there_is_none() -> None:
    plan = plan_for(PLAIN, ADA, BOB, peers=("ada", "bob"), head="ada")
    with pytest.raises(PlanError, match="ada, which runs llama-server, is gone"):
        plan_without(plan, ["ada"], MODEL, known(PLAIN, ADA, BOB))


def test_a_worker_is_left_out_whose_machine_is_there() -> None:
    plan = plan_for(PLAIN, ADA, BOB, peers=("ada", "bob"))
    machines = known(PLAIN, ADA, BOB)
    rest = plan_without(plan, [], MODEL, machines, workers=("ada",))
    assert rest == plan_without(plan, ["ada"], MODEL, machines)


@pytest.mark.parametrize("ctx_min", [None, 16, 1000])
def test_the_context_is_as_long_as_what_is_left_can_hold(ctx_min: int | None) -> None:
    layers = (replace(one, kv_bytes_per_token=1 << 16) for one in MODEL.layers)
    model = replace(MODEL, layers=tuple(layers))
    large, ctx_size = peer("ada", device("ada", "CPU", 100 * GIB)), 8192
    roomy = here(device("local", "CPU", 100 * GIB))
    plan = replace(
        plan_for(roomy, large, peers=("ada",), model=model), ctx_size=ctx_size
    )

    def alone(free_bytes: int, ctx_min: int | None) -> Plan:
        machines = known(here(device("local", "CPU", free_bytes)), large)
        return plan_without(plan, ["ada"], model, machines, ctx_min=ctx_min)

    def least(ctx_size: int) -> int:
        """Memory that is just enough, by bisection."""
        low, high = 0, 100 * GIB
        one = replace(plan, ctx_size=ctx_size)
        while high - low > 1:
            middle = (low + high) // 2
            machines = known(here(device("local", "CPU", middle)), large)
            try:
                plan_without(one, ["ada"], model, machines)
                high = middle
            except PlanError:
                low = middle
        return high

    assert alone(least(ctx_size), ctx_min).ctx_size == ctx_size
    tight = least(2048)
    if ctx_min is None:
        with pytest.raises(PlanError, match="too small") as caught:
            alone(tight, None)
        would_do = int(re.findall(r"--context (\d+)", caught.value.hint)[0])
        assert 2048 - CTX_STEP < would_do <= 2048
        assert alone(tight, would_do).ctx_size == would_do
        return
    found = alone(tight, ctx_min).ctx_size
    assert 2048 - CTX_STEP < found <= 2048
    with pytest.raises(PlanError, match=r"too small.*Free memory there"):
        alone(least(16) - 1, ctx_min)


# --- Room for a plan beside other clusters, and for prompts beside the plan ---

PLAN = plan_for(PLAIN, BOB, workers=1, peers=("bob",))
"""One worker here, and one for each of two GPUs of bob."""
MEMORY = (
    DeviceMemory(device="local/CPU", model_bytes=10 * MIB, kv_bytes=MIB),
    DeviceMemory(device="worker1/CPU", model_bytes=20 * MIB),
    DeviceMemory(device="bob/CUDA0", model_bytes=30 * MIB),
)
SERVES = ClusterMemory(plan=PLAN, memory=MEMORY, loaded=True)
LOADS = ClusterMemory(
    plan=PLAN, memory=MEMORY, loaded=False, arrived_bytes={"worker1/CPU": 5 * MIB}
)


def machines() -> list[Peer]:
    bob = peer("bob", *(device("bob", n, GIB) for n in ("CPU", "CUDA0", "CUDA1")))
    return [_half_full(here(device("local", "CPU", GIB))), _half_full(bob)]


def _half_full(one: Peer) -> Peer:
    devices = (replace(d, free_bytes=500 * MIB) for d in one.devices)
    return replace(one, devices=tuple(devices))


def free_mib(found: list[Peer]) -> dict[str, int]:
    free = {d.id: d.free_bytes // MIB for one in found for d in one.devices}
    return {name: n for name, n in free.items() if n != 500}


def test_what_is_replaced_gives_back_what_shows() -> None:
    """Not the weights the head maps, which count as free, nor a GPU: it was asked
    before, so that nothing of ours is missing there."""
    assert free_mib(room_for(machines(), SERVES, [])) == {"local/CPU": 521}
    assert free_mib(room_for(machines(), LOADS, [])) == {"local/CPU": 505}


def test_what_serves_beside_it_shows_in_main_memory_and_is_taken_of_a_gpu() -> None:
    assert free_mib(room_for(machines(), None, [SERVES])) == {"bob/CUDA0": 470}


def test_what_loads_beside_it_takes_what_is_still_to_come() -> None:
    found = free_mib(room_for(machines(), None, [LOADS]))
    assert found == {"local/CPU": 500 - 1 - 15, "bob/CUDA0": 470}
    assert free_mib(room_for(machines(), None, [LOADS, LOADS])) == {
        "local/CPU": 500 - 32,
        "bob/CUDA0": 440,
    }


def test_room_is_between_nothing_and_all_there_is() -> None:
    huge = replace(SERVES, memory=(DeviceMemory(device="worker1/CPU", kv_bytes=GIB),))
    coming = replace(huge, loaded=False)
    (local, _) = room_for(machines(), huge, [])
    assert local.devices[0].free_bytes == GIB
    (local, _) = room_for(machines(), None, [coming])
    assert local.devices[0].free_bytes == 0


def test_a_bare_server_is_not_asked_while_it_serves() -> None:
    box = Peer(
        name="box",
        transport=Transport.BARE,
        address="10.0.0.3:50052",
        devices=(replace(device("box", "CPU", GIB), free_bytes=500 * MIB),),
    )
    plan = plan_for(PLAIN, box, peers=("box",))
    held = (DeviceMemory(device="box/CPU", kv_bytes=MIB),)
    serves = ClusterMemory(plan=plan, memory=held, loaded=True)
    found = room_for([*machines(), box], None, [serves])
    assert free_mib(found) == {"box/CPU": 499}


def test_a_second_model_is_refused_while_the_first_still_loads() -> None:
    """Both fit alone, and nothing of the first has come yet."""
    machine = here(device("local", "CPU", 2 * GIB))
    big = model_of(100 * MIB)
    plan = plan_for(machine, model=big, workers=1)
    loads = device_loads(big, plan.split, plan.ctx_size)
    first = ClusterMemory(
        plan=plan, memory=tuple(d.memory for d in loads), loaded=False
    )

    def require(found: list[Peer]) -> None:
        by_name = {one.name: one for one in found}
        require_room(plan, big, plan_devices(plan.head, plan.workers, by_name))

    require(room_for([machine], None, []))
    with pytest.raises(PlanError, match="too small"):
        require(room_for([machine], None, [first]))


ONE = plan_for(here(device("local", "CPU", GIB)), workers=0)


def test_a_device_too_small_for_its_share_is_refused() -> None:
    """The sentence names the device, what it needs and what it has, in bytes."""
    box = peer("box", device("box", "CPU"), device("box", "CUDA0", GIB))
    machine = here(device("local", "CPU", 8 * GIB))
    big = model_of(100 * MIB)
    split = {"box/CUDA0": 12, "local/CPU": 1}
    plan = plan_for(machine, box, model=big, split=split)
    devices = plan_devices(plan.head, plan.workers, {"local": machine, "box": box})
    with pytest.raises(PlanError) as refused:
        require_room(plan, big, devices)
    loads = device_loads(big, plan.split, plan.ctx_size)
    (needed,) = (d.total_bytes for d in loads if d.device == "box/CUDA0")
    assert needed > 12 * 100 * MIB
    assert refused.value.what == (
        f"box/CUDA0 is too small for its share: 12 layers need 1.2 GiB ({needed} "
        f"bytes), available are 1.0 GiB ({GIB} bytes)"
    )
    assert "--force" in refused.value.hint
    forced = plan_for(machine, box, model=big, split=split, force=True)
    require_room(forced, big, devices)


def test_the_engines_answer_counts_before_our_arithmetic() -> None:
    machine = here(device("local", "CPU", 8 * GIB))
    big = model_of(100 * MIB)
    plan = plan_for(machine, model=big, workers=1)
    devices = plan_devices(plan.head, plan.workers, {"local": machine})
    require_room(plan, big, devices)
    more = DeviceMemory(device="worker1/CPU", model_bytes=9 * GIB)
    with pytest.raises(PlanError, match="worker1/CPU is too small for its share"):
        require_room(plan, big, devices, [more])


def test_the_version_of_the_head_counts_in_what_is_refused_and_done_without() -> None:
    """Since RPC 8.0.0 a plan needs a little more: what just fits the older does not."""
    (load,) = plan_loads(MODEL, ONE, protocol="7.0.0")
    machine = here(device("local", "CPU", load.total_bytes))
    plan = plan_for(here(device("local", "CPU", GIB)), ADA, peers=("ada",))
    devices = machine.devices
    require_room(ONE, MODEL, devices, protocol="7.0.0")
    plan_without(plan, ["ada"], MODEL, known(machine, ADA), protocol="7.0.0")
    with pytest.raises(PlanError, match="too small for its share"):
        require_room(ONE, MODEL, devices, protocol="8.0.0")
    with pytest.raises(PlanError, match="too small for its share"):
        plan_without(plan, ["ada"], MODEL, known(machine, ADA), protocol="8.0.0")


def test_two_workers_of_one_memory_are_counted_together() -> None:
    machine = here(device("local", "CPU", GIB))
    big = model_of(100 * MIB)
    plan = plan_for(machine, model=big, workers=2, counts=(6, 7))
    devices = plan_devices(plan.head, plan.workers, {"local": machine})
    with pytest.raises(PlanError, match="share one memory"):
        require_room(plan, big, devices)


# --- prompts that are kept ----------------------------------------------------


def kept_mib(free_bytes: int, *extra: str) -> int | None:
    """For a plan whose head has so much memory free, beside its own share."""
    plan = replace(plan_for(PLAIN, ADA, peers=("ada",)), extra_args=extra)
    own = sum(x.total_bytes for x in plan_loads(MODEL, plan) if "local" in x.device)
    assert own
    head, *others = plan_devices(plan.head, plan.workers, {"local": PLAIN, "ada": ADA})
    there = replace(head, free_bytes=own + free_bytes, total_bytes=0)
    return with_prompt_cache(plan, MODEL, [there, *others]).prompt_cache_mib


@pytest.mark.parametrize(
    ("left_mib", "most_mib"),
    [
        (-5, 0),
        (0, 0),
        (2 * STEP_MIB - 1, 0),
        (1000, 384),
        (4096, 2048),
        (1 << 20, 8192),
    ],
)
def test_it_is_half_of_what_is_left(left_mib: int, most_mib: int) -> None:
    assert kept_mib(left_mib * MIB) == most_mib


def test_where_the_user_sets_it_or_nothing_is_known_nothing_is_set() -> None:
    assert kept_mib(4096 * MIB, "--cache-ram", "7") is None
    assert kept_mib(4096 * MIB, "-cram", "7") is None
    plan = replace(plan_for(PLAIN, ADA, peers=("ada",)), prompt_cache_mib=5)
    assert with_prompt_cache(plan, MODEL, []).prompt_cache_mib is None


def test_what_a_command_line_says() -> None:
    assert prompts_kept_mib(("x", "--cache-ram", "1024", "-cram", "7")) == 7
    assert prompts_kept_mib(("x", "--cache-ram")) is None
    assert prompts_kept_mib(("x", "--cache-ram", "-1")) is None
