"""Ollama's store: manifests that name blobs.

``manifests/<registry>/<namespace>/<name>/<tag>`` is a JSON image manifest; the layer of
type ``application/vnd.ollama.image.model`` is the GGUF, in ``blobs/sha256-<hex>``
(docs: https://github.com/ollama/ollama, server/manifest.go and modelpath.go).
"""

from __future__ import annotations

import asyncio
import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import msgspec

from backends.errors import HostError, PeerUnreachable
from backends.questions import FoundFile
from backends.state import NOT_JSON

if TYPE_CHECKING:
    from pathlib import Path

    from backends.questions import Asked

MODEL_LAYER = "application/vnd.ollama.image.model"
MANIFEST_DEPTH = 3
"""Folders between ``manifests`` and a tag."""
# Left out of a name, as Ollama itself does.
_DEFAULT_REGISTRY = "registry.ollama.ai"
_DEFAULT_NAMESPACE = "library"
# Also keeps a hostile manifest from naming a path outside the blobs.
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")


async def ollama_models(host: Asked, root: Path) -> list[tuple[str, FoundFile]]:
    """Names (``llama3:8b``) and blobs of the models in a store, or of none.

    Manifests that are broken or name no weights (cloud models) are passed over.

    Raises:
        HostError: the machine does not answer.
    """
    folder = str(root / "manifests")
    manifests = await host.find([folder], depth=MANIFEST_DEPTH)
    if not manifests:
        return []
    blobs = {blob.path: blob for blob in await host.find([str(root / "blobs")])}
    tags = [PurePath(file.path) for file in manifests if file.inode]
    tags = [tag for tag in tags if len(_above(tag, folder)) == MANIFEST_DEPTH]
    digests = await asyncio.gather(*(_model_digest(host, tag) for tag in tags))
    found = []
    for tag, digest in zip(tags, digests, strict=True):
        path = str(root / "blobs" / f"sha256-{digest}")
        if digest:
            name = _name(_above(tag, folder), tag.name)
            found.append((name, blobs.get(path, FoundFile(path=path))))
    return found


def _above(tag: PurePath, folder: str) -> tuple[str, ...]:
    return tag.parent.relative_to(folder).parts


def _name(above: tuple[str, ...], tag: str) -> str:
    registry, namespace, model = above
    parts = [model]
    if namespace != _DEFAULT_NAMESPACE or registry != _DEFAULT_REGISTRY:
        parts.insert(0, namespace)
    if registry != _DEFAULT_REGISTRY:
        parts.insert(0, registry)
    return f"{'/'.join(parts)}:{tag}"


async def _model_digest(host: Asked, manifest: PurePath) -> str:
    """Hex digest of the weights a manifest names; empty when it names none."""
    try:
        content: Any = msgspec.json.decode(await host.read(str(manifest)))
        layers = content["layers"]
        found = [x["digest"] for x in layers if x.get("mediaType") == MODEL_LAYER]
        match = _DIGEST.fullmatch(found[0])
    except PeerUnreachable:
        raise
    except (HostError, *NOT_JSON, LookupError, TypeError, AttributeError):
        return ""
    return match[1] if match else ""
