"""Every machine that takes part: what the controller needs of it, and our own."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec.structs import replace

from backends.data_place import DataPlace
from backends.errors import ModelError
from backends.link.way import PlainWay, local_way, unix_endpoint
from backends.models.folders import named_folders, user_folders
from backends.paths import relay_binary
from backends.places import LOCAL, at_peer
from backends.state import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from backends.engine.ask import Engine
    from backends.link.way import Way, WaySpec
    from backends.machines.host import AgentHost
    from backends.machines.readers import Readers
    from backends.state import ModelCatalogue, ModelFile, ModelInfo, Peer, ThinModel


class Machine(Protocol):
    """One machine: its processes, its engine, and ways to and from its loopback."""

    @property
    def name(self) -> str:
        """The peer's name; ``local`` is the one we run on."""
        ...

    @property
    def transport(self) -> Transport:
        """The way we reach it."""
        ...

    @property
    def host(self) -> AgentHost:
        """Its processes.

        Raises:
            PeerUnreachable: there is no connection to it now.
        """
        ...

    async def engine(self, wanted: str | None, rpc_protocol: str = "") -> Engine:
        """Its llama.cpp: the one wanted, else the first that speaks ``rpc_protocol``.

        Raises:
            EngineError: there is none, or none that fits.
        """
        ...

    async def model_path(self, model: ModelInfo) -> str:
        """Where it keeps the same model file.

        Raises:
            ModelError: it has none with the same bytes.
        """
        ...

    @property
    def searched(self) -> str:
        """The folders there that were searched for models: `` in A or B``."""
        ...

    async def copies_of(self, model: ModelInfo) -> tuple[str, ...]:
        """Files there that hold the model, for all that is known: may be wrong."""
        ...

    def relay_program(self) -> str:
        """Path of ``dllm-relay`` there.

        Raises:
            DllmError: it is not installed there.
        """
        ...

    async def data_place(self) -> DataPlace:
        """Where other machines reach a relay there directly, for all that is known.

        Raises:
            DllmError: its settings, or its connection, do not allow to tell.
        """
        ...

    def relay_stats(self, worker: str) -> str:
        """Path there of the socket at which a worker's relay gives out its counters."""
        ...

    async def stats_way(self, worker: str) -> Way:
        """A way from a Unix socket of ours to ``relay_stats``."""
        ...

    async def api_way(self, port: int) -> Way:
        """A way from a loopback port of ours to one there."""
        ...

    async def way_to(self, port: int, spec: WaySpec) -> Way:
        """A way from here to a loopback port there."""
        ...

    async def way_from(self, way: Way, spec: WaySpec) -> Way:
        """A way from there that goes on with one from here."""
        ...


class LocalMachine:
    """The machine we run on: every way is no way."""

    def __init__(
        self,
        host: AgentHost,
        readers: Readers,
        relay_socket: Callable[[str], Path],
        models: Callable[[], Iterable[ModelFile]],
    ) -> None:
        """``relay_socket`` tells where a worker's relay gives out its counters, and
        ``models`` what was found here so far.
        """
        self.name = LOCAL
        self.transport = Transport.LOCAL
        self.host = host
        self._readers = readers
        self._relay_socket = relay_socket
        self._models = models

    async def engine(self, wanted: str | None, rpc_protocol: str = "") -> Engine:
        """The engine a plan names, else the one found first."""
        return await self._readers.engine(wanted)

    async def model_path(self, model: ModelInfo) -> str:
        """The model is where it was read.

        Raises:
            ModelError: that is on a peer.
        """
        if there := at_peer(model.path):
            raise ModelError(
                f"{there[1]} is on {there[0]}, and the head has no copy of it",
                f"Make {there[0]} the head (--head {there[0]}).",
            )
        return model.path

    async def copies_of(self, model: ModelInfo) -> tuple[str, ...]:
        """The model, where it was read here; else files of its name and size."""
        if model.thin:
            return self._stand_ins(model.path, model.thin)
        if at_peer(model.path):
            return called_alike(model, self._models())
        return (model.path,)

    @property
    def searched(self) -> str:
        """The folders here that are searched for models."""
        folders = user_folders(self._readers.config().model_dirs)
        return named_folders([str(folder.path) for folder in folders])

    def _stand_ins(self, path: str, thin: ThinModel) -> tuple[str, ...]:
        """Of a thin file also what it was made from, wherever that is."""
        found = stand_ins(thin, path, self._models())
        here = () if at_peer(path) else (path, thin.source)
        there = [file for file in here if os.path.isfile(file)]
        return tuple(dict.fromkeys([*there, *found]))

    def relay_program(self) -> str:
        """The helper installed with us."""
        return str(relay_binary())

    async def data_place(self) -> DataPlace:
        """Nowhere: what is here is reached through the connections that we made."""
        return DataPlace(why="the worker is on the machine of the console")

    def relay_stats(self, worker: str) -> str:
        """A socket in our runtime directory."""
        return str(self._relay_socket(worker))

    async def stats_way(self, worker: str) -> Way:
        """The socket itself."""
        return PlainWay(unix_endpoint(self.relay_stats(worker)))

    async def api_way(self, port: int) -> Way:
        """The port itself."""
        return local_way(port)

    async def way_to(self, port: int, spec: WaySpec) -> Way:
        """The port itself."""
        return local_way(port)

    async def way_from(self, way: Way, spec: WaySpec) -> Way:
        """The way itself: it begins here."""
        return way


class Machines(Protocol):
    """All machines, by name."""

    def get(self, name: str) -> Machine:
        """A machine of the settings, connected or not.

        Raises:
            HostError: there is none of that name.
        """
        ...

    def all(self) -> Iterable[Machine]:
        """Every machine that is connected, ours first."""
        ...

    def values(self) -> Sequence[Peer]:
        """How every other machine is, newer than any snapshot."""
        ...

    async def reached(self, names: Iterable[str]) -> None:
        """Wait until these are connected.

        Raises:
            PeerUnreachable: one cannot be reached.
            NeedsAnswer: one asks the user something.
        """
        ...


def stand_ins(
    thin: ThinModel, path: str, found: Iterable[ModelFile]
) -> tuple[str, ...]:
    """Files that may hold what is a hole in a thin one: the model, and thin ones of it.

    Those are told by their names; what is in them is compared by whoever reads them.
    """
    names = {PurePath(thin.source).name, PurePath(path.rpartition(":")[2]).name}
    return tuple(
        sorted(
            file.path
            for file in found
            if not file.problem
            and (file.identity == thin.identity or PurePath(file.path).name in names)
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


async def open_way(worker: Machine, head: Machine, port: int, spec: WaySpec) -> Way:
    """The way from the head to a loopback port of a worker's machine.

    Between two peers the bytes pass through this machine.

    Raises:
        PeerUnreachable: one of them is not connected.
        HostError: its sshd forbids tunnels.
    """
    if worker is head:
        return local_way(port)
    # Where the head is a peer, nobody but us uses the end here.
    here = spec if head.transport is Transport.LOCAL else replace(spec, tcp=False)
    way = await worker.way_to(port, here)
    try:
        return await head.way_from(way, spec)
    except BaseException:
        await way.close()
        raise


def merged(ours: ModelCatalogue, peers: Iterable[Peer]) -> ModelCatalogue:
    """Our models with the peers that hold the same bytes, then what only peers hold."""
    rows: dict[str, ModelFile] = {}
    for model in ours.models:
        rows[model.identity or model.path] = msgspec.structs.replace(
            model, held_by=(LOCAL,)
        )
    for peer in peers:
        for found in peer.facts.models if peer.facts else ():
            there = f"{peer.name}:{found.path}"
            key = found.identity or there
            known = rows.get(key) or msgspec.structs.replace(
                found, path=there, source=peer.name
            )
            if peer.name not in known.held_by:
                holders = (*known.held_by, peer.name)
                known = msgspec.structs.replace(known, held_by=holders)
            rows[key] = known
    models = sorted(rows.values(), key=lambda model: model.name.lower())
    return msgspec.structs.replace(ours, models=tuple(models))


def path_at(peer: Peer, identity: str, name: str) -> str:
    """Where a peer holds a model: the same bytes, else a file of that name; or nothing.

    Args:
        peer: as it was looked at last.
        identity: of the model's first file.
        name: of that file.
    """
    found = peer.facts.models if peer.facts else ()
    same = [model.path for model in found if identity and model.identity == identity]
    called = [model.path for model in found if PurePath(model.path).name == name]
    return next(iter(same + called), "")
