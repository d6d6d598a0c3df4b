"""Room for a plan beside other clusters, and for prompts beside the plan."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backends.errors import PlanError
from backends.planning.proposal import plan_devices
from backends.planning.room import (
    STEP_MIB,
    ClusterMemory,
    prompts_kept_mib,
    require_room,
    room_for,
    with_prompt_cache,
)
from backends.split.loads import device_loads, plan_loads
from backends.state import DeviceMemory, Peer, Transport
from tests.unit.planning.machines import (
    ADA,
    BOB,
    GIB,
    MIB,
    MODEL,
    PLAIN,
    device,
    here,
    model_of,
    peer,
    plan_for,
)

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
