"""How many prompts the head's memory has room for beside a plan."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backends.planning.proposal import plan_devices
from backends.planning.room import (
    MIB,
    STEP_MIB,
    prompts_kept_mib,
    with_prompt_cache,
)
from backends.split.loads import plan_loads
from tests.unit.planning.machines import ADA, MODEL, PLAIN, plan_for


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
