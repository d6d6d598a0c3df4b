"""Finding the GGUF files of a folder, each with the name its owner would give it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.models.folders import Folder, walk
from backends.models.ollama import ollama_models
from backends.models.parts import Part, part_name, part_of
from backends.models.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SUFFIX = ".gguf"
_HUB_PREFIX = "models--"


@dataclass(frozen=True, slots=True)
class Found:
    """A model on disk whose header was not read yet."""

    name: str
    source: str
    files: tuple[Path, ...]
    """All parts present, in order; the first is the one to open."""
    problem: str = ""


def search(folders: Iterable[Folder]) -> Iterator[Found]:
    """Every model below the folders, in their order."""
    for folder in folders:
        if folder.source == "ollama":
            for name, blob in ollama_models(folder.path):
                yield Found(printable(name), folder.source, (blob,))
        else:
            yield from _in_folder(folder)


def _in_folder(folder: Folder) -> Iterator[Found]:
    for directory, names in walk(folder.path):
        ggufs = [name for name in names if name.lower().endswith(SUFFIX)]
        splits: dict[tuple[str, int], list[Part]] = {}
        for file_name in ggufs:
            part = part_of(file_name)
            if part is not None:
                splits.setdefault((part.prefix, part.count), []).append(part)
            else:
                stem = file_name[: -len(SUFFIX)]
                name = model_name(folder, directory, stem)
                yield Found(name, folder.source, (directory / file_name,))
        for parts in splits.values():
            yield _split(folder, directory, parts)


def _split(folder: Folder, directory: Path, parts: list[Part]) -> Found:
    """One model from all its parts; says so when the first is not among them."""
    parts = sorted(parts, key=lambda part: part.number)
    prefix, count = parts[0].prefix, parts[0].count
    files = [directory / part_name(prefix, part.number, count) for part in parts]
    name = model_name(folder, directory, prefix)
    first = printable(part_name(prefix, 1, count))
    problem = "" if parts[0].number == 1 else f"{first} is missing"
    return Found(name, folder.source, tuple(files), problem)


def model_name(folder: Folder, directory: Path, stem: str) -> str:
    """``org/repo/file`` for the Hugging Face cache, else the path in the folder."""
    above = list(directory.relative_to(folder.path).parts)
    if above and above[0].startswith(_HUB_PREFIX):
        # models--org--repo/snapshots/<commit>/…
        above = above[0].removeprefix(_HUB_PREFIX).split("--", 1) + above[3:]
    return printable("/".join([*above, stem]))
