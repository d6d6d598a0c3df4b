"""A program at the other end of one SSH session that stays open."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING

import asyncssh

from backends.errors import HostError
from backends.machines.ssh.script import Process, end_session, open_session

if TYPE_CHECKING:
    from collections.abc import Sequence

_WORDS_BYTES_MAX = 4096


class HeldSession:
    """Its standard input and output, until one of us ends it."""

    def __init__(self, process: Process) -> None:
        """Read on from what it prints."""
        self._process = process
        self._words = b""
        self._listening = asyncio.create_task(self._listen())

    async def read(self, most_bytes: int) -> bytes:
        """What it printed; empty at its end, or when the connection broke."""
        try:
            return await self._process.stdout.read(most_bytes)
        except asyncssh.Error:
            return b""

    async def write(self, data: bytes) -> None:
        """Send to its standard input.

        Raises:
            OSError: it, or the connection, has ended.
        """
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except asyncssh.Error as error:
            raise BrokenPipeError(str(error)) from error

    async def close(self) -> None:
        """End its input and wait for its end."""
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        await end_session(self._process)

    def last_words(self) -> str:
        """The last line of its stderr."""
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

    Raises:
        HostError: no session can be opened, or a word cannot be sent.
        asyncssh.Error, OSError: the connection broke.
    """
    text = f"set -- {' '.join(map(shlex.quote, args))}; {line}"
    if any(ord(sign) < 32 for sign in text):
        raise HostError(f"A command for {name} contains a control character")
    process = await open_session(connection, name)
    session = HeldSession(process)
    await session.write(text.encode("utf-8", "surrogateescape") + b"\n")
    return session
