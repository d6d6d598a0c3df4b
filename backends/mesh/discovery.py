"""Workers on this network announce themselves (DNS-SD over multicast DNS).

What is announced is a hint, which anybody may forge: keys are proved by pairing.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import ipaddress
import logging
import re
import time
from hashlib import sha256
from typing import TYPE_CHECKING

from backends.errors import MachineError
from backends.mesh.dialling import dial_first
from backends.mesh.token import ADDRESSES_MAX, place
from backends.printable import printable
from backends.state import FoundWorker, FoundWorkers
from backends.tasks import TaskSet, end_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from zeroconf import ServiceStateChange
    from zeroconf.asyncio import AsyncZeroconf

SERVICE = "_dllm._tcp.local."
FOUND_MAX = 64
NAMES_MAX = 1024
"""Names that wait to be looked at, however many of them are of nobody."""
FOUND_OF_ONE_MAX = 4
"""At one address, where anybody may announce as many names as he likes."""
ASKED_S = 10.0
"""So long after the last question it is looked."""
SETTLED_S = 3.0
"""By then all that are there have answered."""
LOOK_S = 0.5
CHECK_EVERY_S = 5.0
"""A machine that was switched off says no goodbye: so each is dialled now and then."""
ANSWER_S = 2.0
CHECK_S = 5.0
WORD_CHARS = 32
_ID = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")


async def _responder_on(interfaces: Sequence[str] = ()) -> AsyncZeroconf:
    """Send and hear multicast on some interfaces, else on all."""
    # Only who announces or looks needs it, and its import takes a while.
    await asyncio.to_thread(importlib.import_module, "zeroconf.asyncio")
    from zeroconf import InterfaceChoice, IPVersion
    from zeroconf.asyncio import AsyncZeroconf

    # It says again and again what we say once.
    logging.getLogger("zeroconf").setLevel(logging.CRITICAL)
    where = list(interfaces) or InterfaceChoice.All
    versions = (None,) if interfaces else (IPVersion.All, IPVersion.V4Only)
    for version in versions:
        try:
            return AsyncZeroconf(interfaces=where, ip_version=version)
        except (OSError, RuntimeError, ValueError) as error:
            failed = error
    raise _no_multicast(failed) from failed


def _no_multicast(error: Exception) -> MachineError:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return MachineError(f"This machine sends no multicast ({why})")


@contextlib.asynccontextmanager
async def announced(
    worker: FoundWorker, addresses: Sequence[str]
) -> AsyncIterator[None]:
    """Say on the network that a worker is here, and at the end that it is gone."""
    # At one address alone it is announced there alone.
    responder = await _responder_on(addresses if len(addresses) == 1 else ())
    from zeroconf import Error
    from zeroconf.asyncio import AsyncServiceInfo

    # Two machines may have one name, but no two one id.
    label = sha256(worker.id.encode()).hexdigest()[:16]
    info = AsyncServiceInfo(
        SERVICE,
        f"{label}.{SERVICE}",
        port=int(worker.address.rpartition(":")[2]),
        properties={"name": worker.name, "id": worker.id, "version": worker.version},
        server=f"{label}.local.",
        parsed_addresses=list(addresses),
    )
    try:
        try:
            await (await responder.async_register_service(info))
        except (OSError, Error) as error:
            raise _no_multicast(error) from error
        yield
    finally:
        with contextlib.suppress(OSError, Error):
            # The goodbye is a task of its own.
            await (await responder.async_unregister_service(info))
        await responder.async_close()


class Browser:
    """Looks for workers on this network while somebody asks for them."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        """The one that was looked at last is at the end."""
        self._checking: set[str] = set()
        self._checked: dict[str, float] = {}
        self._found: dict[str, FoundWorker] = {}
        self._task: asyncio.Task[None] | None = None
        self._asked_at = self._begun_at = 0.0
        self._problem = ""

    def found(self) -> FoundWorkers:
        """The workers that are known now; it looks for more for a while."""
        self._asked_at = time.monotonic()
        if self._task is None or self._task.done():
            self._begun_at = self._asked_at
            self._task = asyncio.create_task(self._look())
        age_s = self._asked_at - self._begun_at
        workers = sorted(self._found.values(), key=lambda one: (one.name, one.address))
        return FoundWorkers(
            workers=tuple(workers),
            settled=age_s > SETTLED_S or bool(self._problem),
            problem=self._problem,
        )

    async def places_of(self, key_id: str) -> tuple[str, ...]:
        """The places of the workers of an id, after a moment of looking."""
        while True:
            found = self.found()
            here = tuple(one.address for one in found.workers if one.id == key_id)
            if here or found.settled:
                return here
            await asyncio.sleep(LOOK_S)

    async def close(self) -> None:
        await end_tasks(self._task)

    async def _look(self) -> None:
        self._names, self._checking = {}, set()
        self._checked, self._found = {}, {}
        try:
            responder = await _responder_on()
        except MachineError as error:
            self._problem = f"{error.what}: add a machine by its address or a token."
            return
        self._problem = ""
        from zeroconf.asyncio import AsyncServiceBrowser

        browser = AsyncServiceBrowser(
            responder.zeroconf, SERVICE, handlers=[self._heard]
        )
        checks = TaskSet()
        try:
            while time.monotonic() - self._asked_at < ASKED_S:
                due = time.monotonic() - CHECK_EVERY_S
                for name in tuple(self._names):
                    if len(self._checking) >= FOUND_MAX:
                        break
                    if name in self._checking:
                        continue
                    if self._checked.get(name, due) <= due:
                        self._checking.add(name)
                        checks.start(self._check(responder, name))
                await asyncio.sleep(LOOK_S)
        finally:
            await checks.end()
            self._found = {}
            await browser.async_cancel()
            await responder.async_close()

    def _heard(self, name: str, state_change: ServiceStateChange, **_: object) -> None:
        gone = {name} if state_change.name == "Removed" else set()
        if len(self._names) >= FOUND_MAX:
            # Who fills the list with names of nobody keeps no worker out.
            gone |= self._checked.keys() - self._found.keys()
        for one in gone:
            self._drop(one)
        if name not in gone and len(self._names) < NAMES_MAX:
            self._names[name] = None
        self._checked.pop(name, None)

    def _drop(self, name: str) -> None:
        for known in (self._names, self._found, self._checked):
            known.pop(name, None)

    async def _check(self, responder: AsyncZeroconf, name: str) -> None:
        worker = None
        try:
            async with asyncio.timeout(CHECK_S):
                worker = await _asked(responder, name)
        except TimeoutError:
            pass
        finally:
            self._checking.discard(name)
        self._found.pop(name, None)
        if name not in self._names:
            return
        is_room = len(self._found) < FOUND_MAX
        if worker is not None and is_room and not self._has_enough_at(worker.address):
            self._found[name] = worker
        elif len(self._names) > FOUND_MAX:
            self._drop(name)
            return
        self._checked[name] = time.monotonic()
        # Others are looked at first.
        self._names[name] = self._names.pop(name)

    def _has_enough_at(self, here: str) -> bool:
        host = here.rpartition(":")[0]
        hosts = [one.address.rpartition(":")[0] for one in self._found.values()]
        return hosts.count(host) >= FOUND_OF_ONE_MAX


async def _asked(responder: AsyncZeroconf, name: str) -> FoundWorker | None:
    """The worker of an announcement, at the first address where one answers."""
    from zeroconf.asyncio import AsyncServiceInfo

    info = AsyncServiceInfo(SERVICE, name)
    if not await info.async_request(responder.zeroconf, 1000 * ANSWER_S):
        return None
    told = {key: _word(value) for key, value in info.properties.items()}
    key_id = told.get(b"id", "")
    addresses = near(info.parsed_scoped_addresses())[:ADDRESSES_MAX]
    if not _ID.fullmatch(key_id):
        return None
    places = [place(address, info.port or 0) for address in addresses]
    try:
        made, here = await dial_first(places, greets=True)
    except MachineError:
        return None
    made.close()
    name = told.get(b"name", "")[:WORD_CHARS] or "worker"
    version = told.get(b"version", "")[:WORD_CHARS]
    return FoundWorker(name=name, address=here, version=version, id=key_id)


def near(addresses: Iterable[str]) -> list[str]:
    """The addresses that a machine of this network may have."""
    return [one for one in addresses if _is_near(one)]


def _is_near(address: str) -> bool:
    known = ipaddress.ip_address(address.partition("%")[0])
    known = getattr(known, "ipv4_mapped", None) or known
    return (known.is_private or known.is_link_local) and not known.is_loopback


def _word(value: bytes | None) -> str:
    return printable((value or b"").decode("utf-8", "replace")).strip()
