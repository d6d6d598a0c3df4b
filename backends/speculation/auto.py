"""``--draft auto``: measure each speculation method once, and keep the fastest.

Before that the prediction decides: what surely loses nothing runs at once, and what
surely gains nothing is not measured. A comparison runs only while nobody asks for
anything. A client's request ends a measurement at once, which is repeated later. The
result is kept by plan, model and network.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from statistics import harmonic_mean
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from backends.engine.llama_client import ServerClient
from backends.errors import ControllerError, DllmError
from backends.speculation.gain import WORTH, DraftGain, likely, predicted_text
from backends.speculation.methods import methods_of
from backends.state import (
    AUTO_DRAFT,
    DRAFT_MAX,
    NO_DRAFT,
    NOT_JSON,
    ChatDelta,
    ChatMessage,
    ChatRequest,
    ChatTimings,
    ClusterSnapshot,
    ClusterState,
    DraftNow,
    DraftTrial,
    Lab,
    Link,
    ModelInfo,
    Plan,
    Sampling,
    Value,
)
from backends.tasks import end_tasks, first_of
from backends.units import format_factor, format_speed
from backends.writing import write_private

log = logging.getLogger(__name__)

IDLE_S = 2.0
"""A measurement begins when nobody has asked for so long."""
FAILURES_MAX = 2
"""A method whose measurement failed so often takes no further part."""
KEPT_MAX = 64
"""Results in the file; the oldest goes first."""
TRIAL_S = 60.0
ANSWER_S = 8.0
"""On a slow cluster an answer is cut to take about so long."""
TOKENS_MIN, TOKENS_MAX = 16, 64
ENOUGH_S, SLOW_S = 3.0, 20.0
"""Answers that took ENOUGH_S suffice if each question came twice; SLOW_S always do."""
ROUNDS_MAX = 12
QUESTIONS = (
    "Explain in a few sentences what a computer is and how it works.",
    "What is a language model, and what is a token?",
)
RTT_EDGES_MS = (2.0, 8.0, 32.0, 128.0)
"""Round trips between two of these give the same result."""


class Measured(NamedTuple):
    tok_per_s: float
    acceptance: float | None
    drafted: float | None = None
    """Tokens drafted for a pass."""


class Snapshots(Protocol):
    @property
    def snapshot(self) -> ClusterSnapshot: ...
    async def change(self) -> None: ...
    def update(self, **changes: Any) -> None: ...


class Log(Protocol):
    def tried(self, what: str) -> None: ...
    def tried_in_vain(self, what: str, error: Exception) -> None: ...


class AutoDraft:
    """Compares the speculation methods of one cluster's plan, and runs the fastest."""

    def __init__(
        self,
        store: Snapshots,
        events: Log,
        book: TrialBook,
        *,
        measure: Callable[[int, int], Awaitable[Measured]],
        predict: Callable[[Plan], Awaitable[Mapping[str, DraftGain]]] | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self._store = store
        self._events = events
        self._book = book
        self._measure = measure
        self._predict = predict
        self._gains: Mapping[str, DraftGain] = {}
        """The predicted ones, by draft."""
        self._labs: dict[str, Lab] = {}
        """On the links that this comparison is about."""
        self._idle_s = idle_s
        self._again = asyncio.Event()
        self._plan: Plan | None = None
        self._port = 0
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._trials: dict[str, DraftTrial] = {}
        self._failures: Counter[str] = Counter()
        self._key = ""
        self._takes_known = True

    def forget(self) -> None:
        self._plan = None
        self._begin_anew()
        self._store.update(draft_now=None)

    def repeat(self) -> None:
        if self._plan is None:
            raise ControllerError(
                "The cluster does not run with --draft auto: nothing is compared",
                "Launch it so: dllm-tui up --draft auto.",
            )
        self._begin_anew()
        self._takes_known = False
        self._again.set()

    async def foresee(self, plan: Plan) -> None:
        """Predict the gain of each method: ``begins`` and the comparison heed it."""
        self._gains = await self._predict(plan) if self._predict else {}

    def begins(self, plan: Plan) -> str:
        """The draft to bring this plan up with: as it ran last, else as predicted."""
        if plan != self._plan:
            self._begin_anew()
        self._plan, self._port = plan, 0
        ran = self._book.running(plan)
        draft = likely(self._gains.values()) if ran is None else ran
        if draft not in methods_of(plan) or self._failures[draft] >= FAILURES_MAX:
            draft = NO_DRAFT
        foreseen = ran is None and draft != NO_DRAFT
        self._show(
            plan, draft, why=predicted_text(self._gains[draft]) if foreseen else ""
        )
        return draft

    def serves(self, port: int) -> None:
        self._port = port

    def blames(self, draft: str) -> bool:
        """True if the draft may be why a llama-server ended before it served."""
        return draft != NO_DRAFT and not self._port

    def give_up(self, draft: str) -> None:
        """Leave a draft that cannot be loaded out of this comparison."""
        self._failures[draft] = FAILURES_MAX

    async def over(self, plan: Plan, draft: str) -> str:
        """Wait until another draft is to run, and return why.

        An error here never ends what serves.
        """
        while True:
            try:
                return await self._compare(plan, draft)
            except Exception as error:
                log.exception("the comparison of drafts ended unexpectedly")
                what = "The comparison of drafts ended; the cluster serves on"
                self._events.tried_in_vain(what, error)
            await self._until_repeated()

    async def _compare(self, plan: Plan, draft: str) -> str:
        while True:
            await self._idle()
            snapshot = self._store.snapshot
            if (labs := labs_on(snapshot.links)) != self._labs:
                # What was predicted and measured is of another network.
                self._labs, self._trials, self._key = labs, {}, ""
                await self.foresee(plan)
            self._key = self._key or result_key(plan, snapshot.model, snapshot.links)
            known = self._book.of(self._key) if self._takes_known else ()
            todo = [] if known else self._left(plan)
            if draft in todo:
                await self._try(plan, draft)
                continue
            trials = known or with_speedups(self._trials.values())
            best = todo[0] if todo else fastest(trials, self._given_up)
            if not todo and not known:
                await self._finish(trials, best)
            why = gain_text(best, trials)
            if not trials and not self._failures:
                why = "no draft is likely to be faster"
            if best != draft:
                await self._book.runs(plan, best)
                why = "to be measured" if todo else why
                return f"Loaded again {with_draft_text(best)}: {why}"
            self._show(plan, draft, why=why, trials=trials)
            if trials:
                await self._until_repeated()
            else:
                await first_of(self._until_repeated(), self._until_other_labs())

    @property
    def _given_up(self) -> set[str]:
        return {one for one, n in self._failures.items() if n >= FAILURES_MAX}

    def _left(self, plan: Plan) -> list[str]:
        methods = methods_of(plan)
        taking_part = [
            one
            for one in methods
            if one not in self._given_up
            and (one in self._trials or self._may_gain(one))
        ]
        if NO_DRAFT not in taking_part or taking_part == [NO_DRAFT]:
            return []
        left = [one for one in taking_part if one not in self._trials]
        return sorted(left, key=self._speedup)

    def _may_gain(self, draft: str) -> bool:
        # Who wants it measured again wants all of it.
        gain = self._gains.get(draft) if self._takes_known else None
        return gain is None or gain.high >= WORTH

    def _speedup(self, draft: str) -> float:
        # None is first; where nothing is predicted, the order of the methods stays.
        gain = self._gains.get(draft)
        return gain.speedup if gain else 0.0

    async def _finish(self, trials: tuple[DraftTrial, ...], best: str) -> None:
        self._takes_known = True
        if NO_DRAFT in self._trials:
            await self._book.keep(self._key, trials)
            self._events.tried(
                f"Chosen: {with_draft_text(best)} ({gain_text(best, trials)})"
            )

    async def _try(self, plan: Plan, draft: str) -> None:
        methods = methods_of(plan)
        number = f"{methods.index(draft) + 1} of {len(methods)}"
        self._show(plan, draft, f"measuring {with_draft_text(draft)} ({number})")
        trial = asyncio.ensure_future(self._measure(self._port, plan.server.slots))
        asked = asyncio.ensure_future(self._until_asked())
        try:
            await asyncio.wait({trial, asked}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                self._found(plan, draft, _outcome(trial))
        except Exception as error:
            if not isinstance(error, DllmError):
                log.error("a measurement failed unexpectedly", exc_info=error)
            self._failures[draft] += 1
            self._events.tried_in_vain(
                f"Measuring {with_draft_text(draft)} failed", error
            )
        finally:
            await end_tasks(trial, asked)
            if self._plan is not None:
                self._show(plan, draft)

    def _found(self, plan: Plan, draft: str, measured: Measured) -> None:
        self._trials[draft] = DraftTrial(
            draft=draft,
            draft_max=0 if draft == NO_DRAFT else plan.server.draft_max,
            tok_per_s=measured.tok_per_s,
            acceptance=measured.acceptance,
            drafted=measured.drafted,
            network=network_text(self._store.snapshot.links),
            slots=plan.server.slots,
            at=time.time(),
        )
        rate = format_speed(measured.tok_per_s).strip()
        self._events.tried(f"Measured {with_draft_text(draft)}: {rate}")

    def _show(
        self,
        plan: Plan,
        draft: str,
        doing: str = "to be measured when nobody asks",
        *,
        why: str = "",
        trials: tuple[DraftTrial, ...] | None = None,
    ) -> None:
        if plan.server.draft == AUTO_DRAFT:
            shown = with_speedups(self._trials.values()) if trials is None else trials
            done = "" if trials is not None else doing
            now = DraftNow(draft=draft, doing=done, why=why, trials=shown)
            self._store.update(draft_now=now)

    async def _until_repeated(self) -> None:
        self._again.clear()
        await self._again.wait()

    async def _until_other_labs(self) -> None:
        while labs_on(self._store.snapshot.links) == self._labs:
            await self._store.change()

    async def _idle(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._idle_s):
                    while not self._is_disturbed:
                        await self._store.change()
            if not self._is_disturbed:
                return
            await self._store.change()

    @property
    def _is_disturbed(self) -> bool:
        now = self._store.snapshot
        serves = now.state is ClusterState.SERVING
        return not serves or self._is_asked or now.speed.requests_active > 0

    @property
    def _is_asked(self) -> bool:
        asked = self._store.snapshot.requests
        return asked is None or bool(asked.waiting or asked.in_flight)

    async def _until_asked(self) -> None:
        while not self._is_asked:
            await self._store.change()


def _outcome(trial: asyncio.Future[Measured]) -> Measured:
    if trial.cancelled():
        raise ControllerError("It was cut off")
    return trial.result()


# --- results --------------------------------------------------------------------


class _Pages(Value, frozen=True, kw_only=True):
    trials: dict[str, tuple[DraftTrial, ...]] = {}
    """By plan, model and network."""
    running: dict[str, str] = {}
    """The draft that a plan runs with, by plan: a new controller adopts it."""


class TrialBook:
    """Results of comparisons in a file; an unreadable file begins anew."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._pages = _Pages()
        self._turn = asyncio.Lock()
        with contextlib.suppress(OSError, *NOT_JSON):
            self._pages = msgspec.json.decode(file.read_bytes(), type=_Pages)

    def of(self, key: str) -> tuple[DraftTrial, ...]:
        return self._pages.trials.get(key, ())

    async def keep(self, key: str, trials: tuple[DraftTrial, ...]) -> None:
        known = {at: one for at, one in self._pages.trials.items() if at != key}
        await self._write(replace(self._pages, trials=_latest({**known, key: trials})))

    def running(self, plan: Plan) -> str | None:
        """The draft that a plan ran with last; None if it never did."""
        return self._pages.running.get(plan_key(plan))

    async def runs(self, plan: Plan, draft: str) -> None:
        known = {**self._pages.running, plan_key(plan): draft}
        await self._write(replace(self._pages, running=_latest(known)))

    def found_for(self, model: ModelInfo) -> tuple[DraftTrial, ...]:
        ours = f"/{model_fingerprint(model)}/"
        found = (
            trial
            for key, trials in self._pages.trials.items()
            for trial in trials
            if ours in key
        )
        return tuple(sorted(found, key=lambda one: one.at, reverse=True))

    async def _write(self, pages: _Pages) -> None:
        self._pages = pages
        async with self._turn:
            await asyncio.to_thread(self._save, self._pages)

    def _save(self, pages: _Pages) -> None:
        with contextlib.suppress(OSError):
            write_private(self._file, msgspec.json.encode(pages), durable=False)


def _latest(pages: dict[str, Any]) -> dict[str, Any]:
    return dict(list(pages.items())[-KEPT_MAX:])


def without_draft(plan: Plan) -> Plan:
    return replace(
        plan,
        server=replace(plan.server, draft=NO_DRAFT, draft_max=DRAFT_MAX),
        speculation=None,
        prompt_cache_mib=None,
        api_port=None,
        asked=None,
    )


def plan_key(plan: Plan) -> str:
    return _hash((without_draft(plan), methods_of(plan), plan.server.draft_max))


def model_fingerprint(model: ModelInfo) -> str:
    return _hash(replace(model, path="", files=(), sparse=None))


def result_key(plan: Plan, model: ModelInfo | None, links: Sequence[Link]) -> str:
    of_model = model_fingerprint(model) if model else ""
    return f"{plan_key(plan)}/{of_model}/{network_text(links)}"


def network_text(links: Iterable[Link]) -> str:
    """The round trips of one token, lab included: ``under 2 ms``, ``8 to 32 ms``."""
    rtts = [link.rtt_ms or 0.0 for link in links]
    labs = [2 * link.lab.latency_ms for link in links if link.lab]
    total_ms = sum(rtts) + sum(labs)
    edges = (0.0, *RTT_EDGES_MS)
    low = max(edge for edge in edges if edge <= total_ms)
    high = next((edge for edge in edges if edge > total_ms), None)
    if high is None:
        return f"over {low:g} ms"
    return f"{low:g} to {high:g} ms" if low else f"under {high:g} ms"


def labs_on(links: Iterable[Link]) -> dict[str, Lab]:
    return {link.worker: link.lab for link in links if link.lab}


def _hash(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:24]


# --- choosing -------------------------------------------------------------------


def with_speedups(trials: Iterable[DraftTrial]) -> tuple[DraftTrial, ...]:
    found = tuple(trials)
    plain = next((one.tok_per_s for one in found if one.draft == NO_DRAFT), None)
    return tuple(
        replace(one, speedup=one.tok_per_s / plain if plain else None) for one in found
    )


def fastest(trials: Iterable[DraftTrial], given_up: Collection[str] = ()) -> str:
    """The draft with the largest gain, if that is worth a load; else none."""
    gains = {t.draft: t.speedup or 0.0 for t in trials if t.draft not in given_up}
    best = max(gains, key=lambda draft: gains[draft], default=NO_DRAFT)
    return best if gains.get(best, 0.0) >= WORTH else NO_DRAFT


def with_draft_text(draft: str) -> str:
    if draft == NO_DRAFT:
        return "without a draft"
    return f"with {PurePath(draft.rpartition(':')[2]).stem}"


def gain_text(draft: str, trials: Iterable[DraftTrial]) -> str:
    gain = next((t.speedup for t in trials if t.draft == draft), None)
    if gain is None:
        return "nothing could be compared"
    if draft == NO_DRAFT:
        return "no draft was faster"
    return f"{format_factor(gain)} against none"


# --- measuring ------------------------------------------------------------------


async def measure(port: int, slots: int) -> Measured:
    try:
        async with asyncio.timeout(TRIAL_S), ServerClient(port) as client:
            return await measured(client, slots)
    except TimeoutError as error:
        raise ControllerError(f"It took more than {TRIAL_S:g} s") from error


async def measured(client: ServerClient, slots: int) -> Measured:
    """Ask short questions, each for new text and for the same text once more.

    The fastest round of each question counts: other work on the machine only slows.
    """
    warm = await _answers(client, slots, _asking(QUESTIONS[-1]), TOKENS_MIN)
    slowest = min(timings.tok_per_s for _, timings in warm)
    limit = max(TOKENS_MIN, min(int(slowest * ANSWER_S), TOKENS_MAX))
    before = await client.counts()
    rates: dict[str, list[float]] = {question: [] for question in QUESTIONS}
    elapsed_s, tokens = 0.0, 0
    for number in range(ROUNDS_MAX):
        if elapsed_s >= (ENOUGH_S if number >= 2 * len(QUESTIONS) else SLOW_S):
            break
        question = QUESTIONS[number % len(QUESTIONS)]
        new = await _answers(client, slots, _asking(question), limit)
        again = await _answers(client, slots, _asking(question, new[0][0]), limit)
        timings = [one for _, one in (*new, *again)]
        rates[question].append(slots * _rate(timings))
        elapsed_s += sum(map(_seconds, timings)) / slots
        tokens += sum(one.tokens for one in timings)
    after = await client.counts()
    best = [max(each) for each in rates.values() if each]
    if min(best) <= 0:
        raise ControllerError("The answers were too short")
    drafted = after.acceptance.drafted - before.acceptance.drafted
    accepted = after.acceptance.accepted - before.acceptance.accepted
    # A count that was not told in time is zero.
    if not (drafted > 0 and 0 <= accepted <= drafted and accepted < tokens):
        return Measured(harmonic_mean(best), None)
    # A pass gives one token that was not drafted.
    passes = tokens - accepted
    return Measured(harmonic_mean(best), accepted / drafted, drafted / passes)


def _asking(question: str, answer: str = "") -> tuple[ChatMessage, ...]:
    asked = ChatMessage(role="user", content=question)
    if not answer:
        return (asked,)
    return (asked, ChatMessage(role="assistant", content=answer), asked)


async def _answers(
    client: ServerClient, slots: int, messages: tuple[ChatMessage, ...], tokens: int
) -> list[tuple[str, ChatTimings]]:
    try:
        async with asyncio.TaskGroup() as group:
            answers = (_answer(client, messages, tokens) for _ in range(slots))
            tasks = [group.create_task(one) for one in answers]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def _answer(
    client: ServerClient, messages: tuple[ChatMessage, ...], tokens: int
) -> tuple[str, ChatTimings]:
    sampling = Sampling(temperature=0.0, max_tokens=tokens)
    request = ChatRequest(messages=messages, sampling=sampling)
    text, last = "", ChatDelta()
    async with contextlib.aclosing(client.chat(request)) as deltas:
        async for delta in deltas:
            if delta.failure is not None:
                raise ControllerError(delta.failure.what)
            text += delta.text + delta.reasoning
            last = delta
    return text, last.timings or ChatTimings()


def _seconds(timings: ChatTimings) -> float:
    return timings.tokens / timings.tok_per_s if timings.tok_per_s else 0.0


def _rate(answers: Sequence[ChatTimings]) -> float:
    seconds = sum(map(_seconds, answers))
    tokens = sum(one.tokens - 1 for one in answers if one.tok_per_s)
    return tokens / seconds if seconds else 0.0
