"""Which machine holds which model: the catalogue, ours and the peers' together."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

import msgspec

from backends.places import LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backends.state import ModelCatalogue, ModelFile, Peer


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
