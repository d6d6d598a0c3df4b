"""Finding the GGUF files of a folder, each with the name its owner would give it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from backends.errors import ModelError
from backends.models.folders import Folder, walk
from backends.models.ollama import ollama_models
from backends.models.parts import Part, part_name, part_of
from backends.models.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SUFFIX = ".gguf"
CANDIDATES_SHOWN = 5
_HUB_PREFIX = "models--"


@dataclass(frozen=True, slots=True)
class Found:
    """A model on disk whose header was not read yet."""

    name: str
    source: str
    files: tuple[Path, ...]
    """All parts present, in order; the first is the one to open."""
    problem: str = ""


def search(folders: Iterable[tuple[str, Path]]) -> Iterator[Found]:
    """Every model below the folders (source and path), in their order."""
    for folder in (Folder(*entry) for entry in folders):
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


def find_model(name: str, folders: Iterable[tuple[str, Path]]) -> Path:
    """The file a catalogue name stands for, from file names alone.

    A whole name wins, then a name's last piece (``llama-8b-q4_k_m``), then a piece of a
    name if only one has it; letter case does not matter.

    Raises:
        ModelError: no model is called that, or several are.
    """
    wanted = name.lower().removesuffix(".gguf")
    found = {entry.files[0]: entry.name.lower() for entry in search(folders)}
    for matches in (
        [path for path, known in found.items() if known == wanted],
        [path for path, known in found.items() if known.rpartition("/")[2] == wanted],
        [path for path, known in found.items() if wanted in known],
    ):
        if len({path.resolve() for path in matches}) == 1:
            return matches[0]
        if matches:
            names = sorted(found[path] for path in matches)[:CANDIDATES_SHOWN]
            raise ModelError(
                f"“{printable(name)}” could be any of {len(matches)} models",
                f"Say more of the name: {', '.join(names)}.",
            )
    raise ModelError(
        f"There is no file and no model called “{printable(name)}”",
        "Give the path of a .gguf, or put it into ~/.models.",
    )
