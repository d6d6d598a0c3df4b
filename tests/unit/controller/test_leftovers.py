"""What is told of processes that could not be stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from backends.controller.leftovers import Leftovers

if TYPE_CHECKING:
    from collections.abc import Iterable


class Machines:
    """None of them is connected."""

    def all(self) -> Iterable[Any]:
        return ()


class Book:
    """Of a machine that told what runs there, or never did."""

    def __init__(self, told: set[str] | None) -> None:
        self.told = told

    def knows(self, machine: str) -> bool:
        return self.told is not None

    def may_run(self, machine: str, name: str) -> bool:
        return self.told is None or name in self.told


@pytest.mark.parametrize(
    ("told", "left"),
    [
        (None, {"bob"}),
        ({"one/bob"}, {"bob"}),
        ({"one/bob", "one/worker-relay-bob"}, {"bob", "worker-relay-bob"}),
        (set(), set()),
    ],
)
def test_a_relay_beside_a_worker_is_left_where_it_was_seen(
    told: set[str] | None, left: set[str]
) -> None:
    nothing = cast("Any", None)
    book = cast("Any", Book(told))
    found = Leftovers("one", cast("Any", Machines()), nothing, nothing, book)
    needed = {"bob": "bob", "worker-relay-bob": "bob"}
    assert {one.name for one in found.away(needed)} == left
