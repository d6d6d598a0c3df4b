"""Record the events of all clusters: numbered, stored, and sent to subscribers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from backends.state import NOT_JSON, Actor, Event, EventKind, EventTone, Failure, Value
from backends.state.base import json_bytes
from backends.writing import append_line

log = logging.getLogger(__name__)

EVENTS_MAX = 2000
REPEAT_S = 60.0
"""The same thing again within so long is no news."""
SETTLE_S = 1.0
"""A value that changes again within this time was on its way to another."""
EVIDENCE_LINES_MAX = 15
TEXT_MAX = 400
CONTROLLER = Actor()


class EventLog:
    """Takes events; reports the newest number to its subscribers.

    It goes on from the events in ``files``; ``clock`` gives Unix seconds.
    """

    def __init__(
        self,
        files: EventFiles,
        told: Callable[[int], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._files = files
        self._told = told
        self._clock = clock
        self._events = deque(files.read(), maxlen=EVENTS_MAX)
        self._recent: dict[tuple[str, ...], float] = {}
        self._settling: dict[str, tuple[asyncio.TimerHandle, Callable[[], None]]] = {}

    @property
    def newest(self) -> int:
        return self._events[-1].number if self._events else 0

    def after(self, number: int) -> tuple[Event, ...]:
        return tuple(event for event in self._events if event.number > number)

    def tell(
        self,
        kind: EventKind,
        text: str,
        *,
        by: Actor = CONTROLLER,
        tone: EventTone = EventTone.INFORMATION,
        cluster: str = "",
        peer: str = "",
        failure: Failure | None = None,
    ) -> None:
        """Add an event; ``failure`` gives process, exit and evidence."""
        failure = failure or Failure(what=text)
        try:
            if not by.program and self._is_repeated(kind, cluster, peer, text):
                return
            event = Event(
                number=self.newest + 1,
                at=datetime.fromtimestamp(self._clock(), UTC),
                kind=kind,
                text=_clipped(text),
                tone=tone,
                by=by,
                cluster=cluster,
                peer=peer,
                process=failure.process,
                exit_code=failure.exit_code,
                exit_signal=failure.exit_signal,
                hint=_clipped(failure.hint),
                evidence=tuple(map(_clipped, failure.log_tail[-EVIDENCE_LINES_MAX:])),
            )
            self._events.append(event)
            self._files.append(event)
            self._told(event.number)
        except Exception:
            log.exception("an event was not told: %s", text)

    def tell_settled(self, key: str, tell: Callable[[], None]) -> None:
        """Tell once nothing newer came under that key for a moment."""
        if key in self._settling:
            self._settling.pop(key)[0].cancel()
        timer = asyncio.get_running_loop().call_later(SETTLE_S, self._settle, key)
        self._settling[key] = timer, tell

    def _settle(self, key: str) -> None:
        self._settling.pop(key)[1]()

    def close(self) -> None:
        for key in list(self._settling):
            self._settling[key][0].cancel()
            self._settle(key)

    def _is_repeated(self, *what: str) -> bool:
        now = self._clock()
        self._recent = {k: at for k, at in self._recent.items() if now - at < REPEAT_S}
        repeated = what in self._recent
        self._recent.setdefault(what, now)
        return repeated


def _clipped(text: str) -> str:
    # It may come from another machine.
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


VERSION = 1
"""Changes when an older controller would misread a line."""
KEPT_DAYS = 7
FILE_BYTES_MAX = 512 << 10
FILES_BYTES_MAX = 4 << 20
_DAY_S = 86_400.0


class _Line(Value, frozen=True, kw_only=True):
    v: int
    event: Event


class EventFiles:
    """A folder with a file a day, or more on busy days.

    The name of each file is the number of its first event. ``clock`` gives Unix
    seconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._failing = False

    def read(self) -> Iterator[Event]:
        """Return the events of the last days, oldest first."""
        oldest = datetime.fromtimestamp(self._clock(), UTC) - timedelta(days=KEPT_DAYS)
        for file in self._files():
            with contextlib.suppress(OSError):
                for raw in file.read_bytes().splitlines():
                    with contextlib.suppress(*NOT_JSON):
                        event = msgspec.json.decode(raw, type=_Line).event
                        if event.at >= oldest:
                            yield event

    def append(self, event: Event) -> None:
        try:
            file = self._current() or self._begun(event.number)
            append_line(file, json_bytes(_Line(v=VERSION, event=event)))
        except OSError as error:
            if not self._failing:
                log.error("events are not written to %s: %s", self._folder, error)
            self._failing = True
        else:
            self._failing = False

    def _current(self) -> Path | None:
        files = self._files()
        if not files:
            return None
        status = files[-1].stat()
        today = status.st_mtime // _DAY_S == self._clock() // _DAY_S
        return files[-1] if today and status.st_size < FILE_BYTES_MAX else None

    def _begun(self, number: int) -> Path:
        files = self._files()
        sizes = [file.stat().st_size for file in files]
        for index, file in enumerate(files):
            old = file.stat().st_mtime < self._clock() - KEPT_DAYS * _DAY_S
            if old or sum(sizes[index:]) > FILES_BYTES_MAX - FILE_BYTES_MAX:
                file.unlink(missing_ok=True)
        return self._folder / f"{number:010}.jsonl"

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("*.jsonl"))
