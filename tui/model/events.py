"""Events in words, and the toasts of this console."""

from __future__ import annotations

import time
from typing import Literal, NamedTuple

from backends.state import DEFAULT_CLUSTER, Event, EventTone

SIGNS = {EventTone.INFORMATION: "·", EventTone.WARNING: "!", EventTone.ERROR: "✗"}


class Happening(NamedTuple):
    """A line of the events: from the cluster's events, or from this console."""

    at: float
    """Unix seconds."""
    tone: EventTone
    text: str
    event: Event | None = None
    """None for a toast of this console alone."""


def happening_of(event: Event) -> Happening:
    """An event as a line; another cluster than the default one is named."""
    where = "" if event.cluster in ("", DEFAULT_CLUSTER) else f"{event.cluster}: "
    text = f"{where}{event.sentence}"
    return Happening(event.at.timestamp(), event.tone, text, event)


def facts(happening: Happening) -> list[tuple[str, str]]:
    event = happening.event
    zone = time.localtime(happening.at)
    rows = [("when", time.strftime("%Y-%m-%d %H:%M:%S %z", zone))]
    if event is None:
        return [*rows, ("who", "this console told it")]
    rows += [
        ("who", f"{event.by.person} ({event.by.details})".lstrip(" ")),
        ("cluster", event.cluster),
        ("peer", event.peer),
        ("process", event.process),
        ("exit code", "" if event.exit_code is None else str(event.exit_code)),
        ("signal", "" if event.exit_signal is None else str(event.exit_signal)),
        ("to do", event.hint),
    ]
    return [(label, fact) for label, fact in rows if fact]


def details(event: Event) -> list[str]:
    """The details of an event beside its sentence: actor, cluster, hint."""
    where = f"cluster {event.cluster}" if event.cluster not in ("", "default") else ""
    who = event.by.details if event.by.program else ""
    first = " · ".join(filter(None, (who, where)))
    return [line for line in (first, event.hint) if line]


TOASTS_MAX = 200

Severity = Literal["information", "warning", "error"]
