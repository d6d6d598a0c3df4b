"""This machine, lent: to whom, what runs for them, and when that ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import time
from collections import deque
from hashlib import sha256
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh

from backends.engine.find import all_engines
from backends.errors import DllmError, HostError
from backends.machines.local import local_host, local_host_for_now
from backends.mesh.book import PairedConsole
from backends.mesh.identity import key_of_line, key_of_raw, public_line
from backends.mesh.policy import AgentPolicy
from backends.mesh.words import PROTOCOL, WorkerHello
from backends.paths import relay_binary
from backends.printable import printable
from backends.state import Value
from backends.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.machines.agent import AgentSession, ProcessRecord
    from backends.mesh.book import Book, BookFile
    from backends.mesh.limits import OwnerLimits
    from backends.mesh.token import Token
    from backends.mesh.words import PairRequest
    from backends.paths import Paths

log = logging.getLogger(__name__)

ABANDONED_S = 600.0
"""So long after a console's last connection its processes go on."""
STOP_GRACE_S = 2.0
LINES_MAX = 200
NAME_MAX = 32


class LoanState(Value, frozen=True, kw_only=True):
    """A console's use of this machine now."""

    name: str
    connected: bool
    processes: int
    memory_bytes: int


class Loan:
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
        self.lent_bytes = lent_bytes
        """Main memory that all consoles use."""
        self.links: set[asyncssh.SSHServerConnection] = set()
        self.left_at = time.monotonic()
        self._run_dir = run_dir
        self._relay = relay_binary()
        self._host: AgentSession = local_host(run_dir, name=console.name)

    async def start_agent(self) -> asyncio.subprocess.Process:
        """An agent for a session of the console, over its processes alone."""
        link = next(iter(self.links), None)
        ends = ("peername", "sockname")
        known = [link.get_extra_info(end) for end in ends] if link else []
        # As sshd tells it: the relay beside a worker listens at that address, too.
        words = [str(part) for end in known if end for part in end[:2]]
        env = {k: v for k, v in os.environ.items() if k != "DLLM_PROCESS_DIR"}
        env["SSH_CONNECTION"] = " ".join(words)
        with contextlib.suppress(DllmError):
            for record in await self.living():
                self.policy.adopt(record.argv)
        return await asyncio.create_subprocess_exec(
            *(str(self._relay), "host", "--run-dir", str(self._run_dir)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=env,
            start_new_session=True,
        )

    async def living(self) -> list[ProcessRecord]:
        return [record for record in await self._host.records() if record.alive]

    async def listens(self, port: int) -> bool:
        """True if a relay of this console listens there.

        An rpc-server itself is reached by nobody: it takes what would run code in it.
        """
        with contextlib.suppress(DllmError):
            for record in await self.living():
                if port in _ports(record.argv):
                    return await self._host.listens(record.pid, port)
        return False

    def left(self, link: asyncssh.SSHServerConnection) -> None:
        self.links.discard(link)
        self.left_at = time.monotonic()

    def disconnect(self, why: str) -> None:
        for link in tuple(self.links):
            # Of an end "by application" the other side would not be told the reason.
            link.disconnect(asyncssh.DISC_SERVICE_NOT_AVAILABLE, why)

    async def stop(self) -> int:
        """End all its processes; how many there were."""
        records = await self.living()
        await asyncio.gather(
            *(self._host.stop(record.name, STOP_GRACE_S) for record in records)
        )
        return len(records)

    async def close(self) -> None:
        await self._host.close()


def _run_dir(paths: Paths, key: str) -> Path:
    return paths.lent_dir / sha256(key.encode()).hexdigest()[:8]


def _ports(argv: tuple[str, ...]) -> set[int]:
    ends = [value for option, value in pairwise(argv) if option == "--listen"]
    digits = [end.rpartition(":")[2] for end in ends]
    return {int(port) for port in digits if port.isdigit()}


class Lending:
    """Everything lent from here, and its end: pause, hours, memory, revocation.

    Without a ``name`` this machine is called as its system calls it.
    """

    def __init__(
        self, paths: Paths, book: BookFile, limits: OwnerLimits, name: str
    ) -> None:
        self.name = name or platform.node()
        self.limits = limits
        self.lines: deque[str] = deque(maxlen=LINES_MAX)
        """All that happened, the newest last."""
        self.loans: dict[str, Loan] = {}
        self._paths = paths
        self._book = book
        self.refusal = ""
        """Why nothing is lent now; empty while it is."""
        self.told = 0
        """The number of lines so far."""

    def say(self, text: str) -> None:
        line = printable(text)
        self.told += 1
        self.lines.append(f"{time.strftime('%H:%M:%S')} {line}")
        log.info("%s", line)

    def lines_after(self, count: int) -> list[str]:
        new = min(self.told - count, len(self.lines))
        return list(self.lines)[len(self.lines) - new :]

    @property
    def book(self) -> Book:
        return self._book.read()

    async def begin(self) -> None:
        """Take up what an earlier program, which did not end well, left running."""
        known = {_run_dir(self._paths, c.key): c for c in self.book.consoles}
        for run_dir in self._paths.lent_dir.glob("*"):
            if (console := known.get(run_dir)) is not None:
                self.loans[console.key] = self._new_loan(console)
                continue
            async with local_host_for_now(run_dir) as host:
                for record in await host.records():
                    await host.stop(record.name, STOP_GRACE_S)

    # --- who comes ------------------------------------------------------------------

    def lets_in(self, key: str, joining: Token | None) -> bool:
        if joining is not None:
            return key == public_line(key_of_raw(joining.key))
        return self.book.by_key(key) is not None

    def has_invited(self, secret: bytes) -> bool:
        """True for a secret of ours, good or not any more, which it is then told."""
        return self.book.invited(secret) is not None

    def pair(self, secret: bytes, asked: PairRequest) -> None:
        key = public_line(key_of_line(asked.key))
        name = printable(asked.name)[:NAME_MAX].strip() or "console"
        console = PairedConsole(name=name, key=key, added_at=time.time())
        self._book.pair(secret, console)
        self.say(f"{name} is paired")

    def came(self, key: str, link: asyncssh.SSHServerConnection, address: str) -> Loan:
        """A paired console has logged in."""
        console = self.book.by_key(key)
        assert console is not None
        loan = self.loans.get(key)
        if loan is None:
            loan = self.loans[key] = self._new_loan(console)
        loan.policy.address = address
        if not loan.links and not self.refusal:
            self.say(f"{loan.name} has connected")
        loan.links.add(link)
        self._book.saw(console.name)
        return loan

    def _new_loan(self, console: PairedConsole) -> Loan:
        run_dir = _run_dir(self._paths, console.key)
        policy = AgentPolicy(
            self.limits,
            relay=relay_binary(),
            engines_dir=self._paths.engines_dir,
            engine_folders=[Path(e.directory) for e in all_engines(None, self._paths)],
            run_dir=run_dir,
        )
        return Loan(console, policy, run_dir, lambda: self.used_bytes)

    def hello(self) -> WorkerHello:
        libc = " ".join(platform.libc_ver()).strip()
        return WorkerHello(
            protocol=PROTOCOL,
            name=self.name,
            version=version("dllm-tui"),
            os=platform.system(),
            arch=platform.machine(),
            libc=libc,
            relay=str(relay_binary()),
            models=tuple(map(str, self.limits.models)),
            writable=self.limits.writable,
            refusal=self.refusal,
        )

    # --- looking after it -----------------------------------------------------------

    async def look(self) -> None:
        """See to the owner's wishes; called every second."""
        book = self.book
        for loan in tuple(self.loans.values()):
            console = book.by_key(loan.key)
            if console is None:
                await self._end(loan, "its owner has revoked this console")
                self.loans.pop(loan.key, None)
                await loan.close()
            else:
                loan.name = console.name
        refusal = self.limits.refusal(book.paused)
        if refusal != self.refusal:
            self.refusal = refusal
            self.say(f"nothing is lent now: {refusal}" if refusal else "lent again")
        if refusal:
            for loan in self.loans.values():
                await self._end(loan, refusal)
            return
        await self._measure()

    async def _measure(self) -> None:
        for loan in self.loans.values():
            records = await loan.living()
            loan.used_bytes = sum(record.rss_bytes or 0 for record in records)
            gone_s = time.monotonic() - loan.left_at
            if records and not loan.links and gone_s > ABANDONED_S:
                await self._end(loan, "it has not come back")
        used, most = self.used_bytes, self.limits.memory_bytes
        if most is not None and used > most:
            largest = max(self.loans.values(), key=lambda loan: loan.used_bytes)
            uses, lends = format_bytes(used), format_bytes(most)
            await self._end(largest, f"it uses {uses}, its owner lends {lends}")

    @property
    def used_bytes(self) -> int:
        return sum(loan.used_bytes for loan in self.loans.values())

    async def _end(self, loan: Loan, why: str) -> None:
        """End what runs for a console, and tell it why."""
        loan.disconnect(why)
        try:
            count = await loan.stop()
        except HostError as error:
            self.say(f"what runs for {loan.name} could not be stopped: {error}")
            return
        loan.used_bytes = 0
        if count:
            self.say(f"{loan.name}: ended {count} of its programs, {why}")

    async def close(self) -> None:
        for loan in self.loans.values():
            await self._end(loan, "its owner has ended lending")
            await loan.close()

    async def states(self) -> tuple[LoanState, ...]:
        found = [
            LoanState(
                name=loan.name,
                connected=bool(loan.links),
                processes=len(await loan.living()),
                memory_bytes=loan.used_bytes,
            )
            for loan in self.loans.values()
        ]
        return tuple(found)
