"""Requests and answers over one stream: many at once, each with its time limit."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import TYPE_CHECKING, Any

from backends.errors import HostError, PeerUnreachable
from backends.machines.agent.messages import (
    ANSWER_BYTES_MAX,
    BANNER_BYTES_MAX,
    PROTOCOL,
    REQUEST_BYTES_MAX,
    Complaint,
    Hello,
    Lines,
    converted,
    decode_line,
    encode_line,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.machines.agent.messages import Stream

HELLO_TIMEOUT_S = 15.0
_CHUNK_BYTES = 64 << 10
_HELLO = "dllm-relay host"
_TOO_LONG = "Argument list too long"


class Refused(Exception):
    """An agent did not do what it was asked, with its reason."""

    def __init__(self, complaint: Complaint) -> None:
        """Carry the reason."""
        super().__init__(complaint.message)
        self.complaint = complaint


class Channel:
    """An agent at the other end of a stream, from its first line to its last."""

    def __init__(
        self, name: str, stream: Stream, told: Callable[[dict[str, Any]], None]
    ) -> None:
        """``name`` is the machine's; ``told`` gets what is pushed, in order."""
        self._name = name
        self._stream = stream
        self._told = told
        self._lines = Lines(ANSWER_BYTES_MAX)
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._sending = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self.hello = Hello(hello="", protocol=0)
        self.ended = asyncio.Event()

    async def open(self) -> None:
        """Read up to the agent's first line; what a login shell prints is passed over.

        Raises:
            HostError: there is no agent, or none we understand.
        """
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                rest = await self._find_hello()
        except TimeoutError as error:
            await self.close()
            raise HostError(
                f"The helper dllm-relay on {self._name} said nothing within "
                f"{HELLO_TIMEOUT_S:g} s",
                "The machine may be overloaded; try again.",
            ) from error
        except BaseException:
            await self.close()
            raise
        self._reader = asyncio.create_task(self._read(rest))

    async def ask(
        self, verb: str, members: dict[str, Any], within_s: float
    ) -> dict[str, Any]:
        """What the agent answers.

        Raises:
            Refused: it did not do it.
            PeerUnreachable: the stream broke.
            HostError: no answer in time, or the request is too long.
        """
        number = next(self._numbers)
        line = encode_line({**members, "id": number, "do": verb})
        if len(line) > REQUEST_BYTES_MAX:
            raise Refused(Complaint(kind="not_started", message=_TOO_LONG))
        if self.ended.is_set():
            raise self._broken()
        answer = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(within_s):
                await self._send(line)
                return self._result(await answer)
        except TimeoutError as error:
            raise HostError(
                f"{self._name} did not answer within {within_s:g} s ({verb})",
                "The machine may be overloaded or cut off; try again.",
            ) from error
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """End the agent; what it started lives on."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        self._end()
        await self._stream.close()

    # --- inside -------------------------------------------------------------------

    async def _find_hello(self) -> bytes:
        """Everything that came behind the first line."""
        text = b""
        while data := await self._stream.read(_CHUNK_BYTES):
            *lines, rest = (text + data).split(b"\n")
            for number, line in enumerate(lines):
                if self._is_hello(line):
                    return b"\n".join([*lines[number + 1 :], rest])
            text = rest[-BANNER_BYTES_MAX:]
        said = self._stream.last_words()
        raise HostError(
            f"The helper dllm-relay on {self._name} does not run"
            + (f": {said}" if said else ""),
            "Install it anew, in the version of this machine.",
        )

    def _is_hello(self, line: bytes) -> bool:
        hello = converted(decode_line(line), Hello) if b'"hello"' in line else None
        if hello is None or hello.hello != _HELLO:
            return False
        if hello.protocol != PROTOCOL:
            raise HostError(
                f"The helper dllm-relay on {self._name} is of version {hello.version}, "
                "which this one does not understand",
                "Install the same version on both machines.",
            )
        self.hello = hello
        return True

    async def _read(self, data: bytes) -> None:
        try:
            while True:
                for line in self._lines.add(data):
                    self._take(line)
                if not (data := await self._stream.read(_CHUNK_BYTES)):
                    break
        except (OSError, ValueError):
            # Broken, or a flood without line ends: no agent of ours any more.
            pass
        finally:
            self._end()

    def _take(self, line: bytes) -> None:
        message = decode_line(line)
        if message is None:
            return
        if "push" in message:
            self._told(message)
            return
        number = message.get("id")
        waiting = self._waiting.get(number) if isinstance(number, int) else None
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def _result(self, message: dict[str, Any]) -> dict[str, Any]:
        result = message.get("ok")
        if isinstance(result, dict):
            return result
        complaint = converted(message.get("error"), Complaint)
        raise Refused(complaint or Complaint(message="an answer without sense"))

    async def _send(self, line: bytes) -> None:
        async with self._sending:
            try:
                await self._stream.write(line)
            except OSError as error:
                self._end()
                raise self._broken() from error

    def _end(self) -> None:
        self.ended.set()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._broken())

    def _broken(self) -> PeerUnreachable:
        said = self._stream.last_words()
        return PeerUnreachable(
            f"The connection to the helper on {self._name} broke"
            + (f": {said}" if said else ""),
            "What it started lives on.",
        )
