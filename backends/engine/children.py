"""Child processes of a build: own group, output read to the end, no orphans."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

T = TypeVar("T")
GRACE_S = 5.0
"""The time a group has to obey SIGTERM, then to vanish after SIGKILL."""
LINES_KEPT = 400
_CHUNK_BYTES = 65536


class Output:
    """The output of one child: its last lines, every line passed on, all logged."""

    def __init__(self, on_line: Callable[[str], None], log: BinaryIO | None) -> None:
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._on_line = on_line
        self._log = log
        self._rest = b""

    def feed(self, data: bytes) -> None:
        if self._log is not None:
            self._log.write(data)
            self._log.flush()
        *complete, self._rest = (self._rest + data).split(b"\n")
        for raw in complete:
            self._take(raw)

    def finish(self) -> None:
        """Take what came without a line end."""
        if self._rest:
            self._take(self._rest)
            self._rest = b""

    def _take(self, raw: bytes) -> None:
        line = raw.decode("utf-8", "replace").rstrip("\r")
        self.lines.append(line)
        self._on_line(line)


async def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    on_line: Callable[[str], None] = lambda _: None,
    log: BinaryIO | None = None,
    keep_fd: int | None = None,
) -> tuple[int, list[str]]:
    """Run a command to its end; its exit status and last lines.

    It gets its own session, so that Ctrl-C reaches us alone; when this is cancelled the
    whole group is ended before the cancellation goes on. ``keep_fd`` is inherited: a
    lock on it is held until the last child is gone, even if we are killed.
    """
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(env),
        start_new_session=True,
        pass_fds=() if keep_fd is None else (keep_fd,),
    )
    output = Output(on_line, log)
    try:
        assert child.stdout is not None
        while data := await child.stdout.read(_CHUNK_BYTES):
            output.feed(data)
        output.finish()
        return await child.wait(), list(output.lines)
    except BaseException:
        await _to_its_end(asyncio.ensure_future(_end(child)))
        raise


async def _to_its_end(task: asyncio.Future[Any]) -> None:
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    if not task.cancelled():
        task.exception()


async def _end(child: asyncio.subprocess.Process) -> None:
    # The group outlives its leader while any compiler runs, hence both waits.
    for sign in (signal.SIGTERM, signal.SIGKILL):
        _signal_group(child.pid, sign)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await child.wait()
                # The system tells nobody when the last of a group has ended.
                while _signal_group(child.pid, 0):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
                return


def _signal_group(group: int, sign: int) -> bool:
    try:
        os.killpg(group, sign)
    except (ProcessLookupError, PermissionError):
        return False
    return True


async def in_thread(work: Callable[[Callable[[], bool]], T]) -> T:
    """Run blocking work in a thread; ``work(stopped)`` must stop once told to.

    A thread cannot be cancelled: on cancellation it is told, and waited for.
    """
    stop = threading.Event()
    task = asyncio.ensure_future(asyncio.to_thread(work, stop.is_set))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop.set()
        await _to_its_end(task)
        raise
