"""A cluster that serves in whatever way ``--draft auto`` wants, for its tests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from backends.config import Config
from backends.controller.auto_draft import (
    VERDICT_S,
    AutoDraft,
)
from backends.controller.board import Board
from backends.controller.trials import TrialBook
from backends.controller.trying import Found
from backends.engine.server import Counts
from backends.errors import ControllerError
from backends.planning.speculating import PLAIN, Way
from backends.state import (
    ClusterState,
    Failure,
    Guesses,
    ServerSettings,
    Speculation,
    Speed,
)
from backends.state.requests import RequestCounts
from tests.unit.planning.machines import ADA, plan_for
from tests.unit.planning.machines import PLAIN as HEAD
from tests.waiting import until
from tui.work.paces import auto_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MODEL = Way("/models/small.gguf", 8)
TABLE = Way("ngram", 8)
PLAN = replace(
    plan_for(HEAD, ADA, peers=("ada",)),
    server=ServerSettings(draft="auto"),
    speculation=Speculation(
        type="draft-simple",
        model=MODEL.draft,
        instead=(Speculation(type="ngram-map-k"),),
    ),
)
RIGHT = Guesses(guessed=800, accepted=600, passes=100, by_position=(75,) * 8)
WRONG = Guesses(guessed=800, accepted=8, passes=100, by_position=(8,))
RATES = {PLAIN: 20.0, TABLE: 24.0, MODEL: 60.0}


class Chapter:
    """What was told."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.failures: list[Failure] = []

    def tried(self, text: str) -> None:
        self.texts.append(text)

    def tried_in_vain(self, failure: Failure) -> None:
        self.failures.append(failure)


class Stage:
    """A cluster that serves in whatever way is wanted."""

    def __init__(self, folder: Path, cluster: str = "default") -> None:
        self.board = Board(Config, cluster=cluster)
        self.board.update(state=ClusterState.SERVING, requests=RequestCounts())
        self.chapter: Any = Chapter()
        self.way = PLAIN
        self.trials: list[Way] = []
        self.shown: list[str] = []
        self.rates = RATES
        self.looks = 0
        self.at = 7.0
        self.fails: set[Way] = set()
        self.error: BaseException = ControllerError("no answer")
        self.hangs = asyncio.Event()
        self.hangs.set()
        self.lives = asyncio.Event()
        """Whatever a trial needs, also a moment after it failed."""
        self.lives.set()
        self.is_judging = False
        self.counts: Counts | Exception = Counts(finished_tokens=0)
        self.file = folder / "trials.json"
        self.auto = self.made()

    def made(self) -> AutoDraft:
        return AutoDraft(
            self.board,
            self.chapter,
            TrialBook(self.file),
            trial=self.trial,
            counts=self.counted,
            sleep=self.look,
            clock=lambda: self.at,
        )

    async def look(self, duration_s: float) -> None:
        self.looks += 1
        if duration_s == VERDICT_S:
            self.is_judging = True
            await self.lives.wait()
        await asyncio.sleep(0)

    async def trial(
        self, _port: int, slots: int, begins: Callable[[int], None]
    ) -> Found:
        assert slots == 1
        self.trials.append(self.way)
        self.shown.append(auto_text(self.board.snapshot))
        begins(2)
        self.shown.append(auto_text(self.board.snapshot))
        await self.hangs.wait()
        if self.way in self.fails:
            raise self.error
        guesses = Guesses() if self.way == PLAIN else RIGHT
        return Found(self.rates[self.way], 700, guesses)

    async def counted(self, _port: int) -> Counts:
        if isinstance(self.counts, Exception):
            raise self.counts
        return self.counts

    def begins(self) -> None:
        """The cluster is pursued."""
        self.is_judging = False
        self.task = asyncio.create_task(self.run())

    async def ends(self) -> None:
        """It is not any more, because something died or somebody said so."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def run(self) -> None:
        """Bring up whatever is wanted, as long as it changes."""
        while True:
            self.way = self.auto.begins(PLAN)
            self.counts = Counts(finished_tokens=0)
            self.board.update(speed=Speed())
            self.auto.serves(8080)
            await self.auto.over(PLAN, self.way)

    def has_left(self, way: Way) -> bool:
        return not self.now.doing and self.way != way

    async def settled(self) -> None:
        await until(lambda: self.now is not None and not self.now.doing)

    @property
    def now(self) -> Any:
        return self.board.snapshot.draft_now

    async def asks(self, tokens: int, guesses: Guesses) -> None:
        """A client asks, and has its answer."""
        self.board.update(requests=RequestCounts(in_flight=1))
        self.counts = Counts(finished_tokens=tokens, guesses=guesses)
        self.board.update(requests=RequestCounts(), speed=Speed(tokens=tokens))
