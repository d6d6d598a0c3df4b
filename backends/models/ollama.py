"""Ollama: its store of blobs, and the blobs that only its own engine loads."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import msgspec

from backends.errors import HostError, PeerUnreachable
from backends.printable import printable
from backends.questions import Asked, FoundFile
from backends.state import NOT_JSON
from backends.units import format_count

if TYPE_CHECKING:
    from backends.models.header import Header

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


_BLOB = re.compile(r"sha256-[0-9a-f]{64}")


def is_blob(path: PurePath) -> bool:
    return path.parent.name == "blobs" and bool(_BLOB.fullmatch(path.name))


# --- blobs that stock llama.cpp does not load -----------------------------------------

OWN_ARCHITECTURES = {
    "deepseekocr": "deepseek2-ocr",
    "glm4moelite": "deepseek2",
    "gptoss": "gpt-oss",
    "mllama": "",
    "qwen25vl": "qwen2vl",
}
"""Ollama's name of an architecture to llama.cpp's; empty: llama.cpp has none."""
_BESIDE_TEXT = {"a.": "audio", "mm.": "projector", "mtp.": "MTP", "v.": "vision"}
"""Beginnings of tensor names that llama.cpp expects in files of their own, or not."""
N_SECTIONS = 4
"""Of ``rope.dimension_sections`` in llama.cpp."""
_WITHOUT_BIAS = re.compile(r"blk\.\d+\.ssm_dt")
_NEEDS_EPSILON = ("gemma3", "mistral3")


def caveat_of(headers: Sequence[Header]) -> str:
    """Say why stock llama.cpp is likely to refuse a model; empty if nothing says so.

    Ollama converts some models for its own engine. The file then has another
    architecture name, other keys, or the tensors of a projector among its own.
    """
    reason = next(_reasons(headers), "")
    if not reason:
        return ""
    return (
        f"Stock llama.cpp is likely to refuse this file, which Ollama made for its own "
        f"engine: {reason}. Get a GGUF made for llama.cpp (dllm-tui models get)."
    )


def _reasons(headers: Sequence[Header]) -> Iterator[str]:
    metadata = headers[0].metadata
    arch = metadata.get("general.architecture")
    if not isinstance(arch, str):
        return
    if arch in OWN_ARCHITECTURES:
        own = OWN_ARCHITECTURES[arch]
        calls = f" (llama.cpp calls it {own})" if own else ""
        yield f"its architecture is named {arch}{calls}"
    names = [tensor.name for header in headers for tensor in header.tensors]
    for start, what in _BESIDE_TEXT.items():
        if count := sum(name.startswith(start) for name in names):
            some = format_count(count, f"{what} tensor")
            yield f"it holds {some} ({start}…) among those of the text"
    sections = metadata.get(f"{arch}.rope.dimension_sections")
    if isinstance(sections, tuple) and len(sections) != N_SECTIONS:
        yield (
            f"{printable(arch)}.rope.dimension_sections has {len(sections)} entries, "
            f"not {N_SECTIONS}"
        )
    if any(map(_WITHOUT_BIAS.fullmatch, names)):
        yield "its ssm_dt tensors lack the ending .bias"
    key = f"{arch}.attention.layer_norm_rms_epsilon"
    if arch in _NEEDS_EPSILON and key not in metadata:
        yield f"it has no {key}"
