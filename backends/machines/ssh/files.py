"""Files to and from a peer, away from the connection that tokens go through."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import asyncssh

from backends.units import format_bytes, format_seconds

T = TypeVar("T")

# Where systems keep it; OpenSSH itself only knows its own place.
_SERVERS = (
    "/usr/lib/openssh/sftp-server /usr/libexec/openssh/sftp-server "
    "/usr/lib/ssh/sftp-server /usr/libexec/sftp-server /usr/lib/sftp-server"
)
# The braces make sh read all of it before it starts: what follows is for the server.
_SCRIPT = """{{
for dllm_ in {servers}; do
  [ -x "$dllm_" ] && printf '%s\\n' {mark} && exec "$dllm_"
done
exit 1
}}
"""
_NOISE_BYTES_MAX = 1 << 20
_OPEN_TIMEOUT_S = 15.0


async def start_sftp(link: asyncssh.SSHClientConnection) -> asyncssh.SFTPClient:
    """An SFTP client, within 15 s.

    The user's login shell may start the subsystem. One that prints a greeting (a noisy
    ``.bashrc``) speaks into the protocol. So the server is run from a shell of
    ours behind a mark; where it is nowhere to be found, sshd may have one built in.
    """
    async with asyncio.timeout(_OPEN_TIMEOUT_S):
        found = await _behind_mark(link)
        if found is None:
            return await link.start_sftp_client()
        session = cast("Any", _Session(link, found))
        return await asyncssh.SSHClientConnection.start_sftp_client(session)


class _Session:
    """A connection whose next session is one that runs already.

    asyncssh starts an SFTP client in subsystems only, not in a process.
    """

    def __init__(
        self,
        link: asyncssh.SSHClientConnection,
        process: asyncssh.SSHClientProcess[bytes],
    ) -> None:
        self._inner = link
        self._process = process

    async def open_session(self, **_: object) -> tuple[Any, Any, Any]:
        return self._process.stdin, self._process.stdout, self._process.stderr

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def _behind_mark(
    link: asyncssh.SSHClientConnection,
) -> asyncssh.SSHClientProcess[bytes] | None:
    """A process that has become the server; None when there is none to be found."""
    mark = secrets.token_hex(16)
    process = await link.create_process("exec /bin/sh -s", encoding=None)
    process.stdin.write(_SCRIPT.format(servers=_SERVERS, mark=mark).encode())
    seen = 0
    while line := await process.stdout.readline():
        if line.rstrip(b"\n").endswith(mark.encode()):
            return process
        seen += len(line)
        if seen > _NOISE_BYTES_MAX:
            break
    process.close()
    return None


CHUNK_BYTES_MIN = 256 << 10
CHUNK_BYTES_MAX = 8 << 20
_CHUNK_S = 0.25
"""About how long one chunk takes: the step of the progress, and of a cancellation."""
_STEP_END_S = 2.0
AT_ONCE_MIN, AT_ONCE_MAX = 16, 128
AT_ONCE_BYTES_MAX = 4 << 20
"""A server keeps what it was sent before its disk has it."""


class Meter:
    """Progress of a transfer in words, with the speed over the whole of it.

    ``tell`` gets a text and a fraction (0…1) at each step.
    """

    def __init__(self, total_bytes: int, tell: Callable[[str, float], None]) -> None:
        self._total = total_bytes
        self._tell = tell
        self._started = time.monotonic()
        self._sent = 0
        self._there = 0

    def skip(self, n_bytes: int) -> None:
        self._there += n_bytes
        self._show()

    def sent(self, n_bytes: int) -> None:
        self._sent += n_bytes
        self._show()

    def _show(self) -> None:
        done = self._there + self._sent
        seconds = time.monotonic() - self._started
        text = f"{format_bytes(done)} of {format_bytes(self._total)}"
        if self._sent and seconds > 0:
            rate = self._sent / seconds
            left = format_seconds((self._total - done) / rate)
            text += f", {format_bytes(rate)}/s, ~{left} left"
        self._tell(text, done / max(self._total, 1))


def _at_once(block_bytes: int) -> int:
    # As asyncssh reckons it.
    there = AT_ONCE_BYTES_MAX // max(block_bytes, 1)
    return max(AT_ONCE_MIN, min(there, AT_ONCE_MAX))


async def _to_their_end(
    requests: list[Coroutine[Any, Any, T]], block_bytes: int
) -> list[T]:
    """Await requests side by side, each to its end, also if we are cancelled.

    asyncssh leaves the other requests of a broken transfer to fail alone.
    """
    turns = asyncio.Semaphore(_at_once(block_bytes))

    async def in_turn(request: Coroutine[Any, Any, T]) -> T:
        async with turns:
            return await request

    answers = asyncio.gather(*map(in_turn, requests), return_exceptions=True)
    try:
        done = await asyncio.shield(answers)
    except asyncio.CancelledError:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STEP_END_S):
                await answers
        raise
    for one in done:
        if isinstance(one, BaseException):
            raise one
    return cast("list[T]", done)


def _blocks(at: int, n_bytes: int, block_bytes: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, n_bytes, block_bytes or max(n_bytes, 1)):
        yield at + begin, min(block_bytes or n_bytes, n_bytes - begin)


async def read_at(file: asyncssh.SFTPClientFile, n_bytes: int, at: int) -> bytes:
    """Some bytes of a file there; a server may give fewer, and none at its end."""
    blocks = list(_blocks(at, n_bytes, file.read_len))
    # Typed as text, whatever the mode.
    parts: list[Any] = await _to_their_end(
        [file.read(size, place) for place, size in blocks], file.read_len
    )
    whole = bytearray()
    for part, (_, size) in zip(parts, blocks, strict=True):
        whole += part
        if len(part) < size:
            break
    return bytes(whole)


async def write_at(file: asyncssh.SFTPClientFile, data: bytes, at: int) -> None:
    """Write bytes at a place of a file there; a failed write may leave any part."""
    blocks = list(_blocks(at, len(data), file.write_len))
    writes: list[Any] = [
        # Typed as text, whatever the mode.
        file.write(cast("Any", data[place - at : place - at + size]), place)
        for place, size in blocks
    ]
    await _to_their_end(writes, file.write_len)


async def upload(
    sftp: asyncssh.SFTPClient, source: Path, target: str, meter: Meter
) -> bool:
    """Send a file, from where an earlier try stopped; whether there was one.

    The parts of a chunk may be written in any order. So the range of the last chunk of
    a broken transfer is sent again. Whether all is right shows only in its hash.
    """
    size, there = (await asyncio.to_thread(source.stat)).st_size, 0
    with contextlib.suppress(asyncssh.SFTPNoSuchFile):
        there = (await sftp.stat(target)).size or 0
    resumed = 0 < there <= size
    offset = max(there - CHUNK_BYTES_MAX, 0) if resumed else 0
    meter.skip(offset)
    async with sftp.open(target, "r+b" if resumed else "wb") as file:
        with await asyncio.to_thread(source.open, "rb") as local:
            async with contextlib.aclosing(read_chunks(local, offset)) as chunks:
                async for data in chunks:
                    await write_at(file, data, offset)
                    offset += len(data)
                    meter.sent(len(data))
        with contextlib.suppress(asyncssh.SFTPOpUnsupported):
            await file.fsync()
    return resumed


async def read_chunks(
    local: BinaryIO, offset: int, n_bytes: int | None = None
) -> AsyncGenerator[bytes, None]:
    """Read a file here in chunks, up to its end or so many bytes.

    They grow while each is sent quickly. An error names the file.
    """
    chunk_bytes = CHUNK_BYTES_MIN
    left = sys.maxsize if n_bytes is None else n_bytes
    await asyncio.to_thread(local.seek, offset)
    while data := await asyncio.to_thread(_read, local, min(chunk_bytes, left)):
        left -= len(data)
        started = time.monotonic()
        yield data
        if time.monotonic() - started < _CHUNK_S / 2:
            chunk_bytes = min(chunk_bytes * 2, CHUNK_BYTES_MAX)


def _read(local: BinaryIO, n_bytes: int) -> bytes:
    try:
        return local.read(n_bytes)
    except OSError as error:
        # A failed read, unlike a failed open, does not name the file.
        error.filename = local.name
        raise
