"""Ollama's store: manifests that name blobs.

``manifests/<registry>/<namespace>/<name>/<tag>`` is a JSON image manifest; the layer of
type ``application/vnd.ollama.image.model`` is the GGUF, in ``blobs/sha256-<hex>``
(docs: https://github.com/ollama/ollama, server/manifest.go and modelpath.go).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from backends.models.folders import walk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODEL_LAYER = "application/vnd.ollama.image.model"
MANIFEST_BYTES_MAX = 1024 * 1024
MANIFEST_DEPTH = 3
"""Folders between ``manifests`` and a tag."""
# Left out of a name, as Ollama itself does.
_DEFAULT_REGISTRY = "registry.ollama.ai"
_DEFAULT_NAMESPACE = "library"
# Also keeps a hostile manifest from naming a path outside the blobs.
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")


def ollama_models(root: Path) -> Iterator[tuple[str, Path]]:
    """Names (``llama3:8b``) and blobs of the models in a store, or of none.

    Manifests that are broken or name no weights (cloud models) are passed over.
    """
    manifests = root / "manifests"
    for directory, tags in walk(manifests, MANIFEST_DEPTH):
        above = directory.relative_to(manifests).parts
        if len(above) != MANIFEST_DEPTH:
            continue
        for tag in tags:
            digest = _model_digest(directory / tag)
            if digest:
                yield _name(above, tag), root / "blobs" / f"sha256-{digest}"


def _name(above: tuple[str, ...], tag: str) -> str:
    registry, namespace, model = above
    parts = [model]
    if namespace != _DEFAULT_NAMESPACE or registry != _DEFAULT_REGISTRY:
        parts.insert(0, namespace)
    if registry != _DEFAULT_REGISTRY:
        parts.insert(0, registry)
    return f"{'/'.join(parts)}:{tag}"


def _model_digest(manifest: Path) -> str:
    """Hex digest of the weights a manifest names; empty when it names none."""
    try:
        if not manifest.is_file():
            return ""
        with manifest.open("rb") as stream:
            content: Any = msgspec.json.decode(stream.read(MANIFEST_BYTES_MAX))
        layers = content["layers"]
        found = [x["digest"] for x in layers if x.get("mediaType") == MODEL_LAYER]
        match = _DIGEST.fullmatch(found[0])
    except (OSError, msgspec.DecodeError, LookupError, TypeError, AttributeError):
        return ""
    return match[1] if match else ""
