"""An agent held open: started by the first request, again when its stream broke."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from backends.errors import DllmError, HostError, PeerUnreachable
from backends.machines.agent.channel import Channel, Refused
from backends.machines.agent.messages import Complaint, Hello, Told, converted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from backends.machines.agent.messages import Stream

ASK_TIMEOUT_S = 15.0
RESTART_PAUSES_S = (0.02, 0.2, 1.0, 5.0)
"""Between attempts to start an agent that died again; the last one is repeated."""
LEASE_S = 240.0
"""An agent that hears nothing for so long ends: we may have lost power, which its sshd
may not notice for hours. Well beyond a minute, for which a cable may be out."""
RENEWALS = 4
"""In the time of one lease."""


class HeldAgent:
    """One agent at a time, and what it tells."""

    def __init__(
        self,
        name: str,
        open_stream: Callable[[], Awaitable[Stream]],
        *,
        restarts: bool,
        lease_s: float | None,
        came: Callable[[Told], None],
        went: Callable[[str], None],
        all_told: Callable[[tuple[Told, ...]], None],
    ) -> None:
        """``restarts``: by itself; else by the next request.

        ``lease_s`` is how long it lives without a word of ours; None: while the stream
        stands.

        ``all_told`` gets every process directory once an agent runs; then ``came`` and
        ``went`` what changes.
        """
        self._name = name
        self._open_stream = open_stream
        self._restarts = restarts
        self._lease_s = lease_s
        self._came = came
        self._went = went
        self._all_told = all_told
        self._channel: Channel | None = None
        self._lock = asyncio.Lock()
        self._opening: asyncio.Task[Channel] | None = None
        self._closes = 0
        self._keeping: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def hello(self) -> Hello:
        """What it said of itself; nothing before the first request."""
        return self._channel.hello if self._channel else Hello(hello="", protocol=0)

    async def connect(self) -> None:
        """Start the agent unless it runs.

        Raises:
            HostError: it does not run there.
            PeerUnreachable: the connection broke.
        """
        await self._connected()

    async def ask(
        self, verb: str, members: dict[str, Any], within_s: float = ASK_TIMEOUT_S
    ) -> dict[str, Any]:
        """What the agent answers.

        Raises:
            Refused: it did not do it.
            HostError: it does not run, or did not answer in time.
            PeerUnreachable: the connection broke.
        """
        channel = await self._connected()
        return await channel.ask(verb, members, within_s)

    async def close(self) -> None:
        """End the agent; what it started lives on. A later request starts another."""
        self._closes += 1
        await _ended(self._keeping, self._renewing, self._opening)
        self._keeping = self._renewing = None
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _connected(self) -> Channel:
        closes = self._closes
        async with self._lock:
            if closes != self._closes:
                raise self._closed()
            if self._channel is None or self._channel.ended.is_set():
                self._opening = asyncio.create_task(self._open(self._channel))
                try:
                    self._channel = await self._opening
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if closes == self._closes or (task and task.cancelling()):
                        raise
                    raise self._closed() from None
                if self._restarts and self._keeping is None:
                    self._keeping = asyncio.create_task(self._keep())
            return self._channel

    def _closed(self) -> PeerUnreachable:
        return PeerUnreachable(f"The helper on {self._name} was ended meanwhile")

    async def _open(self, before: Channel | None) -> Channel:
        if before is not None:
            await before.close()
        # News may be read in one go with the answer they are newer than.
        early: list[dict[str, Any]] = []
        listed = False

        def told(message: dict[str, Any]) -> None:
            if listed:
                self._pushed(message)
            else:
                early.append(message)

        channel = Channel(self._name, await self._open_stream(), told)
        await channel.open()
        try:
            answer = await channel.ask("watch", {}, ASK_TIMEOUT_S)
        except BaseException as error:
            await channel.close()
            if isinstance(error, Refused):
                raise HostError(f"{error} on {self._name}") from error
            raise
        self._all_told(converted(answer.get("records"), tuple[Told, ...]) or ())
        listed = True
        for message in early:
            self._pushed(message)
        await _ended(self._renewing)
        if self._lease_s is not None:
            renewed = _renewed(channel, self._lease_s)
            self._renewing = asyncio.create_task(renewed)
        return channel

    async def _keep(self) -> None:
        """Start it again whenever it ended: what changes is to be told of."""
        attempt = 0
        while True:
            if self._channel is not None:
                await self._channel.ended.wait()
            await asyncio.sleep(
                RESTART_PAUSES_S[min(attempt, len(RESTART_PAUSES_S) - 1)]
            )
            attempt += 1
            with contextlib.suppress(DllmError, OSError):
                await self._connected()
                attempt = 0

    def _pushed(self, message: dict[str, Any]) -> None:
        if message.get("push") == "record":
            told = converted(message.get("record"), Told)
            if told is not None:
                self._came(told)
        elif message.get("push") == "removed":
            self._went(str(message.get("name")))


async def _renewed(channel: Channel, lease_s: float) -> None:
    """Let an agent know in time, again and again, that we are there."""
    while not channel.ended.is_set():
        try:
            await channel.ask("lease", {"seconds": lease_s}, ASK_TIMEOUT_S)
        except Refused:
            # One of an earlier release lives as long as its connection.
            return
        except HostError:
            # Silence, or the end of the channel; the way may come back in time.
            pass
        await asyncio.sleep(lease_s / RENEWALS)


async def _ended(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel those there are, and wait until they are through."""
    there = [task for task in tasks if task is not None]
    for task in there:
        task.cancel()
    await asyncio.gather(*there, return_exceptions=True)


def error_of(complaint: Complaint, name: str, host: str) -> HostError:
    """What to tell a user of a request about a process that was refused."""
    pids = ", ".join(map(str, sorted(complaint.pids)))
    match complaint.kind:
        case "not_started":
            return HostError(f"{name} did not start on {host}: {complaint.message}")
        case "still_runs":
            detail = f" (pid {pids})" if pids else ""
            return HostError(f"{name} still runs on {host}{detail}", "Stop it first.")
        case "outlived":
            return HostError(
                f"{name} outlived SIGKILL (pid {pids})",
                "It may wait for a disk or belong to another user; look at it with ps.",
            )
        case "unknown":
            return HostError(complaint.message)
        case _:
            return HostError(f"{complaint.message} on {host}")
