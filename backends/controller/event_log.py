"""Record the events of all clusters: numbered, stored, and sent to subscribers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from backends.state import Actor, Event, EventKind, EventTone

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.controller.event_files import EventFiles
    from backends.state import Failure

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
        """Number of the last event; 0 before the first."""
        return self._events[-1].number if self._events else 0

    def after(self, number: int) -> tuple[Event, ...]:
        """The events with greater numbers, oldest first."""
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
        """Add an event; ``failure`` gives process, exit and evidence.

        A fault of ours costs the event, and nothing else.
        """
        try:
            self._add(kind, text, by, tone, cluster, peer, failure)
        except Exception:
            log.exception("an event was not told: %s", text)

    def _add(
        self,
        kind: EventKind,
        text: str,
        by: Actor,
        tone: EventTone,
        cluster: str,
        peer: str,
        failure: Failure | None,
    ) -> None:
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
            process=failure.process if failure else "",
            exit_code=failure.exit_code if failure else None,
            exit_signal=failure.exit_signal if failure else None,
            hint=_clipped(failure.hint) if failure else "",
            evidence=_evidence(failure),
        )
        self._events.append(event)
        self._files.append(event)
        self._told(event.number)

    def tell_settled(self, key: str, tell: Callable[[], None]) -> None:
        """Tell once nothing newer came under that key for a moment."""
        if key in self._settling:
            self._settling.pop(key)[0].cancel()
        timer = asyncio.get_running_loop().call_later(SETTLE_S, self._settle, key)
        self._settling[key] = timer, tell

    def _settle(self, key: str) -> None:
        self._settling.pop(key)[1]()

    def close(self) -> None:
        """Tell what has not settled: nobody will later."""
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


def _evidence(failure: Failure | None) -> tuple[str, ...]:
    lines = failure.log_tail[-EVIDENCE_LINES_MAX:] if failure else ()
    return tuple(map(_clipped, lines))
