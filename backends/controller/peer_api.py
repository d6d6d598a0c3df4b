"""The part of the API that is about other machines, and examines all of them."""

from __future__ import annotations

import asyncio
import os
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING

from aiohttp import web
from msgspec.structs import replace

from backends.config import PeerConfig
from backends.controller.event_recorders import WorkRecorder
from backends.controller.http_server import Parts, body, json_response
from backends.errors import DllmError
from backends.machine_names import LOCAL
from backends.machines.health import READ_S, read_health
from backends.machines.machine import Machine
from backends.machines.path_measurement import measure_paths
from backends.mesh.token import LIFE_S
from backends.plan_files import rename_in_plans
from backends.printable import printable
from backends.state import (
    EventKind,
    KnownMachine,
    Peer,
    PeerAnswer,
    PeerInvitation,
    ProvisionMode,
    Value,
)
from backends.state.health import MachineHealth

if TYPE_CHECKING:
    from backends.controller.model_copies import ModelCopies
    from backends.machines.peer import SshPeer


class PeerRequest(Value, frozen=True, kw_only=True):
    """A peer to add: one of ``ssh``, ``bare`` and the ``token`` of a worker."""

    name: str = ""
    """Empty: as the worker of the token is called."""
    ssh: str | None = None
    bare: str | None = None
    token: str | None = None
    via: str | None = None
    """For a token: the SSH host to go through where no other way goes."""
    trusted: tuple[str, ...] = ()
    """Fingerprints of SSH host keys that nobody needs to be asked about."""

    def __repr__(self) -> str:
        return f"PeerRequest(name={self.name!r})"


class InviteRequest(Value, frozen=True, kw_only=True):
    name: str = ""
    """For the peer; empty: as it is called."""
    life_s: float = LIFE_S
    addresses: tuple[str, ...] = ()
    """At which it dials us; empty: those that this machine has."""


class PairingRequest(Value, frozen=True, kw_only=True):
    place: str
    """``10.0.0.7:50080``."""
    name: str = ""
    """For the peer; empty: as it is called."""


class PairingDecision(Value, frozen=True, kw_only=True):
    agrees: bool


class RenameRequest(Value, frozen=True, kw_only=True):
    name: str
    """The new one."""


class ProvisionRequest(Value, frozen=True, kw_only=True):
    """The way to install: copy our binaries, build there, or either."""

    mode: ProvisionMode = ProvisionMode.AUTO


class DeliverRequest(Value, frozen=True, kw_only=True):
    source: str
    """As ``models get`` takes it, or the path of a model here or at a peer."""
    layers: str = ""
    """Only these: ``10-19,output``; empty: all of it."""
    settings: dict[str, str] = {}
    """Of Hugging Face, from the environment of the asker."""


class PeerApi:
    """Answers requests about peers. Long work goes on after its client leaves.

    Its changes become events. What would slow a machine down is not measured while it
    takes part in a cluster.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._peers = parts.peers
        self._serves = parts.clusters.serves

    @cached_property
    def _model_copies(self) -> ModelCopies:
        # Without peers none needs asyncssh, which takes half of a controller's start.
        from backends.controller.model_copies import ModelCopies

        catalogue, paths = self._parts.catalogue, self._parts.inventory.paths
        return ModelCopies(self._peers, lambda: catalogue.listing, paths.cache_dir)

    def routes(self) -> list[web.RouteDef]:
        one = "/v1/peers/{name}"
        return [
            web.get("/v1/peers", self._list),
            web.get("/v1/peers-to-pick", self._to_pick),
            web.post("/v1/peers", self._add),
            web.post("/v1/invitations", self._invite),
            web.get("/v1/invitations/{id}", self._joined),
            web.get("/v1/found", self._found),
            web.post("/v1/pairings", self._begin_pairing),
            web.post("/v1/pairings/{digits}", self._decide_pairing),
            web.get("/v1/pairings/{digits}", self._pairing_outcome),
            web.delete(one, self._remove),
            web.post(f"{one}/rename", self._rename),
            web.post(f"{one}/probe", self._probe),
            web.post(f"{one}/answer", self._answer),
            web.post(f"{one}/provision", self._provision),
            web.post(f"{one}/clean", self._clean),
            web.post(f"{one}/deliver", self._deliver),
            web.post(f"{one}/cancel", self._cancel),
            web.post("/v1/doctor/health", self._health),
            web.post("/v1/doctor/ways", self._ways),
        ]

    async def _list(self, request: web.Request) -> web.Response:
        return json_response(self._peers.values())

    async def _to_pick(self, request: web.Request) -> web.Response:
        from backends.machines.ssh.config import configured_names

        names = await asyncio.to_thread(configured_names)
        taken = {peer.address for peer in self._peers.values()}
        aliases = [KnownMachine(name=n, address=n) for n in names if n not in taken]
        told = await self._parts.gossip.known(names)
        return json_response((*told, *aliases))

    async def _add(self, request: web.Request) -> web.Response:
        asked = await body(request, PeerRequest)
        if asked.token is not None:
            added = await self._peers.add_by_token(asked.name, asked.token, asked.via)
            told = self._told(request, added.name)
            told.did(f"added the peer {added.name} by a token")
            return json_response(added)
        config = PeerConfig(ssh=asked.ssh, bare=asked.bare)
        added = self._peers.add(asked.name, config, asked.trusted)
        how = asked.ssh or asked.bare
        self._told(request, asked.name).did(f"added the peer {asked.name} ({how})")
        return json_response(added)

    async def _invite(self, request: web.Request) -> web.Response:
        asked = await body(request, InviteRequest)
        token = await self._peers.invite(asked.name, asked.life_s, asked.addresses)
        self._told(request, LOCAL).did("made a token for a machine to join")
        return json_response(
            PeerInvitation(
                id=token.id,
                token=token.text,
                expires_at=token.expires_at,
                addresses=token.addresses,
                port=token.port,
            )
        )

    async def _joined(self, request: web.Request) -> web.Response:
        peer = self._peers.joined(request.match_info["id"])
        return json_response([peer] if peer else [])

    async def _found(self, request: web.Request) -> web.Response:
        return json_response(self._peers.found())

    async def _begin_pairing(self, request: web.Request) -> web.Response:
        asked = await body(request, PairingRequest)
        return json_response(await self._peers.begin_pairing(asked.name, asked.place))

    async def _decide_pairing(self, request: web.Request) -> web.Response:
        asked = await body(request, PairingDecision)
        self._peers.decide_pairing(request.match_info["digits"], asked.agrees)
        return json_response(self._peers.values())

    async def _pairing_outcome(self, request: web.Request) -> web.Response:
        added = await self._peers.pairing_outcome(request.match_info["digits"])
        told = self._told(request, added.name)
        told.did(f"added the peer {added.name} by comparing digits")
        return json_response(added)

    async def _remove(self, request: web.Request) -> web.Response:
        name = _name(request)
        told = self._told(request, name)
        await self._parts.gossip.withdraw(name)
        await self._peers.remove(name)
        told.did(f"removed the peer {name}")
        return json_response(self._peers.values())

    async def _rename(self, request: web.Request) -> web.Response:
        asked, name = await body(request, RenameRequest), _name(request)
        renamed = await asyncio.shield(self._renamed(name, asked.name))
        told = self._told(request, asked.name)
        told.did(f"renamed the peer {name} to {asked.name}")
        return json_response(renamed)

    async def _renamed(self, name: str, new: str) -> Peer:
        renamed = await self._peers.rename(name, new)
        await self._parts.clusters.calibrations.rename(name, new)
        paths = self._parts.inventory.paths
        folders = paths.plans_dir, paths.launches_dir
        await asyncio.to_thread(rename_in_plans, name, new, *folders)
        return renamed

    async def _probe(self, request: web.Request) -> web.Response:
        known = self._peers.known(_name(request))
        await known.look()
        return json_response(known.peer)

    async def _answer(self, request: web.Request) -> web.Response:
        asked = await body(request, PeerAnswer)
        known = self._ssh(request)
        await known.answer(asked)
        return json_response(known.peer)

    async def _provision(self, request: web.Request) -> web.Response:
        asked = await body(request, ProvisionRequest)
        known = self._ssh(request)
        what = f"installed engine and helper on {_name(request)}"
        with self._told(request).tries(what, EventKind.ENGINE) as remarks:
            note = await asyncio.shield(known.provision(asked.mode))
            remarks.append(note)
        return json_response(replace(known.peer, note=note or known.peer.note))

    async def _clean(self, request: web.Request) -> web.Response:
        known = self._ssh(request)
        what = f"removed what was installed on {_name(request)}"
        with self._told(request).tries(what, EventKind.ENGINE):
            freed = await asyncio.shield(known.clean())
        return json_response({"freed_bytes": freed})

    async def _deliver(self, request: web.Request) -> web.Response:
        asked = await body(request, DeliverRequest)
        known = self._ssh(request)
        what = f"got {printable(asked.source)} on {_name(request)}"
        if os.path.isabs(asked.source):
            what = f"copied {PurePath(asked.source).name} to {_name(request)}"
        with self._told(request).tries(what):
            work = self._model_copies.deliver(
                known, asked.source, asked.layers, asked.settings
            )
            return json_response(await asyncio.shield(work))

    async def _cancel(self, request: web.Request) -> web.Response:
        known = self._ssh(request)
        await known.cancel_work()
        return json_response(known.peer)

    def _told(self, request: web.Request, name: str = "") -> WorkRecorder:
        return self._parts.recorder(request, name or _name(request))

    def _ssh(self, request: web.Request) -> SshPeer:
        return self._peers.ssh(_name(request))

    async def _health(self, request: web.Request) -> web.Response:
        found = await asyncio.gather(*map(self._read, self._peers.all()))
        return json_response(found)

    async def _read(self, machine: Machine) -> MachineHealth:
        quiet = self._serves(machine.name)
        try:
            async with asyncio.timeout(2 * READ_S):
                return await read_health(machine.agent, quiet=quiet)
        except DllmError as error:
            why = error.what
        except TimeoutError:
            why = f"it did not answer within {2 * READ_S:g} s"
        return MachineHealth(machine=machine.name, unread=why)

    async def _ways(self, request: web.Request) -> web.Response:
        machines = [one for one in self._peers.all() if _has_helper(one)]
        found = await measure_paths(machines, self._peers.values(), self._serves)
        return json_response(found)


def _name(request: web.Request) -> str:
    return request.match_info["name"]


def _has_helper(machine: Machine) -> bool:
    try:
        machine.relay_program()
    except DllmError:
        return False
    return True
