"""The consoles of one owner tell each other of the machines that they know.

A console logs in to machines of its owner by SSH. Where a console has run in the same
account, it leaves a file: its own machine and its peers of SSH, with addresses, host
keys, devices and models. The console there shows them, and adds each by one command.

A lent machine belongs to somebody else: it is told nothing, and nobody is told of it.
With ``gossip = false`` nothing is told, or heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import stat
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from backends.errors import DllmError, UsageError
from backends.machine_names import suggested_name
from backends.machines.ssh.config import DEFAULT_PORT, Destination, resolve
from backends.printable import printable
from backends.state import NOT_JSON, Device, KnownMachine, ModelFile, Value

if TYPE_CHECKING:
    from backends.machines.peer import SshPeer
    from backends.machines.peers import Peers
    from backends.machines.ssh.config import Settings

log = logging.getLogger(__name__)

TELL_EVERY_S = 10.0
BYTES_MAX = 128 << 10
FILES_MAX = 8
"""Consoles that are listened to; the newest."""
MACHINES_MAX = 32
DEVICES_MAX = 16
MODELS_MAX = 64
KEPT_S = 30 * 86_400.0
"""So long a console that says nothing more is believed, and its file kept."""
WITHDRAW_S = 5.0

# The first line is the address by which that machine sees us: only it knows one.
_LEAVE = """\
state="${XDG_STATE_HOME:-$HOME/.local/state}/dllm-tui"
[ -e "$state/controller.log" ] || exit 0
umask 077
mkdir -p -- "$state/told" || exit
printf '%s\\n%s' "${SSH_CONNECTION%% *}" "$2" >"$state/told/$1.part" || exit
mv -f -- "$state/told/$1.part" "$state/told/$1.json"
"""
_WITHDRAW = 'rm -f -- "${XDG_STATE_HOME:-$HOME/.local/state}/dllm-tui/told/$1.json"'
_NOTHING = "nothing"


class _Told(Value, frozen=True, kw_only=True):
    machines: tuple[KnownMachine, ...]
    """The first one tells; of its own address it knows the user alone."""


class Gossip:
    """Tells the machines of our owner, and knows what was told to us in ``folder``."""

    def __init__(
        self,
        peers: Peers,
        folder: Path,
        *,
        own: Callable[[], KnownMachine],
        serves: Callable[[str], bool],
        is_on: Callable[[], bool],
    ) -> None:
        self._peers = peers
        self._folder = folder
        self._own = own
        self._serves = serves
        self._is_on = is_on
        self._done: dict[str, object] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            try:
                await self.tell_all()
            except Exception:
                # All else that the controller does is worth more.
                log.exception("machines are not told of each other")

    async def tell_all(self) -> None:
        """Tell each machine of the others, once after each probe."""
        peers = self._peers.of_owner()
        for peer in peers:
            # As a probe, it is for when nothing serves there.
            if not peer.connected or self._serves(peer.name):
                continue
            with contextlib.suppress(DllmError):
                if self._is_on():
                    # If it fails, it is tried again after the next probe.
                    await self._tell(peer, [one for one in peers if one is not peer])
                elif self._done.get(peer.name) != _NOTHING:
                    await self._withdraw(peer)
                    self._done[peer.name] = _NOTHING

    async def withdraw(self, name: str) -> None:
        """Remove what was told to a peer that is to be forgotten, if it is reached."""
        for peer in self._peers.of_owner():
            if peer.name == name and peer.connected and not self._serves(name):
                with contextlib.suppress(DllmError):
                    await self._withdraw(peer)

    async def _withdraw(self, peer: SshPeer) -> None:
        self._done.pop(peer.name, None)
        own_id = self._peers.own_id()
        await peer.connection.run(_WITHDRAW, own_id, timeout_s=WITHDRAW_S)

    async def _tell(self, peer: SshPeer, others: list[SshPeer]) -> None:
        done = peer.facts.at, {one.name for one in others if one.facts.at}
        if self._done.get(peer.name) == done:
            return
        self._done[peer.name] = done
        own = self._own()
        if not await asyncio.to_thread(_address_for_all, peer.peer.address):
            # The address by which it sees us is that of a machine between.
            own = replace(own, address="")
        machines = [own]
        for one in others:
            with contextlib.suppress(DllmError):
                machines += await asyncio.to_thread(_known, one)
        text = await asyncio.to_thread(encoded, machines)
        await peer.connection.run(_LEAVE, self._peers.own_id(), text)

    async def known(self, aliases: Collection[str]) -> list[KnownMachine]:
        """The machines we were told of that are no peers of ours.

        ``aliases`` are names of the ssh config, which others cannot have.
        """
        if not self._is_on():
            return []
        found = {one.address: one for one in await asyncio.to_thread(self._read)}
        told = {one.name for one in found.values()}
        own = [one.peer.address for one in self._peers.of_owner()]
        for text in (*own, *(alias for alias in aliases if alias in told)):
            with contextlib.suppress(DllmError):
                found.pop(await asyncio.to_thread(_address_for_all, text), None)
        taken = {*aliases, *(peer.name for peer in self._peers.values())}
        named = []
        for one in found.values():
            name = suggested_name(one.name, taken)
            taken.add(name)
            named.append(replace(one, name=name))
        return named

    def _read(self) -> list[KnownMachine]:
        oldest = time.time() - KEPT_S
        aged = []
        for file in self._folder.glob("*.json"):
            with contextlib.suppress(OSError):
                told = file.lstat()
                if stat.S_ISREG(told.st_mode):
                    aged.append((told.st_mtime, file))
        for _, file in (one for one in aged if one[0] <= oldest):
            with contextlib.suppress(OSError):
                file.unlink()
        newest = sorted(one for one in aged if one[0] > oldest)[-FILES_MAX:]
        return [machine for _, file in newest for machine in read_told(file)]


def encoded(machines: list[KnownMachine]) -> str:
    """The text of a file; the last ones are left out where it would be too long."""
    told = machines[:MACHINES_MAX]
    while len(data := msgspec.json.encode(_Told(machines=tuple(told)))) > BYTES_MAX:
        told.pop()
    return data.decode()


def known_machine(
    name: str,
    address: str,
    devices: Collection[Device],
    models: Collection[ModelFile],
    fingerprints: tuple[str, ...] = (),
) -> KnownMachine:
    """A machine as others are told of it: without what changes while it works."""
    return KnownMachine(
        name=name,
        address=address,
        fingerprints=fingerprints,
        devices=tuple(
            replace(device, free_bytes=0, budget_bytes=None)
            for device in list(devices)[:DEVICES_MAX]
        ),
        models=tuple(
            ModelFile(
                path=model.path,
                name=model.name,
                size_bytes=model.size_bytes,
                source=model.source,
            )
            for model in list(models)[:MODELS_MAX]
        ),
    )


def read_told(file: Path) -> Iterator[KnownMachine]:
    """Read a file that another console left; what makes no sense is passed over."""
    try:
        with file.open("rb") as opened:
            first, _, text = opened.read(BYTES_MAX + 256).partition(b"\n")
        told = msgspec.json.decode(text, type=_Told).machines[:MACHINES_MAX]
        come_from = first.decode("ascii")
    except (OSError, *NOT_JSON) as error:
        log.info("%s is passed over: %s", file, error)
        return
    for number, one in enumerate(told):
        address = one.address if number else f"{one.address}{come_from}"
        if not one.address:
            continue
        with contextlib.suppress(UsageError, ValueError):
            there = Destination.parse(address)
            if not _is_here(there.host):
                told_by = printable(told[0].name) or "another console"
                yield replace(one, address=str(there), told_by=told_by)


def _known(peer: SshPeer) -> list[KnownMachine]:
    it = resolve(Destination.parse(peer.peer.address))
    address, facts = _shared_address(it), peer.facts
    if not address or not facts.at:
        return []
    own = peer.name, address, facts.devices, facts.models, _trusted_keys(it)
    return [known_machine(*own)]


def _address_for_all(text: str) -> str:
    return _shared_address(resolve(Destination.parse(text)))


def _shared_address(it: Settings) -> str:
    # Empty for a machine that only we can reach, as through another host.
    if it.jumps or not it.is_dialled or _is_here(it.host):
        return ""
    port = None if it.port == DEFAULT_PORT else it.port
    return str(Destination(host=it.host, user=it.user, port=port))


def _trusted_keys(it: Settings) -> tuple[str, ...]:
    # It loads asyncssh, which a controller without peers does not need.
    from backends.machines.ssh.authentication import fingerprint, matcher

    trusted, _, revoked = matcher(it)(it.alias or it.host, "", it.port)
    keys = {fingerprint(key) for key in trusted} - set(map(fingerprint, revoked))
    return tuple(sorted(keys))


def _is_here(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    return host == "localhost"
