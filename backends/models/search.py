"""Finding the GGUF files of a folder, each with the name its owner would give it.

Ollama keeps them as blobs, some of which only its own engine loads.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from backends.demo import MODEL_PATH
from backends.errors import MachineError, ModelError, PeerUnreachable, did_you_mean
from backends.machine_queries import FoundFile, MachineQueries
from backends.models.parts import part_name, part_of
from backends.printable import printable
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


async def ollama_models(
    host: MachineQueries, root: Path
) -> list[tuple[str, FoundFile]]:
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


async def _model_digest(host: MachineQueries, manifest: PurePath) -> str:
    try:
        content: Any = msgspec.json.decode(await host.read(str(manifest)))
        layers = content["layers"]
        found = [x["digest"] for x in layers if x.get("mediaType") == MODEL_LAYER]
        match = _DIGEST.fullmatch(found[0])
    except PeerUnreachable:
        raise
    except (MachineError, *NOT_JSON, LookupError, TypeError, AttributeError):
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


DEPTH_MAX = 8
"""Folders below a configured one; the Hugging Face cache needs five."""
NAMED_MAX = 4
DEFAULT_FOLDER = "~/.models"
"""The folder for models that are got or copied."""


class Folder(NamedTuple):
    source: str
    """``bundled``, ``models``, ``huggingface``, ``lmstudio``, ``ollama``…: how the
    files in it are named, and what a listing shows."""
    path: Path


def default_folders(home: Path, env: Mapping[str, str]) -> tuple[Folder, ...]:
    """Every folder searched unasked; most of them will not exist."""

    def place(variable: str, default: Path) -> Path:
        value = _expanded(env.get(variable, ""), home)
        return value if value.is_absolute() else default

    cache = place("XDG_CACHE_HOME", home / ".cache")
    hugging_face = place("HF_HOME", cache / "huggingface")
    hub = place("HUGGINGFACE_HUB_CACHE", hugging_face / "hub")
    return (
        Folder("models", home / ".models"),
        Folder("huggingface", place("HF_HUB_CACHE", hub)),
        Folder("lmstudio", home / ".lmstudio" / "models"),
        Folder("lmstudio", home / ".cache" / "lm-studio" / "models"),
        Folder("ollama", place("OLLAMA_MODELS", home / ".ollama" / "models")),
        # Of the user as whom Ollama's installer for Linux starts it.
        Folder("ollama", Path("/usr/share/ollama/.ollama/models")),
        # The downloads of `llama-server -hf`: Linux, then macOS.
        Folder("llama.cpp", place("LLAMA_CACHE", cache / "llama.cpp")),
        Folder("llama.cpp", home / "Library" / "Caches" / "llama.cpp"),
    )


def user_folders(model_dirs: Iterable[str]) -> tuple[Folder, ...]:
    bundled = Folder("bundled", MODEL_PATH.parent)
    return (bundled, *configured_folders(model_dirs, Path.home(), os.environ))


def configured_folders(
    model_dirs: Iterable[str], home: Path, env: Mapping[str, str]
) -> tuple[Folder, ...]:
    own = (_expanded(text, home) for text in model_dirs)
    chosen = (Folder("models", path) for path in own if path.is_absolute())
    return (*chosen, *default_folders(home, env))


def named_folders(folders: Sequence[str]) -> str:
    """`` in ~/.models, /data or 3 more folders``; empty if none was searched."""
    shown = list(folders)
    if len(shown) > NAMED_MAX:
        shown[NAMED_MAX - 1 :] = [f"{len(shown) - NAMED_MAX + 1} more folders"]
    firsts = ", ".join(shown[:-1])
    return f" in {' or '.join(filter(None, [firsts, *shown[-1:]]))}" if shown else ""


def _expanded(text: str, home: Path) -> Path:
    return home / text[2:] if text == "~" or text.startswith("~/") else Path(text)


NAMES_MAX = 500


def names_after(typed: str) -> tuple[str, ...]:
    """Completions of the last part of a whole path; folders end in ``/``.

    Names that begin with a dot only where one was typed. A folder that is not there,
    or may not be read, has none. Of very many some in the middle are left out: what all
    begin with is what the first and the last begin with.
    """
    folder, _, part = typed.rpartition("/")
    if not typed.startswith("/"):
        return ()
    try:
        with os.scandir(f"{folder}/") as entries:
            names = sorted(_fitting(entries, part))
    except (OSError, ValueError):
        return ()
    del names[NAMES_MAX - 1 : -1]
    return tuple(names)


def _fitting(entries: Iterator[os.DirEntry[str]], part: str) -> Iterator[str]:
    for entry in entries:
        name = entry.name
        hidden = name.startswith(".") and not part.startswith(".")
        if hidden or not name.startswith(part) or not name.isprintable():
            continue
        if _is_folder(entry):
            yield f"{name}/"
        elif name.lower().endswith(".gguf"):
            yield name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


SUFFIX = ".gguf"
CANDIDATES_SHOWN = 5
HUB_PREFIX = "models--"


class ModelCandidate(NamedTuple):
    name: str
    source: str
    files: tuple[FoundFile, ...]
    """All parts present, in order; the first is the one to open."""
    problem: str = ""

    @property
    def path(self) -> Path:
        return Path(self.files[0].path)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


async def search(
    host: MachineQueries, folders: Iterable[Folder]
) -> list[ModelCandidate]:
    every = await asyncio.gather(*(_in_folder(host, folder) for folder in folders))
    return list(chain.from_iterable(every))


def distinct(every: Iterable[ModelCandidate]) -> list[ModelCandidate]:
    """Each model once, though it may be linked from several places."""
    unique: dict[str, ModelCandidate] = {}
    for found in every:
        first = found.files[0]
        unique.setdefault(first.inode or first.path, found)
    return list(unique.values())


async def _in_folder(host: MachineQueries, folder: Folder) -> list[ModelCandidate]:
    if folder.source == "ollama":
        return [
            ModelCandidate(printable(name), folder.source, (blob,))
            for name, blob in await ollama_models(host, folder.path)
        ]
    files = await host.find([str(folder.path)], depth=DEPTH_MAX, suffix=SUFFIX)
    return list(_named(folder, files))


def _named(folder: Folder, files: Iterable[FoundFile]) -> Iterator[ModelCandidate]:
    splits: dict[tuple[Path, str, int], list[tuple[int, FoundFile]]] = {}
    for file in files:
        path = Path(file.path)
        part = part_of(path.name)
        if part is not None:
            key = (path.parent, part.prefix, part.count)
            splits.setdefault(key, []).append((part.number, file))
        else:
            name = model_name(folder, path.parent, path.name[: -len(SUFFIX)])
            yield ModelCandidate(name, folder.source, (file,))
    for (directory, prefix, count), parts in splits.items():
        parts.sort(key=lambda part: part[0])
        first = printable(part_name(prefix, 1, count))
        yield ModelCandidate(
            model_name(folder, directory, prefix),
            folder.source,
            tuple(file for _, file in parts),
            "" if parts[0][0] == 1 else f"{first} is missing",
        )


def model_name(folder: Folder, directory: Path, stem: str) -> str:
    above = list(directory.relative_to(folder.path).parts)
    if above and above[0].startswith(HUB_PREFIX):
        # models--org--repo/snapshots/<commit>/…
        above = above[0].removeprefix(HUB_PREFIX).split("--", 1) + above[3:]
    return printable("/".join([*above, stem]))


async def find_model(
    name: str, host: MachineQueries, folders: Iterable[Folder]
) -> Path:
    """The file a catalogue name stands for, from file names alone.

    A whole name wins, then a name's last piece (``llama-8b-q4_k_m``). Then comes a
    piece of a name, if only one has it. Letter case does not matter.
    """
    wanted = name.lower().removesuffix(".gguf")
    found = [(one.name.lower(), one.path) for one in await search(host, folders)]
    for matches in (
        [one for one in found if one[0] == wanted],
        [one for one in found if one[0].rpartition("/")[2] == wanted],
        [one for one in found if wanted in one[0]],
    ):
        real = {path.resolve() for _, path in matches}
        if len(real) == 1:
            return matches[0][1]
        if matches:
            names = sorted({known for known, _ in matches})
            wish = "Say more of the name"
            if len(names) == 1:
                names = sorted(printable(str(path)) for _, path in matches)
                wish = "Give the path of one"
            raise ModelError(
                f"“{printable(name)}” could be any of {len(real)} models",
                f"{wish}: {', '.join(names[:CANDIDATES_SHOWN])}.",
            )
    pieces = [known.rpartition("/")[2] for known, _ in found]
    raise ModelError(
        f"There is no file and no model called “{printable(name)}”",
        f"{did_you_mean(wanted, pieces)}Give the path of a .gguf, or put it into "
        "~/.models.",
    )
