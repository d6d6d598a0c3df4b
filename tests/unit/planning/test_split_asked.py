"""A split, context and numbers as a person asked for them, or refused."""

from __future__ import annotations

import pytest

from backends.errors import PlanError
from backends.planning.proposal import plan_devices
from backends.planning.room import require_room
from backends.split.layout import counts
from backends.split.loads import device_loads
from tests.unit.planning.machines import (
    ADA,
    BOB,
    GIB,
    MIB,
    PLAIN,
    WITH_GPU,
    device,
    here,
    model_of,
    peer,
    plan_for,
    shares,
)


def test_counts_tell_how_many_workers() -> None:
    plan = plan_for(PLAIN, counts=(4, 4, 5))
    assert counts(plan.split) == (0, 4, 4, 5)
    assert len(plan.workers) == 3


def test_counts_follow_the_order_of_the_plan() -> None:
    """Workers, then the head's GPU; its CPU may be named first or left out."""
    plan = plan_for(WITH_GPU, ADA, counts=(2, 11))
    assert shares(plan) == {"local/CPU": 0, "ada/CPU": 2, "local/CUDA0": 11}
    plan = plan_for(WITH_GPU, ADA, counts=(1, 2, 10))
    assert shares(plan) == {"local/CPU": 1, "ada/CPU": 2, "local/CUDA0": 10}


def test_counts_for_the_head_alone() -> None:
    assert shares(plan_for(PLAIN, workers=0, counts=(13,))) == {"local/CPU": 13}


def test_devices_and_counts_must_agree() -> None:
    with pytest.raises(PlanError, match="4 shares for 2 devices") as refused:
        plan_for(PLAIN, workers=2, counts=(4, 4, 4, 1))
    assert "worker1/CPU, worker2/CPU" in str(refused.value)


def test_a_split_by_name() -> None:
    plan = plan_for(WITH_GPU, ADA, split={"local/CUDA0": 10, "ada/CPU": 3})
    assert shares(plan) == {"local/CPU": 0, "ada/CPU": 3, "local/CUDA0": 10}


def test_only_machines_the_split_names_take_part() -> None:
    plan = plan_for(WITH_GPU, ADA, BOB, split={"bob/CUDA1": 13})
    assert [w.peer for w in plan.workers] == ["bob", "bob"]
    assert shares(plan)["bob/CUDA1"] == 13


def test_a_cpu_beside_accelerators_works_when_it_is_named() -> None:
    plan = plan_for(PLAIN, BOB, split={"bob/CPU": 3, "bob/CUDA0": 10})
    assert shares(plan)["bob/CPU"] == 3
    assert "bob-CPU" in [w.name for w in plan.workers]


def test_own_workers_are_started_as_the_split_names_them() -> None:
    plan = plan_for(WITH_GPU, split={"worker2/CPU": 3, "local/CUDA0": 10})
    assert [w.name for w in plan.workers] == ["worker1", "worker2"]
    assert shares(plan)["worker2/CPU"] == 3


def test_an_unknown_device_is_told_with_those_there_are() -> None:
    with pytest.raises(PlanError, match="no device studio/MTL0") as refused:
        plan_for(WITH_GPU, ADA, peers=("ada",), split={"studio/MTL0": 13})
    assert "local/CPU, ada/CPU, local/CUDA0" in str(refused.value)


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        ({"mini/MTL0": 13}, "There is no peer mini. Known: local, ada. Add it"),
        ({"worker1/cpu": 6, "worker2/CPU": 7}, "Did you mean worker1/CPU? It has"),
        ({"ada/cpu": 13}, "no device ada/cpu. Did you mean ada/CPU? It has local/CPU"),
        ({"worker1": 13}, "no device worker1. Did you mean worker1/CPU? It has"),
        ({"ada/CUDA7": 13}, "no device ada/CUDA7. It has local/CPU, ada/CPU"),
    ],
)
def test_a_wrong_name_in_a_split_is_told_with_the_right_ones(
    split: dict[str, int], sentence: str
) -> None:
    with pytest.raises(PlanError) as refused:
        plan_for(PLAIN, ADA, split=split)
    assert sentence in str(refused.value)


def test_a_split_by_name_that_does_not_sum_up_is_told_as_it_was_typed() -> None:
    with pytest.raises(PlanError) as refused:
        plan_for(WITH_GPU, ADA, split={"local/CUDA0": 9, "ada/CPU": 3})
    assert refused.value.what.startswith(
        "The split local/CUDA0=9,ada/CPU=3 sums to 12, but the model has 12 layers"
    )


def test_a_split_is_given_once() -> None:
    with pytest.raises(PlanError, match="twice"):
        plan_for(PLAIN, counts=(13,), split={"local/CPU": 13})


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"ctx_size": -5}, "context of -5 tokens is too small"),
        ({"ctx_size": 0}, "context of 0 tokens is too small"),
        ({"ctx_size": 2_000_000_000}, "trained for 1024. At most 8192"),
        ({"workers": -1}, "-1 workers"),
        ({"workers": 17}, "17 workers"),
        ({"api_port": 0}, "0 as port"),
        ({"api_port": 65536}, "65536 as port"),
        ({"counts": (-1, 14)}, "negative share"),
        ({"counts": (0,) * 17 + (13,)}, "18 workers"),
        ({"split": {"worker1/CPU": 14, "worker2/CPU": -1}}, "negative share"),
    ],
)
def test_numbers_that_cannot_be_meant(asked: dict[str, object], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        plan_for(PLAIN, **asked)  # type: ignore[arg-type]


def test_the_context_stays_within_the_training_unless_asked() -> None:
    assert plan_for(PLAIN).ctx_size == 1024
    assert plan_for(PLAIN, ctx_size=8192).ctx_size == 8192


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
    machine = here(
        device("local", "CPU", GIB),
    )
    big = model_of(100 * MIB)
    plan = plan_for(machine, model=big, workers=2, counts=(6, 7))
    devices = plan_devices(plan.head, plan.workers, {"local": machine})
    with pytest.raises(PlanError, match="share one memory"):
        require_room(plan, big, devices)
