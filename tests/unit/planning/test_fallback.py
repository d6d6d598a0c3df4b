"""What a plan becomes when a machine of it is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backends.errors import PlanError
from backends.planning.fallback import plan_without
from tests.unit.planning.machines import (
    ADA,
    BOB,
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

if TYPE_CHECKING:
    from backends.state import Peer


def known(*machines: Peer) -> dict[str, Peer]:
    """By name."""
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
