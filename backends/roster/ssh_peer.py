"""A peer reached over SSH: its connection, what a probe found, long work at it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from backends.data_place import AUTO
from backends.errors import (
    ControllerError,
    DllmError,
    HostError,
    NeedsAnswer,
    PeerUnreachable,
)
from backends.machines.ssh.connection import SshConnection
from backends.machines.ssh.destination import Destination
from backends.machines.ssh.keeper import Keeper, KeeperPhase
from backends.paths import relay_binary
from backends.provision.clean import clean
from backends.provision.headers import read_there
from backends.provision.model_copy import copy_model
from backends.provision.provision import Way, provision
from backends.roster.judging import judged
from backends.roster.looking import Looker
from backends.roster.ssh_machine import SshMachine
from backends.state import Peer, PeerData, PeerFacts, PeerState, PeerWork, Transport
from backends.units import format_age

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path

    from backends.config import PeerConfig
    from backends.machines.machine import Machine
    from backends.machines.readers import Readers
    from backends.machines.ssh.keeper import KeeperState
    from backends.paths import Paths
    from backends.state import ModelInfo, PeerAnswer, ProvisionMode

log = logging.getLogger(__name__)

T = TypeVar("T")

PROBE_EVERY_S = 300.0
PROBE_SOON_S = 10.0
"""After a light probe: for what it left out, once nothing serves there."""
RTT_STEP_MS = 0.1


class SshPeer:
    """Looks after one peer while ``run`` runs."""

    def __init__(
        self,
        name: str,
        config: PeerConfig,
        *,
        paths: Paths,
        readers: Readers,
        head_id: str,
        changed: Callable[[], None],
        settle: Callable[[Machine], Awaitable[None]],
        serves: Callable[[str], bool],
    ) -> None:
        """``changed`` is told of news, ``settle`` that it has been reached (again).

        ``serves`` tells whether it takes part in a cluster now.

        Raises:
            UsageError: its address is none.
        """
        destination = Destination.parse(config.ssh or name)
        self._paths = paths
        self._readers = readers
        self._changed = changed
        self._settle = settle
        self._serves = serves
        self._light = False
        self.connection = SshConnection(name, destination)
        self.machine = SshMachine(
            self.connection,
            head_id,
            paths,
            lambda: self.peer.rtt_ms,
            config.data,
        )
        self._looker = Looker(self.machine, config, paths)
        self._keeper = Keeper(self.connection, self._heard)
        self._looking: asyncio.Task[None] | None = None
        self._work: asyncio.Task[Any] | None = None
        self._news = asyncio.Event()
        self._ready = asyncio.Event()
        self._moved = asyncio.Event()
        self.peer = Peer(
            name=name,
            state=PeerState.PROBING,
            since=time.time(),
            transport=Transport.SSH,
            address=str(destination),
            data=PeerData(wanted=config.data or AUTO),
        )

    @property
    def connected(self) -> bool:
        """Whether it has been reached and looked at, and the connection holds."""
        return self._ready.is_set() and self.connection.connected

    async def run(self) -> None:
        """Keep it connected and looked at until cancelled."""
        self._keeper.start()
        tasks = [
            asyncio.create_task(self._keeper.wait()),
            asyncio.create_task(self._look_now_and_then()),
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.cancel_work()
            await self._keeper.stop()

    async def _look_now_and_then(self) -> None:
        while True:
            await self._wait_for_a_reason()
            if self.connection.connected:
                with contextlib.suppress(DllmError):
                    await self.look()
                    # Heartbeats that came meanwhile are no further reason.
                    self._news.clear()

    async def _wait_for_a_reason(self) -> None:
        """Wait until there is news of the peer, or the last look is long ago.

        An old look is no reason while it serves: looking would slow it down.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    PROBE_SOON_S if self._light else PROBE_EVERY_S
                ):
                    await self._news.wait()
                self._news.clear()
                return
            if not self._serves(self.peer.name):
                return

    async def settled(self) -> None:
        """Wait until it is reached and looked at, cannot be reached, or asks.

        Of a peer that could not be reached only a try that begins now tells.
        """
        waiting = self._keeper.state.phase is KeeperPhase.WAITING
        if waiting or self.peer.state is PeerState.UNREACHABLE:
            self._keeper.poke()
        if waiting:
            await self._moved.wait()
        while self._undecided:
            moved = self._moved
            await moved.wait()

    async def answering(self, patience_s: float) -> None:
        """Wait for a sign of life while it is suspect: so long after the last one."""
        with contextlib.suppress(TimeoutError):
            while (since := self.peer.silent_since) is not None:
                async with asyncio.timeout(since + patience_s - time.time()):
                    await self._moved.wait()

    def fail(self, note: str) -> None:
        """Show that it is not looked after now, and why."""
        self._become(PeerState.FAILED, note=note, rtt_ms=None)

    @property
    def _undecided(self) -> bool:
        connecting = self._keeper.state.phase is KeeperPhase.CONNECTING
        return connecting or self.peer.state is PeerState.PROBING

    # --- being reached ------------------------------------------------------------

    def _heard(self, state: KeeperState) -> None:
        """The connection changed, or a heartbeat came."""
        self._stir()
        if state.phase is KeeperPhase.CONNECTED:
            self._alive(state)
            return
        self._ready.clear()
        if state.phase is KeeperPhase.ASKING:
            self._become(PeerState.ASKING, note=state.note, question=state.question)
        elif state.phase is KeeperPhase.WAITING:
            gone = {"rtt_ms": None, "silent_since": None, "since": state.since}
            self._become(PeerState.UNREACHABLE, note=state.note, **gone)
        elif self.peer.state is not PeerState.UNREACHABLE:
            self._become(PeerState.PROBING, note="")

    def _alive(self, state: KeeperState) -> None:
        if self.peer.state in _NOT_REACHED:
            self._become(PeerState.PROBING, note="")
            self._news.set()
        if state.suspect:
            self._suspect(state.silent_for_s)
        elif state.rtt_ms is not None:
            note = "" if self.peer.silent_since else self.peer.note
            rtt_ms = round(state.rtt_ms / RTT_STEP_MS) * RTT_STEP_MS
            self._show(rtt_ms=round(rtt_ms, 1), note=note, silent_since=None)

    def _suspect(self, silent_s: float) -> None:
        since = self.peer.silent_since or round(time.time() - silent_s, 1)
        note = f"no answer for {format_age(silent_s)}"
        self._show(note=note, rtt_ms=None, silent_since=since)

    async def answer(self, answer: PeerAnswer) -> None:
        """Answer the question it asks.

        Raises:
            ControllerError: it asks nothing of that kind.
        """
        question = self.peer.question
        if question is None or question.kind is not answer.kind:
            raise ControllerError(f"{self.peer.name} does not ask for that now")
        self._become(PeerState.PROBING, note="")
        self._keeper.answer({answer.kind: answer.text})

    # --- looking at it ------------------------------------------------------------

    async def look(self) -> None:
        """Probe it now; whoever asks meanwhile shares the answer.

        Raises:
            PeerUnreachable: it cannot be reached.
            HostError: it cannot be looked at.
        """
        if not self.connection.connected:
            await self._reach()
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        await asyncio.shield(self._looking)

    async def model(self, path: str) -> ModelInfo:
        """The header of a model there, read once.

        Raises:
            ModelError: it is missing, or not a usable GGUF.
            PeerUnreachable: it cannot be reached.
        """
        if not self.connection.connected:
            await self._reach()
        cache = self._paths.cache_dir / "headers"
        return await read_there(self.connection.files, self.peer.name, path, cache)

    async def _look_anew(self) -> None:
        """Look once more though somebody looks already: something has changed."""
        if self._looking is not None:
            await asyncio.wait([self._looking])
        await self.look()

    async def _reach(self) -> None:
        if self._keeper.state.phase is KeeperPhase.ASKING:
            # The question may be out of date: somebody logs in with ssh meanwhile.
            moved = self._moved
            self._keeper.poke()
            await moved.wait()
        await self.settled()
        if self.peer.question is not None:
            raise NeedsAnswer(self.peer.question)
        if not self.connection.connected:
            raise PeerUnreachable(self.peer.note.rstrip(".") or "It cannot be reached")

    async def _look(self) -> None:
        try:
            self._light = self._serves(self.peer.name)
            facts = await self._looker.look(light=self._light)
            first = not self._ready.is_set()
            if first and facts.relay_version:
                await self._settle(self.machine)
        except HostError as error:
            if self.connection.connected:
                self._become(PeerState.FAILED, note=str(error))
            raise
        state, note = await self._judged(facts)
        self._ready.set()
        self._become(
            state, note=note, facts=facts, devices=facts.devices, question=None
        )

    async def _judged(self, facts: PeerFacts) -> tuple[PeerState, str]:
        """Whether it can take part, and if not, why."""
        try:
            ours = (await self._readers.engine()).info.rpc_protocol
        except DllmError:
            ours = ""
        return judged(self.peer.name, facts, ours)

    # --- long work ------------------------------------------------------------------

    async def provision(self, mode: ProvisionMode) -> str:
        """Install engine and helper; what may surprise about how, in one sentence.

        Raises:
            ControllerError: something else goes on there.
            DllmError: it cannot be done, with the reason.
        """
        engine = await self._readers.engine()
        done = await self._at_work(
            provision(
                self.connection,
                self.connection.files,
                engine=engine.info,
                relay=relay_binary(),
                paths=self._paths,
                report=self._report,
                mode=mode,
            )
        )
        # What was found before is out of date: "no engine" would be wrong.
        self._become(PeerState.PROBING, note="")
        if done.relay_way is not Way.PRESENT:
            # The agent that runs is the helper of before.
            await self.machine.end_agent()
        await self._look_anew()
        return done.note

    async def copy_model(self, source: Path) -> str:
        """Copy a model file; its path there.

        Raises:
            ControllerError: something else goes on there.
            DllmError: it cannot be done, with the reason.
        """
        there = await self._at_work(
            copy_model(
                self.connection, self.connection.files, source, report=self._report
            )
        )
        await self._look_anew()
        return there[0]

    async def clean(self) -> int:
        """Remove what was installed; the bytes freed.

        Raises:
            ControllerError: something else goes on there.
            DllmError: something of ours runs there, or it cannot be removed.
        """
        machine = self.machine
        host = machine.host if machine.facts.relay_version else None
        freed = await self._at_work(clean(self.connection, host))
        await self._look_anew()
        return freed

    async def cancel_work(self) -> None:
        """End what goes on; the next time it resumes."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def _at_work(self, work: Coroutine[Any, Any, T]) -> T:
        if self._work is not None and not self._work.done():
            work.close()
            doing = self.peer.work.title if self.peer.work else "something else"
            raise ControllerError(
                f"{self.peer.name} is busy: {doing}", "Wait for it, or cancel it."
            )
        before = self.peer.state
        task: asyncio.Task[T] = asyncio.create_task(work)
        self._work = task
        try:
            return await task
        except asyncio.CancelledError:
            raise ControllerError(f"The work at {self.peer.name} was ended") from None
        finally:
            state = before if self.peer.state is PeerState.PROVISIONING else None
            self._become(state or self.peer.state, work=None)

    def _report(self, work: PeerWork) -> None:
        self._become(PeerState.PROVISIONING, work=work)

    # --- showing it -------------------------------------------------------------------

    def _become(self, state: PeerState, **changes: Any) -> None:
        since = self.peer.since if state is self.peer.state else time.time()
        asking = state is PeerState.ASKING
        kept = {"question": self.peer.question if asking else None}
        self._show(state=state, **{"since": since, **kept, **changes})

    def _show(self, **changes: Any) -> None:
        peer = msgspec.structs.replace(self.peer, **changes)
        if peer != self.peer:
            self.peer = peer
            self._changed()
            self._stir()

    def _stir(self) -> None:
        """Wake those who wait for a change."""
        event, self._moved = self._moved, asyncio.Event()
        event.set()


_NOT_REACHED = (PeerState.PROBING, PeerState.UNREACHABLE, PeerState.ASKING)
