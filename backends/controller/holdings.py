"""Which machine holds which model: the catalogue, ours and the peers' together."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from backends.controller.places import LOCAL
from backends.models.parts import part_of
from backends.state import ModelFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backends.state import ModelCatalogue, Peer, PeerModel


def merged(ours: ModelCatalogue, peers: Iterable[Peer]) -> ModelCatalogue:
    """Our models with the peers that hold the same bytes, then what only peers hold."""
    rows: dict[str, ModelFile] = {}
    for model in ours.models:
        rows[model.identity or model.path] = msgspec.structs.replace(
            model, held_by=(LOCAL,)
        )
    for peer in peers:
        for found in _whole(peer.facts.models if peer.facts else ()):
            key = found.identity or f"{peer.name}:{found.path}"
            known = rows.get(key) or _elsewhere(peer.name, found)
            if peer.name not in known.held_by:
                holders = (*known.held_by, peer.name)
                known = msgspec.structs.replace(known, held_by=holders)
            rows[key] = known
    models = sorted(rows.values(), key=lambda model: model.name.lower())
    return msgspec.structs.replace(ours, models=tuple(models))


def _whole(found: Iterable[PeerModel]) -> list[PeerModel]:
    """Each model once: a split one as its first part, with the size of all."""
    sizes: dict[str, int] = {}
    first: dict[str, PeerModel] = {}
    for model in found:
        file = PurePosixPath(model.path)
        part = part_of(file.name)
        stem = model.path if part is None else str(file.with_name(part.prefix))
        sizes[stem] = sizes.get(stem, 0) + model.size_bytes
        if part is None or part.number == 1:
            first[stem] = model
    return [
        msgspec.structs.replace(model, size_bytes=sizes[stem])
        for stem, model in first.items()
    ]


def _elsewhere(peer: str, found: PeerModel) -> ModelFile:
    name = PurePosixPath(found.path).name
    part = part_of(name)
    return ModelFile(
        path=f"{peer}:{found.path}",
        name=part.prefix if part else name.removesuffix(".gguf"),
        size_bytes=found.size_bytes,
        source=peer,
        identity=found.identity,
    )
