"""What a plan becomes when a machine of it is gone."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from backends.errors import PlanError
from backends.planning.fallback import CTX_STEP, plan_without
from backends.state import Peer, Plan
from tests.unit.planning.machines import (
    ADA,
    BOB,
    GIB,
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


def known(*machines: Peer) -> dict[str, Peer]:
    return {machine.name: machine for machine in machines}


def test_the_others_share_what_it_had() -> None:
    plan = plan_for(WITH_GPU, ADA, BOB, peers=("ada", "bob"))
    rest = plan_without(plan, ["bob"], MODEL, known(WITH_GPU, ADA, BOB))
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


def test_the_heads_cpu_does_it_alone_where_it_must() -> None:
    plan = plan_for(PLAIN, ADA, peers=("ada",))
    rest = plan_without(plan, ["ada"], MODEL, known(PLAIN, ADA))
    assert rest.workers == ()
    assert shares(rest) == {"local/CPU": 13}


def test_a_device_that_took_no_part_takes_none_now() -> None:
    plan = plan_for(WITH_GPU, ADA, peers=("ada",), exclude=("local/CUDA0",))
    rest = plan_without(plan, ["ada"], MODEL, known(WITH_GPU, ADA))
    assert shares(rest) == {"local/CPU": 13}


def test_without_its_head_there_is_none() -> None:
    plan = plan_for(PLAIN, ADA, BOB, peers=("ada", "bob"), head="ada")
    with pytest.raises(PlanError, match="ada, which runs llama-server, is gone"):
        plan_without(plan, ["ada"], MODEL, known(PLAIN, ADA, BOB))


def test_what_does_not_fit_is_refused() -> None:
    small, large = here(device("local", "CPU", 5000)), peer("ada", "CPU")
    model = model_of()
    plan = plan_for(small, large, peers=("ada",), model=model)
    with pytest.raises(PlanError, match="local/CPU is too small for its share"):
        plan_without(plan, ["ada"], model, known(small, large))


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
