"""Deleting models, and what downloads left behind, on any machine.

A removal is planned first and names every file. It is carried out as it was shown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from backends.demo import MODEL_PATH
from backends.errors import MachineError, ModelError, UsageError
from backends.machine_queries import FoundFile, MachineQueries
from backends.models.parts import part_paths
from backends.models.search import (
    DEPTH_MAX,
    HUB_PREFIX,
    SUFFIX,
    Folder,
    is_blob,
    ollama_models,
)
from backends.printable import printable
from backends.state.models import Removal, RemovedFile

RUN_S = 60.0
PATHS_AT_ONCE = 200
"""Arguments of one program."""
DAY_S = 86_400
_LM_STUDIO_FOLDERS = ((".lmstudio", "models"), ("lm-studio", "models"))
_HALF = {
    ".incomplete": "half download",
    ".downloadInProgress": "half download",
    ".part": "half download or copy",
    ".part.identity": "note of a half copy",
    ".resume": "note of a half download",
}
"""Endings of files that downloads and copies leave when they are interrupted."""
_BESIDE = (".json", ".etag")
"""Endings of the notes that llama.cpp keeps beside a download."""


class ResolvedPath(NamedTuple):
    """A path as it was given, and the file it leads to; folders above are real."""

    named: str
    real: str

    @property
    def is_link(self) -> bool:
        return self.named != self.real


async def model_removal(
    host: MachineQueries,
    path: str,
    *,
    used: Mapping[str, str] = {},
) -> Removal:
    """Plan to delete a model: all its parts, and nothing that another one needs.

    Args:
        host: the machine.
        path: of any part there, absolute.
        used: paths in use there, each with a sentence on who uses it.
    """
    given = PurePosixPath(path)
    (folder,) = await _real(host, [str(given.parent)])
    model = PurePosixPath(folder or given.parent) / given.name
    await _require_ours(host, given, model)
    found = await host.find([str(model.parent)], whole=True)
    there = {file.path: file for file in found}
    parts = [str(part) for part in part_paths(model) if str(part) in there]
    if not parts:
        raise ModelError(f"There is no {printable(path)} on {host.name}")
    places = await _places(host, parts)
    doomed = {place.named: "link" if place.is_link else "" for place in places}
    kept, folders = "", list[str]()
    if (hub := _hub_repository(model)) is not None:
        blobs, kept = await _unneeded_blobs(host, hub, places, there)
        doomed |= dict.fromkeys(blobs, "")
        doomed |= dict.fromkeys(await _hub_notes(host, hub, doomed), "note")
        folders = _folders_up_to(hub, doomed)
    elif places[0].is_link:
        kept = f"{printable(places[0].real)} stays: only a link to it is deleted."
    notes = [f"{part}{ending}" for part in parts for ending in _BESIDE]
    doomed |= {note: "note" for note in notes if note in there}
    await _require_unused(host, doomed, used)
    if linked := await _with_other_names(host, doomed):
        kept += f" {linked} has another name (a hard link), by which its bytes stay."
    return await _told(host, doomed, kept=kept.strip(), folders=folders)


async def leftovers(
    host: MachineQueries,
    folders: Iterable[Folder],
    *,
    older_than_s: float = DAY_S,
    more: Mapping[str, str] = {},
    used: Mapping[str, str] = {},
) -> Removal:
    """Plan to delete half downloads that nobody goes on with, and ``more``.

    Ollama and LM Studio delete their own.
    ``more`` has paths and what they are; those in use are left out.
    """
    searched = [
        str(folder.path)
        for folder in folders
        if folder.source not in ("ollama", "lmstudio", "bundled")
    ]
    every = await asyncio.gather(
        *(host.find(searched, depth=DEPTH_MAX, suffix=ending) for ending in _HALF)
    )
    before_ns = (time.time() - older_than_s) * 1e9
    found = {
        file.path: what
        for files, what in zip(every, _HALF.values(), strict=True)
        for file in files
        if file.inode and file.mtime_ns <= before_ns and _is_of_a_model(file.path)
    }
    in_use = {place.named for place in await _places(host, used)}
    wanted = {
        path: what for path, what in (found | dict(more)).items() if path not in in_use
    }
    blobs = [PurePosixPath(path).parent for path in wanted]
    hubs = {blob: blob.parent for blob in blobs if blob.name == "blobs"}
    emptied = [str(folder) for folder in chain(hubs, hubs.values())]
    return await _told(host, wanted, folders=emptied)


def _is_of_a_model(half: str) -> bool:
    path = PurePosixPath(half)
    return path.parent.name == "blobs" or f"{SUFFIX}." in path.name.lower()


async def remove(host: MachineQueries, removal: Removal) -> None:
    """Delete what a plan names."""
    for some in _batches([file.path for file in removal.files]):
        outcome = await host.run(["rm", "-f", "--", *some], timeout_s=RUN_S)
        if outcome.code != 0:
            why = printable(outcome.stderr.strip().partition("\n")[0] or "no answer")
            raise MachineError(f"Not all could be deleted on {host.name} ({why})")
    for folder in removal.folders:
        # Those in which something else is stay.
        await host.run(["rmdir", "--", folder])


# --- whose a file is -----------------------------------------------------------------


async def _require_ours(
    host: MachineQueries, given: PurePosixPath, model: PurePosixPath
) -> None:
    """Refuse what belongs to another program, or to ours."""
    if str(MODEL_PATH.parent) in (str(given.parent), str(model.parent)):
        raise UsageError(
            f"{model.name} is part of dllm-tui", "It goes with the checkout."
        )
    if is_blob(model):
        store = await ollama_models(host, Path(model.parent.parent))
        names = [name for name, blob in store if blob.path == str(model)]
        name = printable(names[0]) if names else "NAME"
        raise UsageError(
            f"Ollama manages {name}", f"Delete it with Ollama: ollama rm {name}."
        )
    if model.suffix.lower() != SUFFIX:
        raise UsageError(
            f"{printable(model.name)} is no GGUF file",
            "dllm-tui models list names some.",
        )
    if _in_lm_studio(given) or _in_lm_studio(model):
        raise UsageError(
            f"LM Studio manages {printable(model.name)}", "Delete it with LM Studio."
        )


def _in_lm_studio(model: PurePosixPath) -> bool:
    pairs = zip(model.parts, model.parts[1:], strict=False)
    return any(pair in _LM_STUDIO_FOLDERS for pair in pairs)


async def _require_unused(
    host: MachineQueries, doomed: Collection[str], used: Mapping[str, str]
) -> None:
    for path, place in zip(used, await _places(host, used), strict=True):
        if place.named in doomed or place.real in doomed:
            raise UsageError(
                f"{printable(PurePosixPath(path).name)} is in use: {used[path]}",
                "Stop that first, or launch another model there.",
            )


# --- Hugging Face's cache ------------------------------------------------------------


def _hub_repository(model: PurePosixPath) -> PurePosixPath | None:
    for folder in model.parents:
        if folder.name == "snapshots" and folder.parent.name.startswith(HUB_PREFIX):
            return folder.parent
    return None


async def _unneeded_blobs(
    host: MachineQueries,
    hub: PurePosixPath,
    places: Sequence[ResolvedPath],
    there: Mapping[str, FoundFile],
) -> tuple[list[str], str]:
    """The blobs that no other link leads to, and a sentence on the others."""
    ours = {place.named for place in places}
    links = await host.find([str(hub / "snapshots")], depth=DEPTH_MAX, whole=True)
    needed = {link.inode for link in links if link.path not in ours}
    blobs, stay = [], 0
    for place in places:
        if place.is_link and PurePosixPath(place.real).parent == hub / "blobs":
            if there[place.named].inode in needed:
                stay += 1
            else:
                blobs.append(place.real)
    kept = f"Another snapshot of {hub.name} has the same bytes, which stay."
    return blobs, kept if stay else ""


async def _hub_notes(
    host: MachineQueries, hub: PurePosixPath, doomed: Collection[str]
) -> list[str]:
    found = await host.find([str(hub)], depth=DEPTH_MAX, whole=True)
    left = [PurePosixPath(file.path).relative_to(hub).parts for file in found]
    here = [parts for parts in left if str(hub.joinpath(*parts)) not in doomed]
    commits = {parts[1] for parts in here if parts[0] == "snapshots"}
    notes = [parts for parts in here if parts[0] == ".no_exist"]
    gone = [parts for parts in notes if parts[1] not in commits]
    for parts in here:
        if parts[0] == "refs":
            told = await host.read(str(hub.joinpath(*parts)))
            commit = told.decode(errors="replace").strip()
            gone += [] if commit in commits else [parts]
    return [str(hub.joinpath(*parts)) for parts in gone]


def _folders_up_to(hub: PurePosixPath, doomed: Iterable[str]) -> list[str]:
    above = {folder for path in doomed for folder in PurePosixPath(path).parents}
    inside = [folder for folder in above if hub == folder or hub in folder.parents]
    deepest = sorted(inside, key=lambda folder: (-len(folder.parts), str(folder)))
    return [str(folder) for folder in deepest]


# --- paths and sizes -----------------------------------------------------------------


async def _places(host: MachineQueries, paths: Iterable[str]) -> list[ResolvedPath]:
    wanted = [PurePosixPath(path) for path in paths]
    folders = await _real(host, [str(path.parent) for path in wanted])
    files = await _real(host, [str(path) for path in wanted])
    return [
        ResolvedPath(f"{folder or path.parent}/{path.name}", file or str(path))
        for path, folder, file in zip(wanted, folders, files, strict=True)
    ]


async def _real(host: MachineQueries, paths: Sequence[str]) -> list[str]:
    told = await asyncio.gather(
        *(host.run(["readlink", "-f", "--", path]) for path in paths)
    )
    return [one.stdout.removesuffix("\n") if one.code == 0 else "" for one in told]


async def _with_other_names(host: MachineQueries, paths: Iterable[str]) -> str:
    only = ("-maxdepth", "0", "-type", "f", "-links", "+1")
    told = await host.run(["find", *paths, *only], timeout_s=RUN_S)
    return printable(PurePosixPath(told.stdout.partition("\n")[0]).name)


async def _told(
    host: MachineQueries,
    wanted: Mapping[str, str],
    *,
    kept: str = "",
    folders: Sequence[str] = (),
) -> Removal:
    sizes: dict[str, int] = {}
    for some in _batches(list(wanted)):
        told = await host.run(["du", "-k", "--", *some], timeout_s=RUN_S)
        for row in told.stdout.splitlines():
            size, _, path = row.partition("\t")
            sizes[path] = int(size) * 1024 if size.isdigit() else 0
    files = (
        RemovedFile(path=path, size_bytes=sizes.get(path, 0), what=what)
        for path, what in wanted.items()
    )
    return Removal(
        machine=host.name, files=tuple(files), kept=kept, folders=tuple(folders)
    )


def _batches(paths: Sequence[str]) -> Iterable[Sequence[str]]:
    return (
        paths[at : at + PATHS_AT_ONCE] for at in range(0, len(paths), PATHS_AT_ONCE)
    )
