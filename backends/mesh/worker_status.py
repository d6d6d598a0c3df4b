"""The status of a worker: limits, use, consoles and log; in a file for ``status``."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from backends.errors import MachineError
from backends.mesh.owner_limits import OwnerLimits
from backends.state import NOT_JSON, Value
from backends.state.base import json_bytes
from backends.writing import write_private

log = logging.getLogger(__name__)


class LogEntry(Value, frozen=True, kw_only=True):
    at: float
    """Unix seconds."""
    text: str


class TenantState(Value, frozen=True, kw_only=True):
    """A console's use of this machine now."""

    name: str
    connected: bool = False
    way: str = ""
    """``tcp``, ``quic`` directly, or ``relay``; empty: away."""
    address: str = ""
    """Of the console as it is seen here, or of the relay."""
    rtt_ms: float | None = None
    processes: int = 0
    devices: tuple[str, ...] = ()
    memory_bytes: int = 0
    """Main memory of its processes."""


class WorkerStatus(Value, frozen=True, kw_only=True):
    name: str
    pid: int
    refusal: str = ""
    """Why nothing is lent now; empty while it is."""
    ways: tuple[str, ...] = ()
    """By which consoles reach it; none if it dials alone."""
    limits: OwnerLimits
    used_bytes: int = 0
    """Main memory of all consoles together."""
    consoles: tuple[TenantState, ...] = ()
    log: tuple[LogEntry, ...] = ()
    """The newest last."""


class StatusFile:
    """The file of a running worker's status; its owner alone can read it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: WorkerStatus | None = None

    def write(self, status: WorkerStatus) -> None:
        if status == self._written:
            return
        try:
            write_private(self._path, json_bytes(status), durable=False)
        except OSError as error:
            raise MachineError(
                f"The status {self._path} cannot be written ({error.strerror})",
                "Is the disk full, or its folder not yours?",
            ) from error
        self._written = status

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)

    def read(self, pid: int) -> WorkerStatus:
        """The status of the worker of this process id.

        Raises:
            MachineError: there is none yet, or it makes no sense.
        """
        try:
            told = msgspec.json.decode(self._path.read_bytes(), type=WorkerStatus)
            if told.pid == pid:
                return told
        except (OSError, *NOT_JSON) as error:
            log.info("%s: %s", self._path, error)
        # One that was killed has left its own.
        raise MachineError(
            f"The worker here tells no status in {self._path}",
            "It may have begun just now: try again.",
        )
