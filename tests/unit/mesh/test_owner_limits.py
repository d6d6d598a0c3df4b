"""The owner's hours, devices and pause."""

from __future__ import annotations

import pytest

from backends.errors import UsageError
from backends.mesh.owner_limits import OwnerLimits, parse_hours


@pytest.mark.parametrize(
    ("text", "lent"),
    [
        ("22-7", {22, 23, 0, 6}),
        ("9-17", {9, 12, 16}),
        ("0-24", {0, 12, 23}),
        ("24-7", {0, 6}),
    ],
)
def test_hours_may_go_over_midnight(text: str, lent: set[int]) -> None:
    limits = OwnerLimits(hours=parse_hours(text))
    assert all(limits.lends_at(hour) for hour in lent)
    first, last = limits.hours or (0, 0)
    assert not limits.lends_at(last % 24) or (first, last) == (0, 24)


@pytest.mark.parametrize("text", ["", "7", "7-7", "7-25", "a-b", "22:30-7", "-7"])
def test_what_are_no_hours_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="Write them like 22-7"):
        parse_hours(text)


def test_why_nothing_is_lent() -> None:
    limits = OwnerLimits(hours=(22, 7))
    assert limits.refusal(False, 23) == ""
    assert limits.refusal(False, 12) == "its owner lends it from 22 to 7 o'clock"
    assert limits.refusal(True, 23) == "its owner has paused it"


def test_all_devices_unless_some_are_named() -> None:
    assert OwnerLimits().lends("CUDA0")
    assert not OwnerLimits(devices=("CPU",)).lends("CUDA0")
