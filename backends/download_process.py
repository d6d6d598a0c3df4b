"""Getting a file in a process of its own: it can be ended at any moment.

The process prints its progress as lines of JSON, and ends when its parent does.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from backends.errors import DllmError, MachineError, UsageError
from backends.printable import printable
from backends.state import Failure, Value
from backends.state.models import Download

T = TypeVar("T")

GRACE_S = 5.0
LINE_BYTES_MAX = 1 << 20
PROGRESS_EVERY_S = 0.2
RESUME = "The same command resumes."


_KINDS = {kind.__name__: kind for kind in (UsageError, MachineError)}


class DownloadFailure(Value, frozen=True, kw_only=True):
    """Why the process did not get the file."""

    failure: Failure
    kind: str = ""
    """``UsageError`` or ``MachineError``; else it is a ``DllmError``."""


async def downloaded(
    module: str, args: Sequence[str], what: str, env: Mapping[str, str] | None = None
) -> AsyncGenerator[Download, None]:
    """Run a module that downloads; the last value has a path. Closing this ends it."""
    whole = False
    async with aclosing(lines_of(module, args, what, Download, env)) as told:
        async for one in told:
            whole = bool(one.path)
            yield one
    if not whole:
        raise DllmError(f"Getting {what} ended early", RESUME)


async def lines_of(
    module: str,
    args: Sequence[str],
    what: str,
    kind: type[T],
    env: Mapping[str, str] | None = None,
) -> AsyncGenerator[T, None]:
    """The lines of a module that asks the network. Closing this ends it."""
    # -P: a folder named backends in the working directory must not be imported.
    argv = [sys.executable, "-P", "-m", module, *args]
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=dict(os.environ if env is None else env),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=LINE_BYTES_MAX,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said = asyncio.create_task(process.stderr.read())
    try:
        async for line in process.stdout:
            if line.startswith(b'{"failure"'):
                ended = msgspec.json.decode(line, type=DownloadFailure)
                error = _KINDS.get(ended.kind, DllmError)
                raise error(ended.failure.what, ended.failure.hint)
            yield msgspec.json.decode(line, type=kind)
        if await process.wait():
            last = (await said).decode(errors="replace").strip().rpartition("\n")[2]
            raise DllmError(
                f"Getting {what} ended early{f' ({last})' if last else ''}", RESUME
            )
    finally:
        await _end(process)
        said.cancel()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode != 0:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, sign)
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE_S):
                    await process.wait()
                    return


# --- inside of it --------------------------------------------------------------------


class DownloadProgress:
    """Prints how far it is, a few times a second."""

    def __init__(self) -> None:
        self.file = ""
        self.before_bytes = 0
        """Of files that are whole."""
        self.done_bytes = 0
        self.size_bytes = 0
        self._printed_at = 0.0

    def begin(self, file: str, size_bytes: int = 0, done_bytes: int = 0) -> None:
        self.file = file
        self.size_bytes = size_bytes or self.size_bytes
        self.done_bytes = done_bytes or self.done_bytes
        self._print()

    def at(self, done_bytes: int) -> None:
        self.done_bytes = self.before_bytes + done_bytes
        if time.monotonic() - self._printed_at >= PROGRESS_EVERY_S:
            self._print()

    def whole(self, path: Path, verified_by: str) -> None:
        self.file = path.name
        self.size_bytes = self.size_bytes or path.stat().st_size
        self.done_bytes = self.size_bytes
        self._print(path=str(path), verified_by=verified_by)

    def _print(self, **more: str) -> None:
        self._printed_at = time.monotonic()
        told = Download(
            file=printable(self.file),
            done_bytes=self.done_bytes,
            size_bytes=self.size_bytes,
            **more,
        )
        print_line(told)


def print_line(value: Value) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def run_download(
    work: Callable[[DownloadProgress], None], what: str, folder: str
) -> int:
    """Do the work of this process; print its progress, and why it failed."""
    return run(lambda: work(DownloadProgress()), what, folder)


def run(work: Callable[[], None], what: str, folder: str) -> int:
    """Do the work of a process that its parent ends; print why it failed."""
    # What is cleaned up at the end is cleaned up at SIGTERM, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work()
        return 0
    except DllmError as error:
        told = error
    except OSError as error:
        told = _disk(error, folder)
    except Exception as error:
        why = printable(f"{type(error).__name__}: {error}")
        told = DllmError(f"The answer of {what} is not understood ({why})")
    print_line(DownloadFailure(failure=told.failure(), kind=type(told).__name__))
    return 1


def _end_with_parent() -> None:
    # Unbuffered: a buffer's lock would abort the interpreter at its end.
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.killpg(0, signal.SIGTERM)


def _disk(error: OSError, place: object) -> DllmError:
    where = printable(str(error.filename or place))
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return MachineError(f"The disk of {where} is full", f"Make room. {RESUME}")
    return MachineError(
        f"Cannot write to {where} ({error.strerror})", "Check its folder."
    )
