"""Keeps a connection up in the background, and tells how it is."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from backends.errors import HostError, NeedsAnswer
from backends.state import PeerQuestion, QuestionKind, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from backends.machines.ssh.connection import SshConnection


HEARTBEAT_S = 1.0
"""At most one message a second; asyncssh sends none of its own in between."""
SUSPECT_AFTER_S = 2.0
LOST_AFTER_S = 60.0
"""A pulled cable or a sleeping access point only pauses what runs, for a minute."""
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
_TICK_S = 0.5
_SETTLED_S = 30.0
"""A connection that held this long was a good one: the back-off starts anew."""


class ConnectionPhase(StrEnum):
    """The stages of a supervised connection."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    WAITING = "waiting"
    """For the next attempt: ``retry_at``."""
    ASKING = "asking"
    """For the user's answer to ``question``."""
    STOPPED = "stopped"


class ConnectionState(Value, frozen=True, kw_only=True):
    """A supervised connection, now."""

    phase: ConnectionPhase = ConnectionPhase.STOPPED
    since: float = 0.0
    """Unix seconds at which this phase began; WAITING and CONNECTING after a failure
    keep the time since which the peer is unreachable: of its last answer, where it
    fell silent."""
    note: str = ""
    """Why it is not connected, in one sentence."""
    question: PeerQuestion | None = None
    rtt_ms: float | None = None
    """Of the newest heartbeat; None when not connected, and while suspect."""
    suspect: bool = False
    """No answer for two seconds, though the connection is not given up."""
    silent_for_s: float = 0.0
    """Seconds since the newest answer, while suspect."""
    retry_at: float | None = None
    """Unix seconds of the next attempt."""


class ConnectionSupervisor:
    """Connects, watches, and connects again, with back-off and full jitter.

    It takes the ``on_lost`` of the connection for itself.

    ``on_state`` gets every change, the heartbeats among them.
    """

    def __init__(
        self,
        connection: SshConnection,
        on_state: Callable[[ConnectionState], None],
        *,
        heartbeat_s: float = HEARTBEAT_S,
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        self.connection = connection
        self.state = ConnectionState()
        self._on_state = on_state
        self._heartbeat_s = heartbeat_s
        self._lost_after_s = lost_after_s
        self._heard_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._poked = asyncio.Event()
        self._answered = asyncio.Event()
        self._answers: Mapping[QuestionKind, str] = {}
        self._failures = 0

    def start(self) -> None:
        """Begin; needs a running event loop. May be called again."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep())

    async def wait(self) -> None:
        """Until it is stopped, or an error of ours ends it, which is raised."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.connection.close()
        self._tell(_fresh(ConnectionPhase.STOPPED))

    def poke(self) -> None:
        """Try again at once, instead of waiting or of asking the user.

        What was asked for may have changed: a key was loaded, a host key accepted.
        An attempt under way may not have seen it: if it fails, another follows.
        """
        self._failures = 0
        self._poked.set()
        self._answered.set()

    def answer(self, answers: Mapping[QuestionKind, str]) -> None:
        """Answer the question it asks; the answers are used once and forgotten."""
        if self.state.phase is not ConnectionPhase.ASKING:
            return
        self._answers = dict(answers)
        self._answered.set()

    async def _keep(self) -> None:
        self.connection.on_lost = lambda _: self._lost.set()
        while True:
            await self._connect()
            if self.connection.connected:
                await self._watch()

    async def _connect(self) -> None:
        answers, self._answers = self._answers, {}
        self._lost.clear()
        self._poked.clear()
        self._tell(self._unreached(ConnectionPhase.CONNECTING))
        try:
            await self.connection.connect(answers)
        except NeedsAnswer as needed:
            await self._ask(needed.question)
        except HostError as error:
            await self._wait(str(error))

    async def _ask(self, question: PeerQuestion) -> None:
        asking = _fresh(ConnectionPhase.ASKING)
        note = question.text
        self._answered.clear()
        self._tell(msgspec.structs.replace(asking, question=question, note=note))
        await self._answered.wait()

    async def _wait(self, note: str) -> None:
        most_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2**self._failures)
        self._failures = min(self._failures + 1, 16)
        delay_s = random.uniform(0, most_s)
        waiting = self._unreached(ConnectionPhase.WAITING)
        self._tell(
            msgspec.structs.replace(waiting, note=note, retry_at=time.time() + delay_s)
        )
        await _wait_for(self._poked, delay_s)

    async def _watch(self) -> None:
        self._poked.clear()
        self._tell(_fresh(ConnectionPhase.CONNECTED))
        start = self._heard_at = time.monotonic()
        try:
            while not self._lost.is_set():
                await self._beat()
                await _wait_for(self._lost, self._heartbeat_s)
        except HostError as error:
            lost = str(error)
        else:
            lost = str(await self.connection.wait_closed() or "")
        if time.monotonic() - start > _SETTLED_S:
            self._failures = 0
        since = time.time() - self.state.silent_for_s
        gone = ConnectionState(phase=ConnectionPhase.WAITING, since=since, note=lost)
        self._tell(gone)
        # A machine that lets everybody in and drops them must not be hammered either.
        await self._wait(lost)

    async def _beat(self) -> None:
        ping = asyncio.create_task(self.connection.rtt_ms())
        try:
            while not (await asyncio.wait({ping}, timeout=_TICK_S))[0]:
                self._silent(time.monotonic() - self._heard_at)
            rtt_ms = ping.result()
            self._heard_at = time.monotonic()
            self._change(rtt_ms=rtt_ms, suspect=False, silent_for_s=0.0)
        finally:
            ping.cancel()
            await asyncio.gather(ping, return_exceptions=True)

    def _silent(self, silent_s: float) -> None:
        if silent_s > self._lost_after_s:
            self.connection.give_up()
        elif silent_s >= SUSPECT_AFTER_S:
            self._change(rtt_ms=None, suspect=True, silent_for_s=silent_s)

    def _unreached(self, phase: ConnectionPhase) -> ConnectionState:
        # Unreachable since the first failure, not since the newest attempt.
        before = self.state
        if before.phase in (ConnectionPhase.CONNECTING, ConnectionPhase.WAITING):
            kept = {"since": before.since, "note": before.note}
            return msgspec.structs.replace(_fresh(phase), **kept)
        return _fresh(phase)

    def _change(self, **changes: Any) -> None:
        self._tell(msgspec.structs.replace(self.state, **changes))

    def _tell(self, state: ConnectionState) -> None:
        if state != self.state:
            self.state = state
            self._on_state(state)


def _fresh(phase: ConnectionPhase) -> ConnectionState:
    return ConnectionState(phase=phase, since=time.time())


async def _wait_for(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
