"""When a machine that was lost takes part again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from backends.config import Config
from backends.controller import stand_in
from backends.controller.stand_in import StandIns, told_split
from backends.errors import PeerUnreachable
from backends.planning.fallback import plan_without
from backends.state import ClusterState
from backends.state.requests import RequestCounts
from tests.unit.gateway.standing import until
from tests.unit.planning.machines import ADA, MODEL, PLAIN, plan_for

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAN = plan_for(PLAIN, ADA, peers=("ada",))
REST = plan_without(PLAN, ["ada"], MODEL, {"local": PLAIN, "ada": ADA})


class Stage:
    """Machines that come and go, and a cluster that is asked things."""

    def __init__(self, rejoin: str = "idle") -> None:
        self.away = {"ada"}
        self.looks = 0
        self.told: list[str] = []
        self.snapshot = SimpleNamespace(
            state=ClusterState.SERVING, requests=RequestCounts(in_flight=1)
        )
        config = Config(rejoin=rejoin)  # type: ignore[arg-type]
        machines: Any = SimpleNamespace(reached=self._reached)
        readers: Any = SimpleNamespace(config=lambda: config)
        chapter: Any = SimpleNamespace(waiting=self.told.append)
        board: Any = SimpleNamespace(snapshot=self.snapshot)
        self.parts = StandIns(machines, readers, board, chapter)

    async def _reached(self, names: Iterable[str]) -> None:
        self.looks += 1
        if gone := self.away.intersection(names):
            raise PeerUnreachable(f"{gone} is gone")

    async def looked(self, times: int = 20) -> None:
        """Wait until they were looked for so often more."""
        aim = self.looks + times
        await until(lambda: self.looks >= aim)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STEADY_S", "IDLE_S", "LOOK_S"):
        monkeypatch.setattr(stand_in, name, 0.001)


async def test_it_is_taken_back_once_it_is_there_and_nobody_is_disturbed() -> None:
    stage = Stage()
    over = asyncio.create_task(stage.parts.over(PLAN, REST))
    await stage.looked()
    assert not over.done(), "it is away"
    stage.away.clear()
    await asyncio.sleep(0.05)
    assert not over.done(), "somebody is being answered"
    stage.snapshot.requests = RequestCounts()
    assert await asyncio.wait_for(over, 5) == "ada is back: it takes part again"


@pytest.mark.parametrize(
    ("rejoin", "told"),
    [("ask", ["ada is back: launch again to use it"]), ("never", [])],
)
async def test_it_is_not_taken_back_where_that_is_not_wanted(
    rejoin: str, told: list[str]
) -> None:
    stage = Stage(rejoin)
    stage.away.clear()
    stage.snapshot.requests = RequestCounts()
    over = asyncio.create_task(stage.parts.over(PLAN, REST))
    await stage.looked(2)
    await asyncio.sleep(0.05)
    assert not over.done()
    assert stage.told == told
    over.cancel()


def test_a_split_is_told_in_one_line() -> None:
    assert told_split(REST) == "13 on local/CPU"
