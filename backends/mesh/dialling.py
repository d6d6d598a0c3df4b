"""Places of machines: those to dial, and those at which we can be dialled."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol

import psutil

from backends.errors import MachineError, UsageError
from backends.machines.bare import system_words
from backends.machines.ssh.authentication import dial
from backends.mesh.messages import BANNER
from backends.mesh.token import place
from backends.tasks import end_tasks, until_readable

if TYPE_CHECKING:
    from backends.state import PeerPath

Way = Callable[[], Awaitable[socket.socket]]

DIAL_S = 5.0
HEAD_START_S = 0.25
"""Of each place over the next."""
BANNER_S = 5.0
BACKLOG = 128
FIRST_LOOK_S = 5.0
"""From a connection by QUIC to the first look for a better way."""
LAST_LOOK_S = 300.0
_PLACE = re.compile(r"(?:\[(?P<v6>[^]]*)\]|(?P<host>[^:]*))(?::(?P<port>\d{1,5}))?")


class Dial(Protocol):
    """A way to get a connected socket to one machine; TCP, or anything like it."""

    @property
    def label(self) -> str:
        """The place as messages name it."""
        ...

    @property
    def shares(self) -> bool:
        """True if there is one socket at a time, for tokens and files alike."""
        ...

    async def connected(self) -> socket.socket: ...

    async def otherwise(self) -> socket.socket:
        """Another way, after another machine answered."""
        ...

    async def better(self, path: PeerPath | None) -> socket.socket:
        """By a better way than the ``path`` that is there: by TCP at best."""
        ...


async def no_other_way(*_: object) -> NoReturn:
    """For a dial that knows one way."""
    raise MachineError("There is no other way")


class SocketPath(Protocol):
    """The path that a socket takes; it may change while that is used."""

    @property
    def now(self) -> PeerPath | None: ...


class IndirectSocket(socket.socket):
    """A socket of another way than TCP to the machine itself."""

    path: SocketPath


class Dialled:
    """A machine that listens at one of some places.

    ``says``: the first words to it, of one that is known by them.
    """

    shares = False
    better = no_other_way

    def __init__(self, places: Sequence[str], says: bytes = b"") -> None:
        self._places = places
        self._says = says
        self._here = ""
        self._left: tuple[str, ...] = ()
        self.label = " or ".join(places)

    async def connected(self) -> socket.socket:
        self._here, self._left = "", tuple(self._places)
        return await self._dialled()

    async def otherwise(self) -> socket.socket:
        """At the places that are left: another machine answered at the last one."""
        self._left = tuple(one for one in self._left if one != self._here)
        if not self._left:
            await no_other_way()
        return await self._dialled()

    async def _dialled(self) -> socket.socket:
        # Of several places none is taken where another server listens.
        greets = len(self._left) > 1
        made, self._here = await dial_first(self._left, self._says, greets=greets)
        return made


async def said(made: socket.socket, words: bytes) -> socket.socket:
    """The socket itself, once these words are on their way."""
    made.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_sendall(made, words)
    except OSError as error:
        made.close()
        raise MachineError("The connection broke at once") from error
    except BaseException:
        made.close()
        raise
    return made


async def soonest(ways: Sequence[Way], head_start_s: float) -> socket.socket:
    """The socket of whichever connects first, as by happy eyeballs.

    Each has a head start over the next.
    """
    tasks: list[asyncio.Future[socket.socket]] = []
    taken: asyncio.Future[socket.socket] | None = None
    try:
        for way in ways:
            if not any(map(_succeeded, tasks)):
                tasks.append(asyncio.ensure_future(way()))
                await _until_one_succeeds(tasks, head_start_s)
        await _until_one_succeeds(tasks)
        taken = next(filter(_succeeded, tasks), None)
        if taken is None:
            why = ", and ".join(dict.fromkeys(map(_why, tasks)))
            raise MachineError(why, "Does its dllm-tui worker run?")
        return taken.result()
    finally:
        await end_tasks(*tasks)
        for late in filter(_succeeded, tasks):
            if late is not taken:
                late.result().close()


async def _until_one_succeeds(
    tasks: Sequence[asyncio.Future[socket.socket]], within_s: float | None = None
) -> None:
    pending = set(tasks)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while pending and not any(map(_succeeded, tasks)):
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                pending = {task for task in tasks if not task.done()}


def _succeeded(task: asyncio.Future[socket.socket]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _why(task: asyncio.Future[socket.socket]) -> str:
    error = task.exception()
    text = error.what if isinstance(error, MachineError) else str(error)
    return text.rstrip(".")


async def greeted(made: socket.socket, label: str) -> socket.socket:
    """The socket itself, once a worker or a console greets there; else an error."""
    try:
        if not await _begins_with_banner(made):
            raise MachineError(f"no dllm-tui answers at {label}")
    except BaseException:
        made.close()
        raise
    return made


async def _begins_with_banner(made: socket.socket) -> bool:
    """Look at the first words of the other side, and leave them unread."""
    head = b""
    with contextlib.suppress(TimeoutError, OSError):
        async with asyncio.timeout(BANNER_S):
            made.setblocking(False)
            while True:
                await until_readable(made)
                before, head = head, made.recv(len(BANNER), socket.MSG_PEEK)
                if head in (BANNER, before) or not BANNER.startswith(head):
                    break
    return head == BANNER


async def dial_any(places: Sequence[str]) -> socket.socket:
    """Connect to the first place that answers."""
    return (await dial_first(places, greets=False))[0]


async def dial_first(
    places: Sequence[str], says: bytes = b"", *, greets: bool
) -> tuple[socket.socket, str]:
    """A socket to the first place that answers, or that ``greets``; and that place.

    ``says``: the first words to it.
    """
    came: dict[socket.socket, str] = {}

    async def to(one: str) -> socket.socket:
        made = await _dial(one)
        came[made] = one
        if says:
            await said(made, says)
        return await greeted(made, one) if greets else made

    try:
        made = await soonest([partial(to, one) for one in places], HEAD_START_S)
    except MachineError as error:
        raise MachineError(
            f"{' and '.join(places)} cannot be reached ({error.what})",
            "Is it switched on, on this network, and not behind a firewall?",
        ) from error
    return made, came[made]


async def _dial(one: str) -> socket.socket:
    host, _, port = one.rpartition(":")
    try:
        async with asyncio.timeout(DIAL_S):
            return await dial(host.strip("[]"), int(port))
    except TimeoutError:
        raise MachineError(f"nobody answers within {DIAL_S:g} s") from None
    except OSError as error:
        raise MachineError(system_words(error)) from error


def listening_at(address: str, port: int) -> socket.socket:
    """A listening socket; ``::`` is every address, of IPv4 too."""
    try:
        dual = address == "::" and socket.has_dualstack_ipv6()
        if address == "::" and not dual:
            address = "0.0.0.0"
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = socket.create_server(
            (address, port), family=family, backlog=BACKLOG, dualstack_ipv6=dual
        )
    except OSError as error:
        # Python names the address once more.
        why = (error.strerror or str(error)).partition(" (while attempting")[0]
        raise MachineError(
            f"Cannot listen at {place(address, port)} ({why})",
            "Something else may listen there: name another port (--listen, join_port).",
        ) from error
    made.setblocking(False)
    return made


def reachable(address: str) -> list[str]:
    """The addresses at which others may reach a listener, the likely one first."""
    if address not in ("0.0.0.0", "::"):
        return [address]
    found: list[tuple[int, str]] = []
    for name, interfaces in psutil.net_if_addrs().items():
        for one in interfaces:
            with contextlib.suppress(ValueError):
                known = ipaddress.ip_address(one.address.partition("%")[0])
                if known.is_loopback or known.is_link_local:
                    continue
                # A container's bridge is reached from nowhere else.
                inner = name.startswith(("docker", "br-", "veth", "virbr"))
                found.append((2 * inner + (known.version == 6), str(known)))
    return [one for _, one in sorted(found)] or ["127.0.0.1"]


def parse_place(text: str, port: int) -> tuple[str, int]:
    """``ADDRESS``, ``ADDRESS:PORT``, ``:PORT`` or ``[IPV6]:PORT``; blank: every one."""
    found = _PLACE.fullmatch(text.strip())
    host = (found["v6"] or found["host"] or "::") if found else ""
    digits = found["port"] if found else ""
    try:
        ipaddress.ip_address(host)
        number = int(digits) if digits else port
        if not 0 <= number < 1 << 16:
            raise ValueError
    except ValueError:
        raise UsageError(
            f"{text!r} is no place to listen at", "Write it like 0.0.0.0:50080."
        ) from None
    return host, number
