"""Every machine that takes part: what the controller needs of it, and our own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace

from backends.direct_address import DirectAddress
from backends.errors import ModelError
from backends.link.transport import (
    LinkTransport,
    PlainTransport,
    TransportSpec,
    local_transport,
    unix_endpoint,
)
from backends.machine_names import LOCAL, at_peer
from backends.models.layer_file import has_layers_of
from backends.models.search import named_folders, user_folders
from backends.paths import relay_binary
from backends.state import (
    ModelCatalogue,
    ModelFile,
    ModelInfo,
    Peer,
    SparseModel,
    Transport,
)

if TYPE_CHECKING:
    from backends.engine.ask import Engine
    from backends.machines.agent import AgentSession
    from backends.machines.local_inventory import LocalInventory


class Machine(Protocol):
    """One machine: its processes, its engine, and ways to and from its loopback."""

    @property
    def name(self) -> str: ...

    @property
    def transport(self) -> Transport: ...

    @property
    def agent(self) -> AgentSession: ...

    async def engine(self, wanted: str | None, rpc_protocol: str = "") -> Engine: ...

    async def model_path(self, model: ModelInfo) -> str: ...

    @property
    def searched(self) -> str:
        """The folders there that were searched for models: `` in A or B``."""

    async def copies_of(self, model: ModelInfo) -> tuple[str, ...]:
        """Files there that hold the model, for all that is known: may be wrong."""

    def relay_program(self) -> str: ...

    async def direct_address(self) -> DirectAddress:
        """The address at which others reach a relay there directly, if known."""

    def relay_stats(self, worker: str) -> str:
        """Path there of the socket at which a worker's relay gives out its counters."""

    async def stats_way(self, worker: str) -> LinkTransport:
        """A way from a Unix socket of ours to ``relay_stats``."""

    async def api_way(self, port: int) -> LinkTransport: ...

    async def way_to(self, port: int, spec: TransportSpec) -> LinkTransport: ...

    async def way_from(
        self, way: LinkTransport, spec: TransportSpec
    ) -> LinkTransport: ...


class LocalMachine:
    """The machine we run on: every way is no way.

    ``relay_socket`` tells where a worker's relay gives out its counters, and
    ``models`` what was found here so far.
    """

    def __init__(
        self,
        agent: AgentSession,
        inventory: LocalInventory,
        relay_socket: Callable[[str], Path],
        models: Callable[[], Iterable[ModelFile]],
    ) -> None:
        self.name = LOCAL
        self.transport = Transport.LOCAL
        self.agent = agent
        self._inventory = inventory
        self._relay_socket = relay_socket
        self._models = models

    async def engine(self, wanted: str | None, rpc_protocol: str = "") -> Engine:
        return await self._inventory.engine(wanted)

    async def model_path(self, model: ModelInfo) -> str:
        if there := at_peer(model.path):
            raise ModelError(
                f"{there[1]} is on {there[0]}, and the head has no copy of it",
                f"Make {there[0]} the head (--head {there[0]}).",
            )
        return model.path

    async def copies_of(self, model: ModelInfo) -> tuple[str, ...]:
        if model.sparse:
            return self._stand_ins(model.path, model.sparse)
        if at_peer(model.path):
            return called_alike(model, self._models())
        return (model.path,)

    @property
    def searched(self) -> str:
        folders = user_folders(self._inventory.config().model_dirs)
        return named_folders([str(folder.path) for folder in folders])

    def _stand_ins(self, path: str, sparse: SparseModel) -> tuple[str, ...]:
        found = stand_ins(sparse, path, self._models())
        here = () if at_peer(path) else (path, sparse.source)
        there = [file for file in here if os.path.isfile(file)]
        return tuple(dict.fromkeys([*there, *found]))

    def relay_program(self) -> str:
        return str(relay_binary())

    async def direct_address(self) -> DirectAddress:
        return DirectAddress(why="the worker is on the machine of the console")

    def relay_stats(self, worker: str) -> str:
        return str(self._relay_socket(worker))

    async def stats_way(self, worker: str) -> LinkTransport:
        return PlainTransport(unix_endpoint(self.relay_stats(worker)))

    async def api_way(self, port: int) -> LinkTransport:
        return local_transport(port)

    async def way_to(self, port: int, spec: TransportSpec) -> LinkTransport:
        return local_transport(port)

    async def way_from(self, way: LinkTransport, spec: TransportSpec) -> LinkTransport:
        return way


class Machines(Protocol):
    def get(self, name: str) -> Machine: ...

    def all(self) -> Iterable[Machine]:
        """Every machine that is connected, ours first."""

    def values(self) -> Sequence[Peer]:
        """Every other machine as it is now, newer than any snapshot."""

    async def reached(self, names: Iterable[str]) -> None:
        """Wait until these are connected.

        Raises:
            NeedsAnswer: one asks the user something.
        """


def stand_ins(
    sparse: SparseModel, path: str, found: Iterable[ModelFile]
) -> tuple[str, ...]:
    """Files that may hold what is a hole in a sparse one: the model, or sparse ones.

    Those are told by their names; their reader compares what is in them.
    """
    names = {PurePath(sparse.source).name, PurePath(path.rpartition(":")[2]).name}
    return tuple(
        sorted(
            file.path
            for file in found
            if not file.problem
            and (
                file.identity == sparse.identity
                or PurePath(file.path).name in names
                or has_layers_of(PurePath(file.path).name, PurePath(sparse.source).name)
            )
            and file.path != path
        )
    )


def called_alike(model: ModelInfo, found: Iterable[ModelFile]) -> tuple[str, ...]:
    """Files of the name and size of a model, wherever that is: they may hold others."""
    there = at_peer(model.path)
    name = PurePath(there[1] if there else model.path).name
    return tuple(
        sorted(
            file.path
            for file in found
            if file.size_bytes == model.size_bytes
            and not file.problem
            and PurePath(file.path).name == name
        )
    )


async def open_way(
    worker: Machine, head: Machine, port: int, spec: TransportSpec
) -> LinkTransport:
    """The way from the head to a loopback port of a worker's machine.

    Between two peers the bytes pass through this machine.
    """
    if worker is head:
        return local_transport(port)
    # Where the head is a peer, nobody but us uses the end here.
    here = spec if head.transport is Transport.LOCAL else replace(spec, tcp=False)
    way = await worker.way_to(port, here)
    try:
        return await head.way_from(way, spec)
    except BaseException:
        await way.close()
        raise


def merged(ours: ModelCatalogue, peers: Iterable[Peer]) -> ModelCatalogue:
    """Our models with the peers that hold them, then what only peers hold."""
    theirs: dict[str, ModelFile] = {}
    holders: dict[str, dict[str, None]] = {}
    for peer in peers:
        for found in peer.facts.models if peer.facts else ():
            there = f"{peer.name}:{found.path}"
            key = found.identity or there
            theirs.setdefault(key, replace(found, path=there, source=peer.name))
            holders.setdefault(key, {})[peer.name] = None
    mine = [
        replace(model, held_by=(LOCAL, *holders.get(model.identity, ())))
        for model in ours.models
    ]
    here = {model.identity for model in mine}
    others = [
        replace(model, held_by=tuple(holders[key]))
        for key, model in theirs.items()
        if key not in here
    ]
    models = sorted([*mine, *others], key=lambda model: model.name.lower())
    return replace(ours, models=tuple(models))


def path_at(peer: Peer, identity: str, name: str) -> str:
    """Find a peer's path of a model: by its first file's identity or name, or none."""
    found = peer.facts.models if peer.facts else ()
    same = [model.path for model in found if identity and model.identity == identity]
    called = [model.path for model in found if PurePath(model.path).name == name]
    return next(iter(same + called), "")
