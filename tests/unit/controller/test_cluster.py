"""Requests to one cluster; what follows from them is in ``test_scenarios``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from backends.controller.gateway import ApiPorts
from backends.controller.journal import Goal, Journal, Record
from backends.controller.processes import ProcessBook
from backends.controller.stopping import ClusterProcesses
from backends.errors import ControllerError
from backends.gateway.access import ApiSettings
from backends.state import Plan
from tests.kit.clusters import Stage, plan_on


@pytest.mark.parametrize("later", [plan_on("local"), None])
async def test_who_asked_last_holds_however_long_another_is_checked(
    tmp_path: Path, later: Plan | None
) -> None:
    cluster = Stage(tmp_path).cluster
    before = await cluster.want(plan_on("local"))
    number = cluster.order.number()
    held = await cluster.want(later)
    with pytest.raises(ControllerError, match="came after this launch"):
        await cluster.want(plan_on("ada"), number=number)
    assert cluster.goal == held
    assert (held == before) is (later is not None)
    assert (await cluster.want(plan_on("ada"))).plan == plan_on("ada")


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


def test_clusters_do_not_choose_the_same_port() -> None:
    ports = ApiPorts()
    assert ports.choose("a", 8090)
    assert not ports.choose("b", 8090)
    assert ports.candidates("a", 8090)[0] == 8090
    assert ports.choose("b", 8091)
    assert ports.candidates("b", 8090)[:2] == [8091, 8090]
    ports.release("a")
    assert ports.owner(8090) is None


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
