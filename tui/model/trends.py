"""The cluster's figures over the last minutes, from snapshots; bounded."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import NamedTuple

from backends.state import ClusterSnapshot, ProcessRole
from tui.model.facts import LiveFacts

STEP_S = 5.0
"""The time one column of a worker's history stands for."""
STEPS_MAX = 60
RATES_MAX = 400
HEAD = ""
"""Stands for llama-server's machine among the workers."""


class RateHistory:
    """One figure per second of generating; pauses collapse into one gap."""

    def __init__(self) -> None:
        self.columns: deque[float | None] = deque(maxlen=RATES_MAX)
        self.version = 0
        """Grows with every change."""
        self._second = -1

    def push(self, at: float, rate: float | None) -> bool:
        """Take a sample of a moment; True when a column changed."""
        newest = self.columns[-1] if self.columns else None
        if rate is not None and newest is not None and int(at) == self._second:
            changed = rate != newest
            self.columns[-1] = rate
        elif changed := rate is not None or newest is not None:
            self.columns.append(rate)
        if rate is not None:
            self._second = int(at)
        self.version += changed
        return changed


class TrendReading(NamedTuple):
    """The figures of the head or a worker at one moment; None if unknown."""

    compute_ms: float | None = None
    """Of a token, while tokens are generated."""
    cpu_cores: float | None = None
    rss_bytes: float | None = None
    bytes_per_s: float | None = None
    """Over the link, both ways together."""


NOTHING = TrendReading()


class Trend:
    """Readings of one worker as means of equal stretches of time, newest last."""

    def __init__(self) -> None:
        self.now = NOTHING
        self._past: deque[TrendReading] = deque(maxlen=STEPS_MAX - 1)
        self._readings: list[TrendReading] = []

    def add(self, reading: TrendReading) -> None:
        self.now = reading
        self._readings.append(reading)

    def step(self, count: int) -> None:
        """Begin a new stretch; a stretch without a reading repeats the one before."""
        self._past.append(_mean(self._readings))
        self._past.extend([self.now] * min(count - 1, STEPS_MAX))
        self._readings = [self.now]

    def series(self, figure: int) -> list[float | None]:
        return [reading[figure] for reading in (*self._past, _mean(self._readings))]


class Trends:
    """Histories of a cluster: its speed, and each worker's figures."""

    def __init__(self) -> None:
        self.rates = RateHistory()
        self.workers: dict[str, Trend] = {}
        """By worker, the head as ``HEAD`` first; those of the plan that runs."""
        self._step: int | None = None
        self._sampled = True
        self._last_rate: float | None = None
        self._tokens: int | None = None

    def add(self, facts: LiveFacts) -> None:
        snapshot = facts.snapshot
        self.rates.push(snapshot.at, self._rate(snapshot))
        step = int(snapshot.at / STEP_S)
        passed = 0 if self._step is None else step - self._step
        self._step = step
        for trend in self.workers.values() if passed > 0 else ():
            trend.step(passed)
        before, self.workers = self.workers, {}
        for name, reading in _readings(facts, self._generates(snapshot)):
            self.workers[name] = before.get(name) or Trend()
            self.workers[name].add(reading)

    def interrupt(self) -> None:
        """End every curve with a gap; the next reading continues none."""
        for trend in self.workers.values():
            trend.add(NOTHING)

    def _generates(self, snapshot: ClusterSnapshot) -> bool:
        before, self._tokens = self._tokens, snapshot.speed.tokens
        made = before is not None and snapshot.speed.tokens > before
        return made or snapshot.speed.tok_per_s is not None

    def _rate(self, snapshot: ClusterSnapshot) -> float | None:
        rate, last = snapshot.speed.tok_per_s, snapshot.speed.last_tok_per_s
        if rate is not None:
            self._sampled = True
            return rate
        if last != self._last_rate and not self._sampled:
            rate = last
        self._sampled, self._last_rate = False, last
        return rate


def _readings(facts: LiveFacts, generates: bool) -> Iterator[tuple[str, TrendReading]]:
    """The head's, then each worker's of the plan."""
    snapshot, totals = facts.snapshot, facts.totals
    if snapshot.plan is None:
        return
    computes: dict[str, float | None] = {HEAD: totals.head_ms}
    computes |= {times.worker: times.compute_ms for times in totals.workers}
    over = {link.worker: link for link in snapshot.links}
    running = {
        HEAD if one.role is ProcessRole.SERVER else one.name: one
        for one in snapshot.processes
        if one.pid and one.role in (ProcessRole.SERVER, ProcessRole.WORKER)
    }
    for name in (HEAD, *(worker.name for worker in snapshot.plan.workers)):
        link, process = over.get(name), running.get(name)
        rates = (link.bytes_per_s_up, link.bytes_per_s_down) if link else ()
        known = [rate for rate in rates if rate is not None]
        reading = TrendReading(
            compute_ms=computes.get(name) if generates else None,
            cpu_cores=process.cpu_cores if process else None,
            rss_bytes=process.rss_bytes if process else None,
            bytes_per_s=sum(known) if known else None,
        )
        yield name, reading


def _mean(readings: list[TrendReading]) -> TrendReading:
    return TrendReading(*map(_mean_known, zip(*readings, strict=True)))


def _mean_known(values: tuple[float | None, ...]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


# --- of a record ---------------------------------------------------------------

KEPT_EVERY_S = 5.0
Between = Callable[[float, float], Iterator[ClusterSnapshot]]


class TrendTrack:
    """Trends along a record: some are kept, the rest is computed on from them.

    Args:
        between: The snapshots after a moment, up to and with another.
    """

    def __init__(self, between: Between) -> None:
        self._between = between
        self._times = [-1.0]
        self._kept = [Trends()]

    def extend(self) -> None:
        """Keep the trends of some seconds later."""
        at_s = self._times[-1] + KEPT_EVERY_S
        self._kept.append(self._grown(deepcopy(self._kept[-1]), self._times[-1], at_s))
        self._times.append(at_s)

    def at(self, position_s: float) -> Trends:
        """The trends of a moment; of one far from all that are kept, its last ones."""
        index = bisect_right(self._times, position_s) - 1
        from_s = max(self._times[index], position_s - 2 * KEPT_EVERY_S)
        return self._grown(deepcopy(self._kept[index]), from_s, position_s)

    def _grown(self, trends: Trends, from_s: float, to_s: float) -> Trends:
        for snapshot in self._between(from_s, to_s):
            trends.add(LiveFacts.of(snapshot))
        return trends
