"""Finding the GGUF files of a folder, each with the name its owner would give it."""

from __future__ import annotations

import asyncio
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from backends.errors import ModelError, did_you_mean
from backends.models.folders import DEPTH_MAX
from backends.models.ollama import ollama_models
from backends.models.parts import part_name, part_of
from backends.models.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from backends.models.folders import Folder
    from backends.questions import Asked, FoundFile

SUFFIX = ".gguf"
CANDIDATES_SHOWN = 5
_HUB_PREFIX = "models--"


class Found(NamedTuple):
    """A model on disk whose header was not read yet."""

    name: str
    source: str
    files: tuple[FoundFile, ...]
    """All parts present, in order; the first is the one to open."""
    problem: str = ""

    @property
    def path(self) -> Path:
        """The file to open."""
        return Path(self.files[0].path)

    @property
    def size_bytes(self) -> int:
        """All parts together."""
        return sum(file.size_bytes for file in self.files)


async def search(host: Asked, folders: Iterable[Folder]) -> list[Found]:
    """Every model below the folders of a machine, in their order.

    Raises:
        HostError: it does not answer.
    """
    every = await asyncio.gather(*(_in_folder(host, folder) for folder in folders))
    return list(chain.from_iterable(every))


def distinct(every: Iterable[Found]) -> list[Found]:
    """Each model once, though it may be linked from several places."""
    unique: dict[str, Found] = {}
    for found in every:
        first = found.files[0]
        unique.setdefault(first.inode or first.path, found)
    return list(unique.values())


async def _in_folder(host: Asked, folder: Folder) -> list[Found]:
    if folder.source == "ollama":
        return [
            Found(printable(name), folder.source, (blob,))
            for name, blob in await ollama_models(host, folder.path)
        ]
    files = await host.find([str(folder.path)], depth=DEPTH_MAX, suffix=SUFFIX)
    return list(_named(folder, files))


def _named(folder: Folder, files: Iterable[FoundFile]) -> Iterator[Found]:
    """The models that files are, parts of a split one together."""
    splits: dict[tuple[Path, str, int], list[tuple[int, FoundFile]]] = {}
    for file in files:
        path = Path(file.path)
        part = part_of(path.name)
        if part is not None:
            key = (path.parent, part.prefix, part.count)
            splits.setdefault(key, []).append((part.number, file))
        else:
            name = model_name(folder, path.parent, path.name[: -len(SUFFIX)])
            yield Found(name, folder.source, (file,))
    for (directory, prefix, count), parts in splits.items():
        parts.sort(key=lambda part: part[0])
        first = printable(part_name(prefix, 1, count))
        yield Found(
            model_name(folder, directory, prefix),
            folder.source,
            tuple(file for _, file in parts),
            "" if parts[0][0] == 1 else f"{first} is missing",
        )


def model_name(folder: Folder, directory: Path, stem: str) -> str:
    """``org/repo/file`` for the Hugging Face cache, else the path in the folder."""
    above = list(directory.relative_to(folder.path).parts)
    if above and above[0].startswith(_HUB_PREFIX):
        # models--org--repo/snapshots/<commit>/…
        above = above[0].removeprefix(_HUB_PREFIX).split("--", 1) + above[3:]
    return printable("/".join([*above, stem]))


async def find_model(name: str, host: Asked, folders: Iterable[Folder]) -> Path:
    """The file a catalogue name stands for, from file names alone.

    A whole name wins, then a name's last piece (``llama-8b-q4_k_m``), then a piece of a
    name if only one has it; letter case does not matter.

    Raises:
        ModelError: no model is called that, or several are.
        HostError: the machine does not answer.
    """
    wanted = name.lower().removesuffix(".gguf")
    every = await search(host, folders)
    found = {entry.path: entry.name.lower() for entry in every}
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
    pieces = [known.rpartition("/")[2] for known in found.values()]
    raise ModelError(
        f"There is no file and no model called “{printable(name)}”",
        f"{did_you_mean(wanted, pieces)}Give the path of a .gguf, or put it into "
        "~/.models.",
    )
