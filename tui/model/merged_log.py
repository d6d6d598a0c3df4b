"""The logs of several processes as one, in the order of time.

A line has the time that it tells itself, of a clock or since its process started. One
that tells none has that of the line before it, or the time at which it came. From times
of another machine the seconds that its clock is ahead of ours are taken away.
"""

from __future__ import annotations

import heapq
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from backends.errors import DllmError
from backends.machine_names import LOCAL
from backends.state import (
    ClusterSnapshot,
    LogChunk,
    ProcessInfo,
    ProcessRole,
    ProcessState,
)
from backends.tasks import gather_or_cancel

CONTROLLER = ProcessInfo(
    name="controller", role=ProcessRole.CONTROLLER, state=ProcessState.RUNNING
)
TAIL_BYTES = 65_536
"""Read of a log when it is opened."""
NAME_CELLS = 13
"""For a process's name: that of most relays."""
PAGE_BYTES = 262_144
CHARACTER_BYTES_MAX = 4
DAY_S = 86_400.0
AHEAD_MOST_S = 1e9
_STAMPED = re.compile(
    r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]\d{3})(Z?) "
    r"(?:(INFO|WARNING|ERROR|DEBUG|CRITICAL) )?"
)
_SINCE_START = re.compile(r"(\d{1,7})\.(\d\d)\.(\d{3})\.(\d{3}) (?=[IWED] )")
_LETTERS = {"INFO": "I", "WARNING": "W", "ERROR": "E", "DEBUG": "D", "CRITICAL": "E"}

Read = Callable[[str, int, int], Awaitable[LogChunk]]


def fills_page(chunk: LogChunk) -> bool:
    """Return true if there may be more to read at once."""
    # A page ends with a whole character.
    return chunk.next_offset - chunk.offset > PAGE_BYTES - CHARACTER_BYTES_MAX


class LogLine(NamedTuple):
    at: float
    """Unix seconds, by our clock."""
    told: bool
    """The line tells its time itself; else it is close."""
    process: str
    """Its name, with its machine if that is another: ``worker1@mini``."""
    text: str
    """Without its own time; its level is a letter before it."""

    def shown(self, name_cells: int) -> str:
        """``15:04:16.343 llama-server │ I srv …``; ``~`` marks a time that is close."""
        clock = time.strftime("%H:%M:%S", time.localtime(self.at))
        ms = int(self.at % 1 * 1000)
        sign = " " if self.told else "~"
        return f"{sign}{clock}.{ms:03d} {self.process:{name_cells}} │ {self.text}"


def shown_lines(lines: Sequence[LogLine]) -> list[str]:
    """The lines as people read them, in columns of one width."""
    cells = max((NAME_CELLS, *(len(line.process) for line in lines)))
    return [line.shown(cells) for line in lines]


class LineClock:
    """Tells the time of each line of one process's log, never going back.

    Args:
        ahead_s: By so much its machine's clock is ahead of ours.
    """

    def __init__(self, process: str, started_at: float, ahead_s: float = 0.0) -> None:
        self._process = process
        self._started_at = started_at
        self._ahead_s = ahead_s
        self._tells = False
        """A line has told its time: those that tell none go on after it."""
        self._last = 0.0
        if started_at and _is_possible(started_at - ahead_s):
            self._last = started_at - ahead_s

    def line(self, raw: str, seen_at: float | None = None) -> LogLine:
        """Read a line, which was ``seen_at`` if it came while it was looked for."""
        at, text = self._told(raw)
        told = at is not None and _is_possible(at)
        if at is None or not told:
            text = raw
            at = self._last if seen_at is None or self._tells else seen_at
        self._tells |= told
        self._last = max(at, self._last)
        return LogLine(self._last, told, self._process, text)

    def _told(self, raw: str) -> tuple[float | None, str]:
        if found := _STAMPED.match(raw):
            clock = found[1].replace(",", ".") + ("+00:00" if found[2] else "")
            try:
                at = datetime.fromisoformat(clock).timestamp()
            except (ValueError, OverflowError):
                return None, raw
            level = f"{_LETTERS[found[3]]} " if found[3] else ""
            return at - self._ahead_s, level + raw[found.end() :]
        if self._started_at and (since := _SINCE_START.match(raw)):
            minutes, seconds, ms, us = map(int, since.groups())
            passed_s = minutes * 60 + seconds + ms / 1e3 + us / 1e6
            at = self._started_at + passed_s - self._ahead_s
            return at, raw[since.end() :]
        return None, raw


class _Part:
    """The log of one process, read on from where it was left."""

    def __init__(self, info: ProcessInfo, ahead_s: float, tail_bytes: int) -> None:
        name = info.name if info.peer == LOCAL else f"{info.name}@{info.peer}"
        self._name, self._info = name, info
        self._clock = LineClock(name, info.started_at, ahead_s)
        self._offset = -tail_bytes
        self._rest = ""
        self._trouble = ""
        self._restart_seen = False
        self.is_behind = False
        """There was more than could be read at one go."""

    def update(self, info: ProcessInfo, ahead_s: float) -> None:
        """Take newer facts; another start under the same name is read from 0."""
        before, self._info = self._info.started_at, info
        if before == info.started_at:
            return
        self._clock = LineClock(self._name, info.started_at, ahead_s)
        if before and not self._restart_seen:
            self._offset, self._rest = 0, ""
        self._restart_seen = False

    async def more(
        self, read: Read, seen_at: float, *, unfinished: bool
    ) -> list[LogLine]:
        self.is_behind = False
        begun = self._offset >= 0
        try:
            limit = PAGE_BYTES if begun else -self._offset
            chunk = await read(self._info.name, self._offset, limit)
        except DllmError as error:
            told, self._trouble = self._trouble, str(error)
            said = [] if told == self._trouble else [f"E cannot be read: {error}"]
            return [LogLine(seen_at, True, self._name, text) for text in said]
        self._trouble = ""
        if chunk.restarted:
            # Its first lines are read when it is known when they began.
            self._restart_seen, self._offset, self._rest = True, 0, ""
            return []
        text = chunk.text
        if not begun and chunk.offset > 0:
            text = text.partition("\n")[2]
        *whole, self._rest = (self._rest + text).split("\n")
        self._offset = chunk.next_offset
        self.is_behind = begun and fills_page(chunk)
        ended = self._info.state is ProcessState.EXITED and not chunk.text
        if self._rest and (unfinished or ended):
            whole.append(self._rest)
            self._rest = ""
        return [self._clock.line(line, seen_at if begun else None) for line in whole]


class MergedLog:
    """Reads the logs of all processes, of which each call gives the new lines."""

    def __init__(self, read: Read, *, tail_bytes: int = TAIL_BYTES) -> None:
        self._read = read
        self._tail_bytes = tail_bytes
        self._parts: dict[tuple[str, str], _Part] = {}

    @property
    def is_behind(self) -> bool:
        """There is more to read at once."""
        return any(part.is_behind for part in self._parts.values())

    async def more(
        self,
        snapshot: ClusterSnapshot,
        names: Sequence[str] = (),
        *,
        unfinished: bool = False,
    ) -> list[LogLine]:
        """The lines that came since the last call, of all processes or those named.

        The last line of one that runs waits for its end, unless ``unfinished``.
        """
        infos = list(snapshot.processes)
        if all(info.name != CONTROLLER.name for info in infos):
            infos.insert(0, CONTROLLER)
        ahead = clocks_ahead(snapshot)
        parts = {}
        for info in infos:
            if not names or info.name in names:
                key, ahead_s = (info.name, info.peer), ahead.get(info.peer, 0.0)
                part = self._parts.get(key) or _Part(info, ahead_s, self._tail_bytes)
                part.update(info, ahead_s)
                parts[key] = part
        self._parts, seen_at = parts, time.time()
        return by_time(
            await gather_or_cancel(
                part.more(self._read, seen_at, unfinished=unfinished)
                for part in parts.values()
            )
        )


def by_time(logs: Iterable[Sequence[LogLine]]) -> list[LogLine]:
    """Put logs together by time; lines of one log stay in their order."""
    return list(heapq.merge(*logs, key=lambda line: line.at))


def clocks_ahead(snapshot: ClusterSnapshot) -> dict[str, float]:
    """By how many seconds each machine's clock is ahead of ours, as last probed."""
    found = {p.name: p.facts.clock_offset_s for p in snapshot.peers if p.facts}
    return {name: s for name, s in found.items() if abs(s) <= AHEAD_MOST_S}


def _is_possible(at: float) -> bool:
    # A log may tell any time, and one of the future would be that of all after it.
    return 0 <= at <= time.time() + DAY_S
