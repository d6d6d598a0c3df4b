"""Finding the GGUF files of a folder, each with the name its owner would give it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from backends.demo import MODEL_PATH
from backends.errors import ModelError, did_you_mean
from backends.models.ollama import ollama_models
from backends.models.parts import part_name, part_of
from backends.printable import printable
from backends.questions import Asked, FoundFile

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
_HUB_PREFIX = "models--"


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


async def search(host: Asked, folders: Iterable[Folder]) -> list[ModelCandidate]:
    every = await asyncio.gather(*(_in_folder(host, folder) for folder in folders))
    return list(chain.from_iterable(every))


def distinct(every: Iterable[ModelCandidate]) -> list[ModelCandidate]:
    """Each model once, though it may be linked from several places."""
    unique: dict[str, ModelCandidate] = {}
    for found in every:
        first = found.files[0]
        unique.setdefault(first.inode or first.path, found)
    return list(unique.values())


async def _in_folder(host: Asked, folder: Folder) -> list[ModelCandidate]:
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
    if above and above[0].startswith(_HUB_PREFIX):
        # models--org--repo/snapshots/<commit>/…
        above = above[0].removeprefix(_HUB_PREFIX).split("--", 1) + above[3:]
    return printable("/".join([*above, stem]))


async def find_model(name: str, host: Asked, folders: Iterable[Folder]) -> Path:
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
