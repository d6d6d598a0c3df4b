"""Process directories, as ``dllm-relay spawn`` writes them, read into records."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import msgspec
import psutil

from backends.errors import HostError
from backends.peers.host import ProcessRecord
from backends.peers.identity import is_same
from backends.state import ProcessRole, ProcessState, Value

if TYPE_CHECKING:
    from pathlib import Path

PROCESS_FILE = "process.json"
EXIT_FILE = "exit.json"
LOG_FILE = "log"

# A supervisor writes exit.json within milliseconds of the end of its child.
_EXIT_PATIENCE_S = 0.25
_EXIT_POLL_S = 0.005

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Meta(Value, frozen=True, kw_only=True):
    """What we ask spawn to keep with a process, so that adoption knows it."""

    role: ProcessRole = ProcessRole.OTHER
    port: int | None = None


class ProcessFile(Value, frozen=True, kw_only=True):
    """``process.json``: who the process is."""

    pid: int
    start_id: str
    supervisor_pid: int = 0
    supervisor_start_id: str = ""
    started_at: float = 0.0
    argv: tuple[str, ...] = ()
    meta: str = ""

    @property
    def alive(self) -> bool:
        """Whether the process exists and is not another with the same number."""
        return is_same(self.pid, self.start_id)

    @property
    def supervised(self) -> bool:
        """Whether somebody is still there to write how it ends."""
        return is_same(self.supervisor_pid, self.supervisor_start_id)


class ExitFile(Value, frozen=True, kw_only=True):
    """``exit.json``: how the process ended."""

    pid: int
    start_id: str
    code: int | None = None
    signal: int | None = None


def checked_name(name: str) -> str:
    """The name itself, if it can be a directory's.

    Raises:
        HostError: it could lead out of the run directory, or is too long.
    """
    if not _NAME.fullmatch(name):
        raise HostError(f"{name!r} cannot be the name of a process")
    return name


def read_process_file(directory: Path) -> ProcessFile | None:
    """``process.json``; None when there is none.

    Raises:
        HostError: it cannot be read or understood.
    """
    path = directory / PROCESS_FILE
    try:
        return decode_process(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HostError(
            f"{path} cannot be read ({error})",
            "Stop the process by its name to clean up.",
        ) from error


def read_record(directory: Path) -> ProcessRecord | None:
    """What a directory tells; None when it describes no process.

    One that cannot be understood is reported as an ended process with pid 0, so that
    it is listed, and cleaned up like any other. Blocks up to 0.25 s for the exit
    status of a process that ended this moment.
    """
    name, log_path = directory.name, str(directory / LOG_FILE)
    try:
        process = read_process_file(directory)
    except HostError:
        return unreadable_record(name, log_path)
    if process is None:
        return None
    if process.alive:
        return living_record(name, log_path, process, _rss_bytes(process.pid))
    end = _wait_for_exit_file(directory, process)
    return ended_record(name, log_path, process, end)


def read_records(run_dir: Path) -> list[ProcessRecord]:
    """What all process directories tell, by name.

    Raises:
        HostError: the run directory cannot be read.
    """
    found = (read_record(run_dir / name) for name in _names_in(run_dir))
    return [record for record in found if record is not None]


def _names_in(run_dir: Path) -> list[str]:
    try:
        found = [entry.name for entry in run_dir.iterdir() if entry.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise HostError(f"{run_dir} cannot be read ({error.strerror})") from error
    return sorted(name for name in found if _NAME.fullmatch(name))


def unreadable_record(name: str, log_path: str) -> ProcessRecord:
    """What is shown of a process whose ``process.json`` cannot be understood."""
    return ProcessRecord(
        name=name,
        role=ProcessRole.OTHER,
        state=ProcessState.EXITED,
        pid=0,
        argv=(),
        log_path=log_path,
    )


def living_record(
    name: str, log_path: str, process: ProcessFile, rss_bytes: int | None
) -> ProcessRecord:
    """What is shown of a process that runs."""
    record = _record(name, log_path, process, ProcessState.RUNNING)
    return msgspec.structs.replace(record, rss_bytes=rss_bytes)


def ended_record(
    name: str, log_path: str, process: ProcessFile, end: ExitFile | None
) -> ProcessRecord:
    """What is shown of a process that ended; without ``end``, nobody knows how."""
    record = _record(name, log_path, process, ProcessState.EXITED)
    if end is None:
        return record
    return msgspec.structs.replace(record, exit_code=end.code, exit_signal=end.signal)


def decode_process(data: bytes) -> ProcessFile:
    """``process.json``.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError: it is damaged.
    """
    return msgspec.json.decode(data, type=ProcessFile)


def decode_exit(data: bytes, process: ProcessFile) -> ExitFile | None:
    """``exit.json``; None when it is damaged or tells of another process."""
    try:
        end = msgspec.json.decode(data, type=ExitFile)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    ours = (end.pid, end.start_id) == (process.pid, process.start_id)
    return end if ours else None


def _meta(process: ProcessFile) -> Meta:
    try:
        return msgspec.json.decode(process.meta.encode(), type=Meta)
    except msgspec.DecodeError:
        return Meta()


def _record(
    name: str, log_path: str, process: ProcessFile, state: ProcessState
) -> ProcessRecord:
    meta = _meta(process)
    return ProcessRecord(
        name=name,
        role=meta.role,
        state=state,
        pid=process.pid,
        argv=process.argv,
        port=meta.port,
        started_at=process.started_at,
        log_path=log_path,
    )


def _wait_for_exit_file(directory: Path, process: ProcessFile) -> ExitFile | None:
    deadline = time.monotonic() + _EXIT_PATIENCE_S
    while True:
        # In this order: the supervisor ends only after it has written.
        last_look = not process.supervised or time.monotonic() > deadline
        end = _read_exit_file(directory, process)
        if end is not None or last_look:
            return end
        time.sleep(_EXIT_POLL_S)


def _read_exit_file(directory: Path, process: ProcessFile) -> ExitFile | None:
    try:
        return decode_exit((directory / EXIT_FILE).read_bytes(), process)
    except OSError:
        return None


def _rss_bytes(pid: int) -> int | None:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return None
