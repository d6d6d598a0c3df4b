"""A model on several machines: where it is there, and how far long work with it is."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

from backends.errors import HostError, ModelError
from backends.places import LOCAL, at_peer
from backends.units import format_bytes
from tui.cli.inspect import resolve
from tui.cli.progress import ProgressLine, ticking

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from backends.client.client import ControllerClient
    from backends.models.compare import Comparison
    from backends.state import Peer
    from backends.state.holdings import Hashing, Seeding, TensorSums

T = TypeVar("T", "Hashing", "Seeding")


async def place_at(
    client: ControllerClient, model: Path, place: str
) -> tuple[str, str]:
    """Machine and path of a model by a peer's name, or by ``peer:/path``.

    Raises:
        ModelError: it has no copy that can be found.
        HostError: there is no such peer.
    """
    if named := at_peer(place):
        return named
    if place == LOCAL:
        return LOCAL, str(model)
    from backends.machines.machine import path_at
    from backends.models.folders import named_folders
    from backends.models.identity import files_of, identity_of

    first = files_of(model)[0]
    identity = await asyncio.to_thread(identity_of, first)
    peer = await _peer(client, place)
    if path := path_at(peer, identity, first.name):
        return place, path
    folders = named_folders(peer.facts.model_dirs if peer.facts else ())
    raise ModelError(
        f"{place} has no copy of {first.name}{folders}",
        f"Copy it there (dllm-tui peers copy {place} {model}), or say where it is: "
        f"--peer {place}:/path/to/{first.name}.",
    )


async def _peer(client: ControllerClient, name: str) -> Peer:
    known = await client.settled_peers()
    for peer in known:
        if peer.name == name:
            return peer
    names = ", ".join(peer.name for peer in known) or "none yet"
    raise HostError(
        f"There is no peer {name}",
        f"Known: {names}. Add it: dllm-tui peers add {name}.",
    )


async def compared(
    client: ControllerClient, model: Path, places: tuple[str, ...]
) -> list[Comparison]:
    """A model here against those on other machines; all read at the same time.

    Raises:
        DllmError: one cannot be read.
    """
    from backends.models.compare import compare

    there = [await place_at(client, model, place) for place in places]
    bar = _Together()
    async with ticking(bar.line):
        ours, *theirs = await asyncio.gather(
            *(
                _hashed(client, bar, machine, path)
                for machine, path in [(LOCAL, str(model)), *there]
            )
        )
    return [
        compare(ours, tensors, machine=machine, path=path)
        for tensors, (machine, path) in zip(theirs, there, strict=True)
    ]


class _Together:
    """One line for what several machines read at the same time."""

    def __init__(self) -> None:
        self.line = ProgressLine()
        self._told: dict[tuple[str, str], tuple[int, int]] = {}

    def show(self, place: tuple[str, str], done: int, total: int) -> None:
        """How far one of them is."""
        self._told[place] = done, total
        slowest = min(self._told, key=lambda one: _fraction(*self._told[one]))
        done, total = self._told[slowest]
        detail = f"{slowest[0]}: {format_bytes(done)} of {format_bytes(total)}"
        self.line.show("reading tensors", _fraction(done, total), detail)


def _fraction(done: int, total: int) -> float:
    return done / total if total else 1.0


async def _hashed(
    client: ControllerClient, bar: _Together, machine: str, path: str
) -> tuple[TensorSums, ...]:
    tensors: tuple[TensorSums, ...] = ()
    async with aclosing(client.models.hashing(path, machine=machine)) as told:
        async for one in told:
            bar.show((machine, path), one.done_bytes, one.size_bytes)
            tensors = one.tensors
    return tensors


async def seeded(
    client: ControllerClient, place: tuple[str, str], directory: str, *, dry: bool
) -> Seeding:
    """Fill a worker's cache, or find out how much that would be, showing how far it is.

    Raises:
        DllmError: it cannot be done.
    """
    machine, path = place
    work = client.models.seeding(path, machine=machine, directory=directory, dry=dry)
    line = ProgressLine()
    async with ticking(line):
        return await _last(line, work, dry=dry)


async def _last(
    line: ProgressLine, work: AsyncGenerator[Seeding, None], *, dry: bool
) -> Seeding:
    last: Seeding | None = None
    async with aclosing(work) as told:
        async for last in told:
            if last.hashed_bytes < last.model_bytes:
                _show(line, "reading tensors", last.hashed_bytes, last.model_bytes)
            elif not dry:
                _show(line, "writing the cache", last.seeded_bytes, last.size_bytes)
    assert last is not None, "a stream that ends without a word breaks"
    return last


def _show(line: ProgressLine, title: str, done: int, total: int) -> None:
    detail = f"{format_bytes(done)} of {format_bytes(total)}"
    line.show(title, _fraction(done, total), detail)


def model_file(model: str) -> Path:
    """The file meant, absolute: machines do not share our working directory."""
    return resolve(model).absolute()
