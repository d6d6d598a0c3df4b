"""What a controller must remember to be replaced: desired plan and last measurement."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from backends.config import write_private
from backends.state import MeasuredSplit, Plan, Value

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)


class Record(Value, frozen=True, kw_only=True):
    """The journal's content."""

    plan: Plan | None = None
    """The desired plan; None when nothing is to run."""
    measured: MeasuredSplit | None = None
    server_pid: int | None = None
    """The llama-server that ``measured`` is about."""
    served_since: float | None = None


class Journal:
    """A file with one ``Record``, replaced whole on every change."""

    def __init__(self, file: Path) -> None:
        """Remember the path; nothing is read or written yet."""
        self._file = file
        self.record = Record()

    def load(self) -> Record:
        """The last record written; an empty one where there is none to read."""
        try:
            self.record = msgspec.json.decode(self._file.read_bytes(), type=Record)
        except FileNotFoundError:
            self.record = Record()
        except (OSError, msgspec.DecodeError) as error:
            log.warning("journal %s not used: %s", self._file, error)
            self.record = Record()
        return self.record

    def save(self, record: Record) -> None:
        """Replace the record; a full disk costs adoption, not the cluster."""
        if record == self.record and self._file.exists():
            return
        self.record = record
        try:
            write_private(self._file, msgspec.json.encode(record))
        except OSError as error:
            log.error("journal %s not written: %s", self._file, error)
