"""Requests to one cluster; what follows from them is in ``test_scenarios``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from backends.controller.journal import Goal, Journal, Record
from backends.controller.processes import ProcessBook
from backends.controller.stopping import ClusterProcesses
from backends.gateway.access import ApiSettings
from tests.kit.clusters import Stage, plan_on


async def test_the_same_plan_with_other_settings_is_another_goal(
    tmp_path: Path,
) -> None:
    api = ApiSettings(wait_s=300, drain_s=60)
    goal = Goal(generation=4, plan=plan_on("local"), api=api)
    known = Record(goal=goal, served_since=5.0, secret="5a", server="7@1.0")
    cluster = Stage(tmp_path, known).cluster
    assert await cluster.want(plan_on("local"), api=api) == goal
    other = msgspec.structs.replace(api, port=8123)
    assert (await cluster.want(plan_on("local"), api=other)).api == other
    record = Journal(tmp_path / "default.json").load()
    assert (record.secret, record.server) == ("5a", "7@1.0")
    assert record.before == goal


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
