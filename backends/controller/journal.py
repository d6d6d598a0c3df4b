"""The state of a cluster that survives its controller: above all, the goal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

import msgspec

from backends.errors import ControllerError
from backends.gateway.control_messages import Target
from backends.gateway.listen_settings import ApiSettings
from backends.state import (
    NOT_JSON,
    Failure,
    Lab,
    Leftover,
    MeasuredSplit,
    Plan,
    RolledBack,
    Value,
)
from backends.state.base import json_bytes
from backends.writing import write_private

log = logging.getLogger(__name__)

VERSION = 2
"""Changes when an older controller would misread the file."""
HANGS_S = 5.0
"""A disk that hangs for longer costs adoption, not the cluster."""


class Goal(Value, frozen=True, kw_only=True):
    """The last request of a person; it holds until the next one."""

    generation: int = 0
    """Counts the requests for a goal; 0 before the first."""
    plan: Plan | None = None
    """The plan to run; None if the cluster is to be stopped."""
    api: ApiSettings | None = None
    """The API settings; None, of an earlier release: those of the file count."""
    rolled_back_to: int = 0
    """Generation that first requested this; 0 unless a launch failed in between."""


class Baseline(Value, frozen=True, kw_only=True):
    """The goal and labs before a comparison, to go back to when that ends."""

    plan: Plan | None = None
    """The plan that was wanted; None if nothing was."""
    api: ApiSettings | None = None
    labs: dict[str, Lab | None] = {}
    """By worker."""


class ReplacedServer(Value, frozen=True, kw_only=True):
    """The server behind the gateway when another plan was requested."""

    target: Target
    api_port: int


class Record(Value, frozen=True, kw_only=True):
    version: int = VERSION
    goal: Goal = Goal()
    failure: Failure | None = None
    """Why the goal is not reached and nothing more is tried; None while it is pursued.
    """
    secret: str = ""
    """The source of the keys of this goal's relays; empty before there are any.

    A relay that any controller starts again has the key of the other end."""
    waits_for: tuple[str, ...] = ()
    """Machines whose return mends ``failure``."""
    measured: MeasuredSplit | None = None
    server: str = ""
    """Incarnation of the llama-server that ``measured`` is about."""
    served_since: float | None = None
    before: Goal | None = None
    """The last goal that served, until this one does: a launch that fails goes back to
    it."""
    rolled_back: RolledBack | None = None
    """The launch whose failure made this the goal again."""
    stand_in: Plan | None = None
    """The plan that runs in place of the goal's while a machine of it is gone."""
    given_up: tuple[str, ...] = ()
    """Workers that died again and again, or cannot be started again: ``stand_in`` does
    without them until all that was asked for is begun anew."""
    replaces: ReplacedServer | None = None
    """The server that serves until the goal's plan takes its place.

    Its answers end first, also with another controller.
    """
    goes_back_to: Baseline | None = None
    """Set while the goal or the labs are only part of a comparison.

    Another controller finds that comparison over.
    """
    labs: dict[str, Lab | None] = {}
    """Limits that a person put on the links, by worker.

    They stay for the launches that follow, until the cluster is stopped.
    """
    drained_since: float | None = None
    """Unix seconds from which on requests wait because a person said so."""
    unwatched_deaths: int = 0
    """Times that a controller found the cluster ended after serving only briefly."""
    leftovers: tuple[Leftover, ...] = ()
    """Processes that could not be stopped; they end when their machine is back."""

    @property
    def running(self) -> Plan | None:
        return self.stand_in or self.goal.plan

    def __repr__(self) -> str:
        return f"Record(goal={self.goal!r}, failure={self.failure!r})"


class _Version(Value, frozen=True, kw_only=True):
    version: int


class Journal:
    """A file with one ``Record``, replaced whole on every change.

    A thread writes: a slow disk must not hold up what the event loop carries.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._is_committing = False
        self.record = Record()
        self.is_behind = False
        """True if the file lacks the last change."""

    def load(self) -> Record:
        """The last record written; an empty one if there is no file.

        Raises:
            ControllerError: the file cannot be read or understood, or a newer version
                wrote it. What it tells of must be left alone until somebody decides.
        """
        # An empty task returns once every earlier write has ended.
        _disk().submit(int).result()
        try:
            raw = self._file.read_bytes()
            version = msgspec.json.decode(raw, type=_Version).version
            if version > VERSION:
                raise ControllerError(
                    f"{self._file} was written by a newer dllm-tui (journal {version}, "
                    f"this one reads {VERSION}): what runs is left alone",
                    "Use that version again, or stop: dllm-tui down.",
                )
            if version < VERSION:
                raise ValueError(f"it is of version {version}")
            self.record = msgspec.json.decode(raw, type=Record)
        except FileNotFoundError:
            self.record = Record()
        except (OSError, *NOT_JSON) as error:
            raise ControllerError(
                f"{self._file} cannot be understood ({error}): what runs is left alone",
                "End it with: dllm-tui down.",
            ) from error
        return self.record

    async def commit(self, change: Callable[[Record], Record]) -> None:
        """Write the changed record, and go by it once it is written.

        What else changes meanwhile is changed in the same way.

        Raises:
            ControllerError: it cannot be written; the record is the one before.
        """
        self._is_committing = True
        changed = change(self.record)
        try:
            await asyncio.wrap_future(self._submit(changed))
        except OSError as error:
            self._submit(self.record)
            raise ControllerError(
                f"{self._file} cannot be written ({error.strerror})",
                "Make room for it, or let it be written.",
            ) from error
        except asyncio.CancelledError:
            # Whoever asked left; the thread may have written it all the same.
            self._submit(self.record)
            raise
        else:
            self.record = change(self.record)
            if self.record != changed:
                self._submit(self.record)
        finally:
            self._is_committing = False

    def save(self, record: Record) -> None:
        """Replace the record; a full disk costs adoption, not the cluster."""
        is_written = self._file.exists() and not self.is_behind
        if record == self.record and is_written:
            return
        self.record = record
        if not self._is_committing:
            self._submit(record)

    def change(self, **changes: object) -> None:
        self.save(msgspec.structs.replace(self.record, **changes))

    async def written(self) -> None:
        """Wait until the file tells of every change, or could not be written."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HANGS_S):
                await asyncio.wrap_future(_disk().submit(int))

    def set_aside(self) -> None:
        with contextlib.suppress(OSError):
            self._file.replace(self._file.with_suffix(".unreadable"))

    def _submit(self, record: Record) -> Future[None]:
        return _disk().submit(self._write, record)

    def _write(self, record: Record) -> None:
        """Replace the file; a record that wants nothing needs no room.

        No file says the same.
        """
        try:
            write_private(self._file, json_bytes(record))
        except OSError as error:
            log.error("journal %s not written: %s", self._file, error)
            self.is_behind = True
            if record.goal.plan is not None:
                raise
            self._file.unlink(missing_ok=True)
        self.is_behind = False


@cache
def _disk() -> ThreadPoolExecutor:
    # One thread writes all journals, in the order in which they changed.
    return ThreadPoolExecutor(1, "journal")
