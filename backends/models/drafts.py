"""Which of the models found could guess ahead for another, and why not the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from backends.errors import ModelError
from backends.models.header import read_header
from backends.models.vocabulary import read_vocabulary, why_not
from backends.places import at_peer
from backends.state import DraftCandidate

if TYPE_CHECKING:
    from collections.abc import Collection

    from backends.state import Drafts, ModelFile, ModelInfo

WORTH = 4
"""A draft so many times smaller than the model guesses in little of its time."""
SMALL = 10
"""So many times smaller, and it guesses in next to none of its time."""
_HEADS = {"eagle3": "draft-eagle3", "dflash": "draft-dflash"}
"""Architectures that are no models of their own but heads of another, and the way to
guess they are made for."""

_OWN_LAYERS = frozenset(
    {
        *("bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4"),
        *("glm-dsa", "glm4moe", "glm5-next", "nemotron_h_moe"),
        *("qwen35", "qwen35moe", "qwen3next", "qwen4exp"),
    }
)
"""Architectures of which llama.cpp runs one layer that a model has to guess with
(``graph_mtp`` in ``src/models``); of others it loads such layers at most, and has
nothing to run them with."""
_OWN_LAYERS_IN_TURN = frozenset({"hy_v3", "mimo2", "step35"})
"""Those of which it runs any number of them, each for one token more."""


def own_layers_misfit(model: ModelInfo) -> str:
    """Why the layers a model has to guess with (MTP) cannot; empty where they can."""
    name = Path(model.path).name
    own = (
        model.layers[model.n_layer - model.n_layer_nextn :]
        if model.n_layer_nextn
        else ()
    )
    if not own:
        return f"{name} has no layers to guess with"
    if not all(layer.bytes for layer in own):
        return f"{name} was made without the layers to guess with that its header names"
    if model.arch not in _OWN_LAYERS | _OWN_LAYERS_IN_TURN:
        return f"llama.cpp is not known to guess with layers of {model.arch} models"
    if len(own) > 1 and model.arch in _OWN_LAYERS:
        return (
            f"llama.cpp guesses with one layer of {model.arch} models, not {len(own)}"
        )
    return ""


def head_way(arch: str) -> str:
    """The way to guess that a head is made for; empty for a model."""
    return _HEADS.get(arch, "")


def head_misfit(head: ModelInfo | ModelFile, model: ModelInfo) -> str:
    """Why a head was made for another model, as far as its header tells; or empty."""
    said = read_header(Path(head.path)).metadata
    width = said.get(f"{head.arch}.target_hidden_size")
    if isinstance(width, int) and width != model.n_embd:
        return f"it was made for a model {width} wide, this one is {model.n_embd}"
    layers = said.get(f"{head.arch}.target_layers")
    taken = layers if isinstance(layers, list | tuple) else ()
    if any(isinstance(at, int) and at > model.n_layer for at in taken):
        return f"it listens to layer {max(taken)}, the model has {model.n_layer}"
    return ""


def best_first(found: Drafts) -> tuple[str, ...]:
    """Models that can guess: of the small ones the largest, which is right most often.

    After them come the others, the smallest first.
    """
    able = [one for one in found.candidates if not one.why_not and not one.head]
    small = [one for one in able if one.size_bytes * SMALL <= found.size_bytes]
    others = [one for one in able if one not in small]
    ordered = (
        *sorted(small, key=lambda one: one.size_bytes, reverse=True),
        *sorted(others, key=lambda one: one.size_bytes),
    )
    return tuple(one.path for one in ordered)


class Judge:
    """Holds candidates against one model, whose vocabulary is read once."""

    def __init__(self, model: ModelInfo, header: str, ways: Collection[str]) -> None:
        """``header`` is a file of ours with the model's header.

        ``ways`` are those that the engine can guess in.

        Raises:
            ModelError: it cannot be read.
        """
        self._model = model
        self._ways = ways
        self._words = read_vocabulary(Path(header))

    def candidate(self, file: ModelFile) -> DraftCandidate:
        """Whether a file could guess ahead for the model."""
        return DraftCandidate(
            path=file.path,
            name=file.name,
            size_bytes=file.size_bytes,
            arch=file.arch,
            file_type=file.file_type,
            head=head_way(file.arch),
            why_not=self._why_not(file),
        )

    def _why_not(self, file: ModelFile) -> str:
        head = head_way(file.arch)
        if head and head not in self._ways:
            return f"a head for {head}, which the engine does not know"
        if file.thin:
            return file.thin
        if file.size_bytes * WORTH > self._model.size_bytes:
            return "larger than a quarter of the model"
        if there := at_peer(file.path):
            return f"on {there[0]} alone, its words were not compared"
        try:
            if head:
                return head_misfit(file, self._model)
            return why_not(self._words, read_vocabulary(Path(file.path)))
        except ModelError as error:
            return str(error)
