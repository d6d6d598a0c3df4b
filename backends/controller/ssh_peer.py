"""A peer reached over SSH: its connection, what a probe found, long work at it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from backends.controller.ssh_machine import SshMachine
from backends.engine.protocols import protocols_match
from backends.errors import ControllerError, DllmError, HostError, PeerUnreachable
from backends.paths import relay_binary
from backends.peers.probe import probe
from backends.peers.ssh.connection import SshConnection
from backends.peers.ssh.destination import Destination
from backends.peers.ssh.keeper import Keeper, KeeperPhase
from backends.provision.clean import clean
from backends.provision.headers import read_there
from backends.provision.models import copy_model
from backends.provision.provision import provision
from backends.state import Peer, PeerFacts, PeerState, PeerWork, Transport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path

    from backends.config import PeerConfig
    from backends.controller.machines import Machine
    from backends.controller.readers import Readers
    from backends.paths import Paths
    from backends.peers.ssh.keeper import KeeperState
    from backends.state import ModelInfo, PeerAnswer, ProvisionMode

log = logging.getLogger(__name__)

T = TypeVar("T")

PROBE_EVERY_S = 300.0
SILENT_AFTER_S = 4.0
"""An answer this late is worth telling; a healthy link answers in milliseconds."""
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
    ) -> None:
        """``changed`` is told of news, ``settle`` that it has been reached (again).

        Raises:
            UsageError: its address is none.
        """
        destination = Destination.parse(config.ssh or name)
        self._config = config
        self._paths = paths
        self._readers = readers
        self._changed = changed
        self._settle = settle
        self.connection = SshConnection(name, destination)
        self.machine = SshMachine(self.connection, head_id, paths.relay_socket)
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
        )

    @property
    def connected(self) -> bool:
        """Whether it has been reached and looked at, and the connection holds."""
        return self._ready.is_set() and self.connection.connected

    async def run(self) -> None:
        """Keep it connected and looked at until cancelled."""
        self._keeper.start()
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PROBE_EVERY_S):
                        await self._news.wait()
                self._news.clear()
                if self.connection.connected:
                    with contextlib.suppress(DllmError):
                        await self.look()
        finally:
            if self._work is not None:
                self._work.cancel()
                await asyncio.gather(self._work, return_exceptions=True)
            await self._keeper.stop()

    async def settled(self) -> None:
        """Wait until it is reached and looked at, cannot be reached, or asks."""
        if self._keeper.state.phase is KeeperPhase.WAITING:
            self._keeper.poke()
            await self._moved.wait()
        while self._undecided:
            moved = self._moved
            await moved.wait()

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
            self._become(PeerState.UNREACHABLE, note=state.note, rtt_ms=None)
        elif self.peer.state is not PeerState.UNREACHABLE:
            self._become(PeerState.PROBING, note="")

    def _alive(self, state: KeeperState) -> None:
        if self.peer.state in _NOT_REACHED:
            self._become(PeerState.PROBING, note="")
            self._news.set()
        late = state.silent_for_s
        if late > SILENT_AFTER_S:
            self._show(note=f"no answer for {late:.0f} s", rtt_ms=None)
        elif state.rtt_ms is not None:
            note = "" if self.peer.note.startswith("no answer") else self.peer.note
            rtt_ms = round(state.rtt_ms / RTT_STEP_MS) * RTT_STEP_MS
            self._show(rtt_ms=round(rtt_ms, 1), note=note)

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
        self._keeper.poke()
        await self.settled()
        if not self.connection.connected:
            raise PeerUnreachable(self.peer.note.rstrip(".") or "It cannot be reached")

    async def _look(self) -> None:
        try:
            facts = await probe(
                self.connection,
                engine_dirs=[self._config.engine] if self._config.engine else [],
                model_dirs=self._config.model_dirs,
                budgets=self._config.memory_gib,
            )
            await self.machine.prepare(facts, facts.relay_path)
            first = not self._ready.is_set()
            if first:
                await self._settle(self.machine)
            self._ready.set()
        except HostError as error:
            if self.connection.connected:
                self._become(PeerState.FAILED, note=str(error))
            raise
        state, note = await self._judged(facts)
        self._become(
            state, note=note, facts=facts, devices=facts.devices, question=None
        )

    async def _judged(self, facts: PeerFacts) -> tuple[PeerState, str]:
        """Whether it can take part, and if not, why."""
        hint = f"Provision it: dllm-tui peers provision {self.peer.name}."
        if not facts.engines:
            return PeerState.NO_ENGINE, f"No llama.cpp with RPC there. {hint}"
        try:
            ours = (await self._readers.engine()).info.rpc_protocol
        except DllmError:
            ours = ""
        spoken = [engine.rpc_protocol for engine in facts.engines]
        if not any(protocols_match(ours, theirs) for theirs in spoken):
            theirs = ", ".join(spoken)
            return (
                PeerState.MISMATCH,
                f"It speaks RPC {theirs}, this machine RPC {ours}. {hint}",
            )
        if not facts.relay_version:
            return PeerState.NO_ENGINE, f"The helper dllm-relay is not there. {hint}"
        return PeerState.READY, ""

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
                self.machine.facts,
                engine=engine.location,
                relay=relay_binary(),
                paths=self._paths,
                report=self._report,
                mode=mode,
            )
        )
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
        return there[0].path

    async def clean(self) -> int:
        """Remove what was installed; the bytes freed.

        Raises:
            ControllerError: something else goes on there.
            DllmError: something of ours runs there, or it cannot be removed.
        """
        freed = await self._at_work(clean(self.connection))
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
        self._show(state=state, since=since, **{**kept, **changes})

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
