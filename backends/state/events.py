"""The events of a cluster: person, act and time, with the evidence."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from backends.state.base import Value


class EventKind(StrEnum):
    LAUNCH = "launch"
    """Somebody asked for a plan."""
    STOP = "stop"
    """Somebody asked for the end."""
    DRAIN = "drain"
    """Somebody let requests wait, or go on; or answers ended before a new split."""
    SERVING = "serving"
    TAKEN_UP = "taken up"
    """Another controller looks after what serves."""
    STOPPED = "stopped"
    DIED = "died"
    """A process ended by itself."""
    FAILED = "failed"
    """The goal is not reached, for another reason."""
    WAITING = "waiting"
    """The goal waits for a machine."""
    WAY = "way"
    """The way to a worker has something to know about."""
    MENDED = "mended"
    DRAFT = "draft"
    """A draft was measured, or took another's place."""
    PEER = "peer"
    """A machine came, went or fell silent."""
    PEERS = "peers"
    """Somebody added or removed a machine, or put something there."""
    LAB = "lab"
    ENGINE = "engine"
    SETTINGS = "settings"


class EventTone(StrEnum):
    INFORMATION = "information"
    WARNING = "warning"
    ERROR = "error"


class Actor(Value, frozen=True, kw_only=True):
    """The author of an event; without a program it is the controller."""

    program: str = ""
    """``console``, or the command: ``up``."""
    user: str = ""
    host: str = ""
    pid: int = 0
    tty: str = ""
    """Its terminal, without ``/dev/``; empty where it has none."""

    @property
    def person(self) -> str:
        """``anna@studio``; empty for the controller."""
        return f"{self.user}@{self.host}" if self.program else ""

    @property
    def details(self) -> str:
        """``console, pid 4711 on pts/3``."""
        if not self.program:
            return "controller"
        where = f" on {self.tty}" if self.tty else ""
        return f"{self.program}, pid {self.pid}{where}"


class Event(Value, frozen=True, kw_only=True, omit_defaults=True):
    number: int
    """Grows by one from event to event."""
    at: datetime
    """Wall time, with its offset from UTC."""
    kind: EventKind
    text: str
    """One sentence; what a person did stands without who it was."""
    tone: EventTone = EventTone.INFORMATION
    by: Actor = Actor()
    cluster: str = ""
    """Empty for what concerns all of them."""
    peer: str = ""
    process: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    hint: str = ""
    """The way out."""
    evidence: tuple[str, ...] = ()
    """The last lines of the process's log."""

    @property
    def sentence(self) -> str:
        return f"{self.by.person} {self.text}" if self.by.program else self.text
