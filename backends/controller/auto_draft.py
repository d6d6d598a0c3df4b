"""``--draft auto``: finds out by trials what to guess with, and goes on measuring.

It acts at idle moments only. A client's request ends a trial at once, and another way
to guess takes the place of what runs when nobody has asked for a while: the longer a
load takes, the longer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from backends.controller.draft_words import (
    chosen_text,
    measured_text,
    told,
    verdict_text,
)
from backends.controller.evidence import failed_at
from backends.controller.trials import Network, of_cluster
from backends.controller.trying import ROUNDS_MAX, counted, tried
from backends.errors import ControllerError, DllmError
from backends.planning.speculating import (
    PLAIN,
    Way,
    as_of,
    choose,
    guesses_since,
    judged,
    progress,
    way_of,
    ways_of,
)
from backends.state import (
    AUTO_DRAFT,
    ClusterState,
    DraftMeasuring,
    DraftNow,
    DraftTrial,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from backends.controller.board import Board
    from backends.controller.chapters import Chapter
    from backends.controller.trials import TrialBook
    from backends.controller.trying import Found
    from backends.engine.server import Counts
    from backends.planning.speculating import Choice
    from backends.state import Plan

log = logging.getLogger(__name__)

IDLE_S = 2.0
"""Nobody asks anything for so long before a trial begins."""
LOAD_PART = 0.5
"""Nobody asks for such a part of what a load takes before there is another load."""
STEADY_S, STEADY_MAX_S = 10.0, 3600.0
"""A way that clients' text speaks against is not left sooner; each time later."""
LOOK_S = 0.5
LIVE_TOKENS = 256
"""What clients asked for tells something from here on."""
FAILURES_MAX = 2
"""A way whose trial failed so often is not tried again."""
VERDICT_S = 10.0
"""What still serves so long after a trial failed lost nothing that the trial needed."""


class AutoDraft:
    """Chooses how the plan of one cluster guesses, while it serves."""

    def __init__(
        self,
        board: Board,
        chapter: Chapter,
        book: TrialBook,
        *,
        trial: Callable[[int, int, Callable[[int], None]], Awaitable[Found]] = tried,
        counts: Callable[[int], Awaitable[Counts]] = counted,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Show it on ``board``, tell it in ``chapter``, keep it in ``book``."""
        self._board = board
        self._chapter = chapter
        self._book = book
        self._trial = trial
        self._counts = counts
        self._sleep = sleep
        self._clock = clock
        self._network = Network()
        self._failures: Counter[Way] = Counter()
        self._port = 0
        self._begun_at = 0.0
        self._load_s = 0.0
        self._steady_s = STEADY_S
        self._settled: Way | None = None
        """What was found best; None before anything was."""
        self._has_found = False
        """Whether anything was found out that may change that."""
        self._is_shown = False
        """Whether the board is that of the goal it guesses for."""
        self._why, self._chosen = "", ""

    def forget(self) -> None:
        """Somebody launched anew: what could not be tried is tried again."""
        self._is_shown = False
        self._failures.clear()
        self._steady_s = STEADY_S
        self._settled, self._has_found = None, False
        self._why, self._chosen = "", ""
        self._board.update(draft_now=None)

    def begins(self, plan: Plan) -> Way:
        """How a plan is to guess that is brought up now: as it did last."""
        self._begun_at, self._port = self._clock(), 0
        self._is_shown = True
        ways, last = ways_of(plan), self._book.chosen(plan, self._cluster)
        allowed = {way.draft: way.draft_max for way in ways}
        way = ways[0]
        if last is not None and last.draft_max <= allowed.get(last.draft, -1):
            way = last
        self._show(plan, way)
        return way

    def give_up(self, plan: Plan, way: Way) -> None:
        """A way cannot be had any more, until somebody launches anew."""
        self._failures[way] = FAILURES_MAX
        self._has_found = True
        self._book.choose(plan, PLAIN, self._cluster)

    def blames(self, way: Way) -> bool:
        """Whether a llama-server that ended never served, and was to guess that way."""
        return way != PLAIN and not self._port

    def serves(self, port: int) -> None:
        """It listens there, and its model is loaded."""
        self._port = port
        self._load_s = self._clock() - self._begun_at

    async def over(self, plan: Plan, way: Way) -> str:
        """Wait until another way is to be run, which ``begins`` tells; says why.

        Whatever goes wrong here does not end what serves: it guesses on as it does.
        """
        try:
            return await self._until_other(plan, way)
        except Exception as error:
            log.exception("no way to guess is measured now, and why was not foreseen")
            what = "Measuring ways to guess ended, and it serves on as it does"
            self._chapter.tried_in_vain(failed_at(what, error, self._clock()))
        await asyncio.Event().wait()
        return ""

    async def _until_other(self, plan: Plan, way: Way) -> str:
        ways = ways_of(plan)
        while self._board.snapshot.state is not ClusterState.SERVING:
            await self._board.change()
        if len(ways) == 1:
            self._show(plan, way, is_settled=True)
            await asyncio.Event().wait()
        before, seen = await self._counts(self._port), None
        is_idle = False
        while True:
            if not is_idle:
                await self._lasting(IDLE_S)
            is_idle = False
            site = self._site(plan)
            now = (site, self._board.snapshot.speed.tokens)
            if now == seen:
                await self._board.change()
                continue
            before = await self._hear(site, way, before)
            choice = self._choice(ways, site, way)
            if choice.way != way:
                before, why = await self._leave(plan, way, choice, before)
                if why:
                    return why
            elif choice.is_tried:
                self._settle(plan, way)
                seen = now
            else:
                is_idle = await self._try(plan, way, site)
                before = await self._counts(self._port)

    def _choice(self, ways: Sequence[Way], site: str, way: Way) -> Choice:
        return choose(ways, self._known(site, way), way, self._given_up())

    def _known(self, site: str, way: Way) -> tuple[DraftTrial, ...]:
        return as_of(self._clock(), self._book.of(site), way)

    async def _leave(
        self, plan: Plan, way: Way, choice: Choice, before: Counts
    ) -> tuple[Counts, str]:
        """Wait for the moment to load another way; why it is loaded, if it came."""
        site = self._site(plan)
        is_left = self._is_left(site, way, choice)
        await self._lasting(self._patience_s(is_left=is_left) - IDLE_S)
        # Whoever was answered meanwhile may have told otherwise.
        before = await self._hear(site, way, before)
        again = self._choice(ways_of(plan), site, way)
        same = site == self._site(plan) and again.way == choice.way
        if not same or self._is_asked:
            return before, ""
        if is_left:
            self._steady_s = min(2 * self._steady_s, STEADY_MAX_S)
        return before, self._changed(plan, way, again)

    def _is_left(self, site: str, way: Way, choice: Choice) -> bool:
        """Whether a way had its turn: clients speak against it, or the network does."""
        return (self._settled is not None and choice.is_tried) or any(
            way_of(one) == way and one.live_guesses for one in self._book.of(site)
        )

    def _patience_s(self, *, is_left: bool) -> float:
        """How long nobody must have asked before there is another load."""
        steady_s = self._steady_s if is_left else IDLE_S
        return max(self._load_s * LOAD_PART, steady_s)

    # --- measuring ----------------------------------------------------------------

    async def _try(self, plan: Plan, way: Way, site: str) -> bool:
        """One trial; whether nobody asked meanwhile, which ends it."""
        begins = partial(self._show_round, plan, way)
        begins(0)
        slots = plan.server.slots
        trial = asyncio.ensure_future(self._trial(self._port, slots, begins))
        asked = asyncio.ensure_future(self._until_asked())
        try:
            await asyncio.wait({trial, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done() and site == self._site(plan):
                self._found(plan, site, way, _outcome(trial))
        except Exception as error:
            await self._failed(way, error)
        finally:
            for task in (trial, asked):
                task.cancel()
            await asyncio.gather(trial, asked, return_exceptions=True)
            # Also where something died meanwhile, which may take a while to mend.
            self._show(plan, way)
        return asked.cancelled()

    async def _failed(self, way: Way, error: Exception) -> None:
        """Count it against a way, but for what died in the middle: that ends ``over``.

        A worker or a relay that dies takes the answer with it before anybody sees it.
        """
        if not isinstance(error, DllmError):
            log.error("a trial failed, and why was not foreseen", exc_info=error)
        await self._sleep(VERDICT_S)
        self._failures[way] += 1
        what = f"The trial {told(way)} failed"
        self._chapter.tried_in_vain(failed_at(what, error, self._clock()))

    def _found(self, plan: Plan, site: str, way: Way, found: Found) -> None:
        trial = DraftTrial(
            model=plan.model,
            draft=way.draft,
            draft_max=way.draft_max,
            tok_per_s=found.tok_per_s,
            tokens=found.tokens,
            guesses=found.guesses,
            cluster=self._cluster,
            network=self._network.told(self._board.snapshot.links),
            slots=plan.server.slots,
            at=self._clock(),
        )
        self._book.keep(site, trial)
        self._has_found = True
        self._chapter.tried(measured_text(way, found.tok_per_s))

    def _given_up(self) -> set[Way]:
        """Ways whose trials failed again, with all else as it should be."""
        return {way for way, count in self._failures.items() if count >= FAILURES_MAX}

    async def _hear(self, site: str, way: Way, before: Counts) -> Counts:
        """Take what became of guesses since, once that tells enough."""
        now = await self._counts(self._port)
        if now.finished_tokens is None or before.finished_tokens is None:
            # It did not answer in time: what was before it is not known apart.
            return now
        tokens = now.finished_tokens - before.finished_tokens
        if tokens < LIVE_TOKENS or way == PLAIN:
            return before
        guesses = guesses_since(now.guesses, before.guesses)
        self._book.heard(site, way, tokens, guesses, self._clock())
        self._has_found = True
        return now

    # --- waiting ------------------------------------------------------------------

    async def _lasting(self, duration_s: float) -> None:
        """Wait until nobody has asked anything for so long, and no slot was busy."""
        lasted_s = 0.0
        while lasted_s < duration_s:
            await self._sleep(LOOK_S)
            disturbs = self._is_asked or self._is_busy
            lasted_s = 0.0 if disturbs else lasted_s + LOOK_S

    async def _until_asked(self) -> None:
        while not self._is_asked:
            await self._board.change()

    @property
    def _is_asked(self) -> bool:
        """Whether somebody does; where no gateway counts, anybody may."""
        asked = self._board.snapshot.requests
        return asked is None or bool(asked.waiting or asked.in_flight)

    @property
    def _is_busy(self) -> bool:
        """Whether a slot is, with or without a client: the gateway reads ahead too."""
        return self._board.snapshot.speed.requests_active > 0

    # --- telling ------------------------------------------------------------------

    def _site(self, plan: Plan) -> str:
        site = self._network.site(plan, self._board.snapshot.links)
        return of_cluster(self._cluster, site)

    @property
    def _cluster(self) -> str:
        return self._board.snapshot.cluster

    def _changed(self, plan: Plan, way: Way, choice: Choice) -> str:
        """Have another way brought up."""
        self._book.choose(plan, choice.way, self._cluster)
        if choice.is_tried:
            self._book.forget_past(self._site(plan), way, self._clock())
            self._why = verdict_text(choice.speedup)
            self._tell_choice(plan, choice.way, way)
            return f"From now on {told(choice.way)}: {self._why}"
        self._why = ""
        why = f"It was loaded again, to be measured {told(choice.way)}"
        self._chapter.tried(why)
        return why

    def _settle(self, plan: Plan, way: Way) -> None:
        """There is nothing better, as far as is known."""
        self._book.choose(plan, way, self._cluster)
        trials = judged(self._book.of(self._site(plan)))
        mine = (trial.speedup for trial in trials if way_of(trial) == way)
        self._why = verdict_text(next(mine, None))
        if way != self._settled and self._has_found:
            self._tell_choice(plan, way, self._settled)
        self._settled = way
        self._show(plan, way, is_settled=True)

    def _tell_choice(self, plan: Plan, way: Way, before: Way | None) -> None:
        trials = judged(self._book.of(self._site(plan)))
        self._settled, self._chosen = way, chosen_text(way, before, trials)
        self._chapter.tried(self._chosen)

    def _show_round(self, plan: Plan, way: Way, number: int) -> None:
        """A trial began, or a further round of it."""
        trials = self._book.of(self._site(plan))
        this, ways = progress(ways_of(plan), trials, way, self._given_up())
        measuring = DraftMeasuring(
            way=this, ways=ways, round_number=number, rounds_max=ROUNDS_MAX
        )
        self._show(plan, way, doing=f"measuring {told(way)}", measuring=measuring)

    def _show(
        self,
        plan: Plan,
        way: Way,
        *,
        doing: str = "",
        measuring: DraftMeasuring | None = None,
        is_settled: bool = False,
    ) -> None:
        if plan.server.draft != AUTO_DRAFT or not self._is_shown:
            return
        waiting = "" if is_settled else "to be measured when nobody asks"
        self._board.update(
            draft_now=DraftNow(
                draft=way.draft,
                draft_max=way.draft_max,
                doing=doing or waiting,
                measuring=measuring,
                why=self._why,
                chosen=self._chosen,
                trials=judged(self._known(self._site(plan), way)),
            )
        )


def _outcome(trial: asyncio.Future[Found]) -> Found:
    """What it found; one that was cut off from within is no end of ours."""
    if trial.cancelled():
        raise ControllerError("It was cut off")
    return trial.result()
