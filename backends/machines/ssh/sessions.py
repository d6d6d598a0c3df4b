"""Programs run over an SSH connection: a script to its end, or one that is held."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
import signal
from collections import deque
from collections.abc import Callable, Sequence

import asyncssh

from backends.errors import MachineError
from backends.machines.shell import ShellResult
from backends.printable import last_line
from backends.tasks import end_tasks

STDOUT_LIMIT_BYTES = 4 << 20
STDERR_LIMIT_BYTES = 64 << 10
END_TIMEOUT_S = 5.0
"""Longest time a script may take to die when it is ended."""

_SESSION_RETRIES_S = (0.05, 0.2, 1.0)

# All that the login shell, whichever it is, ever sees.
_COMMAND = "exec /bin/sh -s"
_CHUNK_BYTES = 64 << 10
_MARK_BYTES = 1024 << 10
"""Most that a login shell may print before the start."""

# The braces make sh read all of it before it starts: the watcher then has the rest of
# stdin to itself. When that ends, because the script has ended, the channel was closed
# or the connection is gone, it kills all that is left of the script's process group; a
# session's command leads one of its own. What is to stay must have its own session.
_FRAME = r"""{{
LC_ALL=C; export LC_ALL
set -- {arguments}
exec 3<&0 </dev/null
(while read -r dllm_; do :; done; kill -s KILL -- -$$) <&3 >/dev/null 2>&1 &
exec 3<&-
printf '%s\n' {mark}; printf '%s\n' {mark} >&2
(eval {script})
exit $?
}}
"""

Process = asyncssh.SSHClientProcess[bytes]


async def run_script(
    connection: asyncssh.SSHClientConnection,
    name: str,
    script: str,
    args: Sequence[str] = (),
    *,
    timeout_s: float | None,
    on_line: Callable[[str], None] | None = None,
) -> ShellResult:
    """Run a script as ``Shell.run`` does, whatever status it ends with.

    With ``on_line`` only the last 4 MB of stdout are kept for the result.
    """
    if any("\0" in text for text in (script, *args)):
        raise MachineError(f"A command for {name} contains a NUL character")
    mark = secrets.token_hex(16)
    framed = _FRAME.format(
        arguments=" ".join(shlex.quote(arg) for arg in args),
        mark=mark,
        script=shlex.quote(script),
    )
    text = framed.encode("utf-8", "surrogateescape")
    session = _Session(name, mark.encode(), on_line)
    try:
        async with asyncio.timeout(timeout_s):
            return await session.run(connection, text)
    except TimeoutError as error:
        raise MachineError(
            f"A command on {name} took longer than {timeout_s:g} s"
            + session.last_words(),
            "The machine may be overloaded; try again.",
        ) from error


async def open_session(connection: asyncssh.SSHClientConnection, name: str) -> Process:
    # A session that has just ended may still count for sshd's MaxSessions.
    for pause_s in (*_SESSION_RETRIES_S, None):
        try:
            return await connection.create_process(_COMMAND, encoding=None)
        except asyncssh.ChannelOpenError as error:
            if pause_s is None or connection.is_closed():
                raise MachineError(
                    f"{name} opens no further session ({error.reason})",
                    "Raise MaxSessions in its sshd_config.",
                ) from error
            await asyncio.sleep(pause_s)
    raise AssertionError


class _Session:
    def __init__(
        self, name: str, mark: bytes, on_line: Callable[[str], None] | None
    ) -> None:
        self._name = name
        self._stdout = _Output(mark, on_line)
        self._stderr = _Output(mark, None)
        self._follows = on_line is not None

    async def run(
        self, connection: asyncssh.SSHClientConnection, text: bytes
    ) -> ShellResult:
        process = await open_session(connection, self._name)
        try:
            # A login shell that runs nothing may have ended: its last words remain.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(text)
            return await self._follow(process)
        finally:
            await end_session(process)

    async def _follow(self, process: Process) -> ShellResult:
        readers = (
            asyncio.create_task(self._read_stdout(process)),
            asyncio.create_task(self._read_stderr(process)),
        )
        try:
            await asyncio.gather(*readers)
        finally:
            await end_tasks(*readers)
        await process.channel.wait_closed()
        return ShellResult(
            code=_code(process), stdout=self._stdout.text(), stderr=self._stderr.text()
        )

    async def _read_stdout(self, process: Process) -> None:
        while data := await process.stdout.read(_CHUNK_BYTES):
            self._stdout.add(data)
            if self._stdout.size > STDOUT_LIMIT_BYTES:
                if not self._follows:
                    raise MachineError(
                        f"A command on {self._name} printed more than "
                        f"{STDOUT_LIMIT_BYTES >> 20} MB"
                    )
                self._stdout.trim(STDOUT_LIMIT_BYTES)
        self._stdout.finish()

    async def _read_stderr(self, process: Process) -> None:
        while data := await process.stderr.read(_CHUNK_BYTES):
            self._stderr.add(data)
            self._stderr.trim(STDERR_LIMIT_BYTES)

    def last_words(self) -> str:
        """The last line of stderr, to be put behind a message."""
        return behind(self._stderr.text())


def behind(stderr: str) -> str:
    """``: the last line``, or nothing."""
    said = last_line(stderr)
    return f": {said}" if said else ""


class _Output:
    def __init__(self, mark: bytes, on_line: Callable[[str], None] | None) -> None:
        self.size = 0
        self._mark: bytes | None = mark + b"\n"
        self._before = b""
        self._chunks: deque[bytes] = deque()
        self._on_line = on_line
        self._line = b""

    def add(self, data: bytes) -> None:
        if self._mark is not None:
            data = self._skip(self._mark, data)
        if data:
            self._chunks.append(data)
            self.size += len(data)
            if self._on_line is not None:
                self._tell(data, self._on_line)

    def trim(self, limit_bytes: int) -> None:
        while self.size > limit_bytes and len(self._chunks) > 1:
            self.size -= len(self._chunks.popleft())

    def finish(self) -> None:
        if self._line and self._on_line is not None:
            self._on_line(_decoded(self._line))
            self._line = b""

    def text(self) -> str:
        # Without a mark sh itself did not come up: all there is may say why.
        if self._mark is not None:
            return _decoded(self._before)
        return _decoded(b"".join(self._chunks))

    def _skip(self, mark: bytes, data: bytes) -> bytes:
        self._before += data
        before, found, after = self._before.partition(mark)
        if found:
            self._mark, self._before = None, b""
            return after
        self._before = before[-_MARK_BYTES:]
        return b""

    def _tell(self, data: bytes, on_line: Callable[[str], None]) -> None:
        *lines, self._line = (self._line + data).split(b"\n")
        for line in lines:
            on_line(_decoded(line))
        if len(self._line) > _MARK_BYTES:
            on_line(_decoded(self._line))
            self._line = b""


def _decoded(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _code(process: Process) -> int:
    if process.exit_signal is not None:
        number = getattr(signal, f"SIG{process.exit_signal[0]}", None)
        return 128 + (int(number) if number is not None else 0)
    if process.exit_status is None:
        raise asyncssh.ConnectionLost("the session ended without a status")
    return process.exit_status


async def end_session(process: Process) -> None:
    """Close the session, which ends what still runs in it, and wait for that."""
    if process.channel.is_closing() and process.exit_status is not None:
        return
    process.stdin.write_eof()
    try:
        async with asyncio.timeout(END_TIMEOUT_S):
            await process.channel.wait_closed()
    except TimeoutError:
        process.channel.abort()
    except asyncio.CancelledError:
        process.channel.abort()
        raise


_WORDS_BYTES_MAX = 4096


class HeldSession:
    """Its standard input and output, until one of us ends it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._words = b""
        self._listening = asyncio.create_task(self._listen())

    async def read(self, most_bytes: int) -> bytes:
        try:
            return await self._process.stdout.read(most_bytes)
        except asyncssh.Error:
            return b""

    async def write(self, data: bytes) -> None:
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except asyncssh.Error as error:
            raise BrokenPipeError(str(error)) from error

    async def close(self) -> None:
        await end_tasks(self._listening)
        await end_session(self._process)

    def last_words(self) -> str:
        text = self._words.decode(errors="replace").strip()
        return text.rpartition("\n")[2].removeprefix("dllm-relay: ")

    async def _listen(self) -> None:
        try:
            while data := await self._process.stderr.read(_WORDS_BYTES_MAX):
                self._words = (self._words + data)[-_WORDS_BYTES_MAX:]
        except asyncssh.Error:
            pass


async def hold(
    connection: asyncssh.SSHClientConnection, name: str, line: str, args: Sequence[str]
) -> HeldSession:
    """Run one line of POSIX sh with ``$1``… set; it is to ``exec`` a program.

    Nothing may be sent before that has printed something: what sh reads ahead is lost.
    """
    text = f"set -- {' '.join(map(shlex.quote, args))}; {line}"
    if any(ord(sign) < 32 for sign in text):
        raise MachineError(f"A command for {name} contains a control character")
    process = await open_session(connection, name)
    session = HeldSession(process)
    await session.write(text.encode("utf-8", "surrogateescape") + b"\n")
    return session
