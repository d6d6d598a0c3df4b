"""What is told of processes that could not be stopped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from backends.controller.stopping import ClusterProcesses
from tests.kit.clusters import Stage

if TYPE_CHECKING:
    from pathlib import Path

    from backends.controller.processes import ProcessBook


@pytest.mark.parametrize(
    ("told", "left"),
    [
        (None, {"bob"}),
        ({"default/bob"}, {"bob"}),
        (
            {"default/bob", "default/worker-relay-bob"},
            {"bob", "worker-relay-bob"},
        ),
        (set(), set()),
    ],
)
async def test_a_relay_beside_a_worker_is_left_where_it_was_seen(
    tmp_path: Path, told: set[str] | None, left: set[str]
) -> None:
    """Of a machine that told what runs there, or never did."""
    context = Stage(tmp_path).context
    book = SimpleNamespace(
        knows=lambda machine: told is not None,
        may_run=lambda machine, name: told is None or name in told,
    )
    context.book = cast("ProcessBook", book)
    needed = {"bob": "bob", "worker-relay-bob": "bob"}
    away = ClusterProcesses(context).away(needed)
    assert {one.name for one in away} == left
