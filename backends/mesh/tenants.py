"""This machine, lent: to whom, what runs for them, and when that ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import platform
import time
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh

from backends.engine.ask import list_devices
from backends.engine.install import all_engines
from backends.errors import DllmError, MachineError
from backends.machines.local import local_agent, local_agent_for_now
from backends.machines.ssh.connection import answer_ms
from backends.mesh.connection_limits import StrangerLog
from backends.mesh.digits import DigitsServer, shown_name
from backends.mesh.identity import key_of_line, line_of_raw, public_line
from backends.mesh.messages import PROTOCOL, WorkerHello
from backends.mesh.pairings import PairedConsole
from backends.mesh.relay_access import RelayFile
from backends.mesh.request_policy import AgentPolicy
from backends.mesh.token import ADDRESSES_MAX, place
from backends.mesh.worker_status import LogEntry, TenantState, WorkerStatus
from backends.paths import relay_binary
from backends.printable import printable
from backends.tasks import end_tasks
from backends.units import format_bytes

if TYPE_CHECKING:
    from backends.machines.agent import AgentSession, ProcessRecord
    from backends.mesh.dialling import SocketPath
    from backends.mesh.messages import PairRequest
    from backends.mesh.owner_limits import OwnerLimits
    from backends.mesh.pairings import PairingFile, Pairings
    from backends.mesh.token import Token
    from backends.paths import Paths

log = logging.getLogger(__name__)

ABANDONED_S = 600.0
"""So long after a console's last connection its processes go on."""
STOP_GRACE_S = 2.0
PING_EVERY_S = 5.0
LINES_MAX = 200
LINE_CHARS_MAX = 300
STOPS_AT_ONCE = 16
"""An agent refuses many more."""


class Tenant:
    """A console's part of this machine: its processes, and what it may ask for."""

    def __init__(
        self,
        console: PairedConsole,
        policy: AgentPolicy,
        run_dir: Path,
        lent_bytes: Callable[[], int],
    ) -> None:
        self.name = console.name
        self.key = console.key
        self.policy = policy
        self.used_bytes = 0
        """Main memory of its processes, when it was last looked at."""
        self.processes = 0
        self.lent_bytes = lent_bytes
        """Main memory that all consoles use."""
        self.links: dict[asyncssh.SSHServerConnection, SocketPath | None] = {}
        """With the path of each that is no TCP to the console itself."""
        self.left_at = time.monotonic()
        self._devices: tuple[str, ...] = ()
        self._ping: asyncio.Task[None] | None = None
        self._pinged_at = -math.inf
        self._rtt_ms: float | None = None
        self._run_dir = run_dir
        self._relay = relay_binary()
        self._agent: AgentSession = local_agent(
            run_dir, name=console.name, stop_at_end=True
        )

    async def start_agent(
        self, link: asyncssh.SSHServerConnection
    ) -> asyncio.subprocess.Process:
        """An agent for a session of the console, over its processes alone."""
        known = [link.get_extra_info(end) for end in ("peername", "sockname")]
        # As sshd tells it: the relay beside a worker listens at that address, too.
        words = [str(part) for end in known if end for part in end[:2]]
        env = {k: v for k, v in os.environ.items() if k != "DLLM_PROCESS_DIR"}
        env["SSH_CONNECTION"] = " ".join(words)
        with contextlib.suppress(DllmError):
            for record in await self.living():
                self.policy.adopt(record.argv)
        return await asyncio.create_subprocess_exec(
            *(str(self._relay), "agent", "--run-dir", str(self._run_dir)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=env,
            start_new_session=True,
        )

    async def living(self) -> list[ProcessRecord]:
        return [record for record in await self._agent.records() if record.alive]

    async def listens(self, port: int) -> bool:
        """True if a relay of this console listens there.

        An rpc-server itself is reached by nobody: it takes what would run code in it.
        """
        with contextlib.suppress(DllmError):
            for record in await self.living():
                if port in _ports(record.argv):
                    return await self._agent.listens(record.pid, port)
        return False

    def left(self, link: asyncssh.SSHServerConnection) -> None:
        self.links.pop(link, None)
        self.left_at = time.monotonic()

    def measure(self, records: Sequence[ProcessRecord]) -> None:
        """Note what its living processes use, and how far away it is."""
        self.processes = len(records)
        self.used_bytes = sum(record.rss_bytes or 0 for record in records)
        found = [_values(record.argv, "-d") for record in records]
        devices = (
            one for values in found for text in values for one in text.split(",")
        )
        self._devices = tuple(sorted(set(devices)))
        if not self.links:
            self._rtt_ms = None
        elif time.monotonic() - self._pinged_at > PING_EVERY_S:
            self._pinged_at = time.monotonic()
            if self._ping is None or self._ping.done():
                self._ping = asyncio.create_task(self._measure_rtt([*self.links][-1]))

    async def _measure_rtt(self, link: asyncssh.SSHServerConnection) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            self._rtt_ms = await answer_ms(link)

    @property
    def state(self) -> TenantState:
        """As it was last measured."""
        way, address, rtt_ms = "", "", self._rtt_ms
        for link, path in self.links.items():
            # The newest counts.
            way, address = "tcp", str((link.get_extra_info("peername") or [""])[0])
            if path is not None:
                now = path.now
                way = "relay" if now and now.relayed else "quic"
                address, rtt_ms = (now.address, now.rtt_ms) if now else ("", rtt_ms)
        return TenantState(
            name=self.name,
            connected=bool(self.links),
            way=way,
            address=address.removeprefix("::ffff:"),
            rtt_ms=rtt_ms if rtt_ms is None else round(rtt_ms, 1),
            processes=self.processes,
            devices=self._devices,
            memory_bytes=self.used_bytes,
        )

    def disconnect(self, why: str) -> None:
        for link in tuple(self.links):
            # Of an end "by application" the other side would not be told the reason.
            link.disconnect(asyncssh.DISC_SERVICE_NOT_AVAILABLE, why)

    async def stop(self) -> int:
        """End all its processes; how many there were."""
        records = await self.living()
        turns = asyncio.Semaphore(STOPS_AT_ONCE)

        async def stopped(name: str) -> None:
            async with turns:
                await self._agent.stop(name, STOP_GRACE_S)

        await asyncio.gather(*(stopped(record.name) for record in records))
        return len(records)

    async def close(self) -> None:
        await end_tasks(self._ping)
        await self._agent.close()


def _run_dir(paths: Paths, key: str) -> Path:
    return paths.lent_dir / sha256(key.encode()).hexdigest()[:8]


def _ports(argv: tuple[str, ...]) -> set[int]:
    digits = [end.rpartition(":")[2] for end in _values(argv, "--listen")]
    return {int(port) for port in digits if port.isdigit()}


def _values(argv: tuple[str, ...], wanted: str) -> list[str]:
    return [value for option, value in pairwise(argv) if option == wanted]


class Tenants:
    """Everything lent from here, and its end: pause, hours, memory, revocation.

    Without a ``name`` this machine is called as its system calls it.
    """

    def __init__(
        self, paths: Paths, pairings: PairingFile, limits: OwnerLimits, name: str
    ) -> None:
        self.name = name or platform.node()
        self.limits = limits
        self.log: deque[LogEntry] = deque(maxlen=LINES_MAX)
        """All that happened, the newest last."""
        self.known: dict[str, Tenant] = {}
        self.say_of_strangers = StrangerLog(self.say)
        self.by_digits = DigitsServer(pairings, self.name, self.say)
        self._paths = paths
        self._pairings = pairings
        self._looking = asyncio.Lock()
        self._asking: asyncio.Task[None] | None = None
        self.refusal = ""
        """Why nothing is lent now; empty while it is."""
        self.told = 0
        """The number of lines so far."""
        self._known_consoles = pairings.read().consoles

    def say(self, text: str) -> None:
        line = printable(text[:LINE_CHARS_MAX])
        self.told += 1
        self.log.append(LogEntry(at=round(time.time(), 3), text=line))
        log.info("%s", line)

    @property
    def lines(self) -> list[str]:
        """The texts of the log."""
        return [line.text for line in self.log]

    def log_after(self, count: int) -> list[LogEntry]:
        new = min(self.told - count, len(self.log))
        return list(self.log)[len(self.log) - new :]

    @property
    def pairings(self) -> Pairings:
        return self._pairings.read()

    async def begin(self) -> None:
        """Take up what an earlier program, which did not end well, left running.

        What the owner lends, but is not here, is said.
        """
        self._say_missing_folders()
        # Engines take their time to tell, or never do.
        self._asking = asyncio.create_task(self._say_missing_devices())
        known = {_run_dir(self._paths, c.key): c for c in self.pairings.consoles}
        for run_dir in self._paths.lent_dir.glob("*"):
            if (console := known.get(run_dir)) is not None:
                self.known[console.key] = self._new_tenant(console)
                continue
            try:
                async with local_agent_for_now(run_dir) as agent:
                    for record in await agent.records():
                        await agent.stop(record.name, STOP_GRACE_S)
            except MachineError as error:
                self.say(f"what runs in {run_dir} could not be stopped: {error}")

    def _say_missing_folders(self) -> None:
        for folder in self.limits.models:
            if not os.path.isdir(folder):
                self.say(f"there is no folder {folder}: no model in it is lent")

    async def _say_missing_devices(self) -> None:
        engines = all_engines(None, self._paths)
        named = [one for one in self.limits.devices if one != "CPU"]
        if not named or not engines:
            return
        here = ["CPU"]
        try:
            async with local_agent_for_now(self._paths.run_dir) as agent:
                for engine in engines:
                    here += [one.name for one in await list_devices(agent, engine)]
        except DllmError as error:
            self.say(f"the devices here are not known: {error}")
            return
        if missing := [one for one in named if one not in here]:
            known = ", ".join(dict.fromkeys(here))
            self.say(
                f"no device here is called {', '.join(missing)}; here are: {known}"
            )

    # --- who comes ------------------------------------------------------------------

    def lets_in(self, key: str, joining: Token | None) -> bool:
        if joining is not None:
            return key == line_of_raw(joining.key)
        return self.pairings.by_key(key) is not None

    def has_invited(self, secret: bytes) -> bool:
        """True for a secret of ours, good or not any more, which it is then told."""
        return self.pairings.invited(secret) is not None

    def pair(self, secret: bytes, asked: PairRequest) -> None:
        key = public_line(key_of_line(asked.key))
        name = shown_name(asked.name, "console")
        console = PairedConsole(name=name, key=key, added_at=time.time())
        self._pairings.pair(secret, console)

    def came(
        self,
        key: str,
        link: asyncssh.SSHServerConnection,
        address: str,
        path: SocketPath | None = None,
    ) -> Tenant:
        """A paired console has logged in."""
        pairings = self.pairings
        self._say_who_may_come(pairings.consoles)
        console = pairings.by_key(key)
        assert console is not None
        tenant = self.known.get(key)
        if tenant is None:
            tenant = self.known[key] = self._new_tenant(console)
        # A stream of QUIC has none.
        tenant.policy.address = address or tenant.policy.address
        if not tenant.links and not self.refusal:
            self.say(f"{tenant.name} has connected")
        tenant.links[link] = path
        self._pairings.saw(console.name)
        return tenant

    def left(self, tenant: Tenant, link: asyncssh.SSHServerConnection) -> None:
        """A connection of a console has ended."""
        tenant.left(link)
        if not tenant.links and not self.refusal:
            self.say(f"{tenant.name} has disconnected")

    def _new_tenant(self, console: PairedConsole) -> Tenant:
        run_dir = _run_dir(self._paths, console.key)
        policy = AgentPolicy(
            self.limits,
            relay=relay_binary(),
            engines_dir=self._paths.engines_dir,
            engine_folders=[Path(e.directory) for e in all_engines(None, self._paths)],
            run_dir=run_dir,
        )
        return Tenant(console, policy, run_dir, lambda: self.used_bytes)

    def hello(self) -> WorkerHello:
        libc = " ".join(platform.libc_ver()).strip()
        found = self.pairings
        if (quic := found.quic) is not None:
            # Where the key is not known, it is dialled without the relay.
            with contextlib.suppress(MachineError):
                quic = quic.with_key(RelayFile(self._paths.relays_file))
        places = (place(one, found.port) for one in found.addresses if found.port)
        return WorkerHello(
            protocol=PROTOCOL,
            name=self.name,
            version=version("dllm-tui"),
            os=platform.system(),
            arch=platform.machine(),
            libc=libc,
            relay=str(relay_binary()),
            models=self.limits.models,
            writable=self.limits.writable,
            refusal=self.refusal,
            places=tuple(places)[:ADDRESSES_MAX],
            quic=quic,
        )

    # --- looking after it -----------------------------------------------------------

    async def look(self) -> None:
        """See to the owner's wishes; called every second."""
        async with self._looking:
            await self._look()

    def _say_who_may_come(self, consoles: Sequence[PairedConsole]) -> None:
        """Tell pairings and revocations, whatever program made them."""
        before = {(one.key, one.added_at) for one in self._known_consoles}
        now = {one.key for one in consoles}
        for one in self._known_consoles:
            if one.key not in now:
                self.say(f"{one.name} is revoked")
        for one in consoles:
            if (one.key, one.added_at) not in before:
                dials = ", and is dialled from here" if one.places else ""
                self.say(f"{one.name} is paired{dials}")
        self._known_consoles = tuple(consoles)

    async def _look(self) -> None:
        pairings = self.pairings
        self._say_who_may_come(pairings.consoles)
        for tenant in tuple(self.known.values()):
            console = pairings.by_key(tenant.key)
            if console is None:
                # Only once nothing is left: a start may have been under way.
                left = await self._end(tenant, "its owner has revoked this console")
                if left == 0 and not tenant.links:
                    self.known.pop(tenant.key, None)
                    await tenant.close()
            else:
                tenant.name = console.name
        refusal = self.limits.refusal(pairings.paused)
        if refusal != self.refusal:
            self.refusal = refusal
            self.say(f"nothing is lent now: {refusal}" if refusal else "lent again")
        if refusal:
            for tenant in tuple(self.known.values()):
                await self._end(tenant, refusal)
            return
        await self._measure()

    async def _measure(self) -> None:
        for tenant in tuple(self.known.values()):
            try:
                records = await tenant.living()
            except MachineError as error:
                await self._end(tenant, str(error))
                continue
            tenant.measure(records)
            gone_s = time.monotonic() - tenant.left_at
            if records and not tenant.links and gone_s > ABANDONED_S:
                await self._end(tenant, "it has not come back")
        used, most = self.used_bytes, self.limits.memory_bytes
        if most is not None and used > most:
            largest = max(self.known.values(), key=lambda tenant: tenant.used_bytes)
            uses, lends = format_bytes(used), format_bytes(most)
            await self._end(largest, f"it uses {uses}, its owner lends {lends}")

    @property
    def used_bytes(self) -> int:
        return sum(tenant.used_bytes for tenant in self.known.values())

    async def _end(self, tenant: Tenant, why: str) -> int | None:
        """End what runs for a console, and tell it why; how many programs there were.

        None: they could not be ended.
        """
        tenant.disconnect(why)
        try:
            count = await tenant.stop()
        except MachineError as error:
            self.say(f"what runs for {tenant.name} could not be stopped: {error}")
            return None
        tenant.measure(())
        if count:
            self.say(f"{tenant.name}: ended {count} of its programs, {why}")
        return count

    async def close(self) -> None:
        await end_tasks(self._asking)
        for tenant in tuple(self.known.values()):
            await self._end(tenant, "its owner has ended lending")
            await tenant.close()

    def status(self, ways: Sequence[str] = ()) -> WorkerStatus:
        """All of it; ``ways`` are those by which consoles come."""
        return WorkerStatus(
            name=self.name,
            pid=os.getpid(),
            refusal=self.refusal,
            ways=tuple(ways),
            limits=self.limits,
            used_bytes=self.used_bytes,
            consoles=tuple(tenant.state for tenant in self.known.values()),
            log=tuple(self.log),
        )
