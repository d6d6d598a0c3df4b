"""The models on this machine, found in the background, and a cache of their headers."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from backends.errors import MachineError, ModelError, UsageError, disk_errors
from backends.machine_names import at_peer
from backends.machine_queries import MachineQueries
from backends.models.identity import identity_of
from backends.models.layers import read_model
from backends.models.parts import part_paths
from backends.models.search import Folder, ModelCandidate, distinct, search
from backends.models.sparse import sparse_words
from backends.printable import shown_path
from backends.state import ModelCatalogue, ModelFile, ModelInfo

log = logging.getLogger(__name__)

_Stamp = tuple[tuple[str, int, int], ...]
"""Path, bytes and modification time (ns) of every part: equal means unchanged."""


class Catalogue:
    """Models on this machine; the listing can be read while the search goes on.

    Headers are read once: a later search reads those of new or changed files only.
    """

    def __init__(
        self,
        host: MachineQueries,
        folders: Iterable[Folder],
        clock: Callable[[], float] = time.time,
        read: Callable[[Path], ModelInfo] = read_model,
    ) -> None:
        self.folders = tuple(folders)
        self._host = host
        self._clock = clock
        self._read = read
        self._known: dict[_Stamp, ModelFile] = {}
        self._models: dict[str, ModelFile] = {}
        self._guard = threading.Lock()
        self._scanned_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def listing(self) -> ModelCatalogue:
        """The models known now, by name; while searching, those found so far."""
        with self._guard:
            models = list(self._models.values())
        return ModelCatalogue(
            models=tuple(sorted(models, key=lambda model: model.name.lower())),
            folders=tuple(shown_path(folder.path) for folder in self.folders),
            scanning=self._task is not None and not self._task.done(),
            scanned_at=self._scanned_at,
        )

    def look_in(self, folders: Iterable[Folder]) -> None:
        self.folders = tuple(folders)
        self._task = asyncio.create_task(self._search_after(self._task))

    async def _search_after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        await self._search()

    def start_refresh(self) -> asyncio.Task[None]:
        """Search in the background; the search already under way, if there is one."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._search())
        return self._task

    def look_for(self, path: str) -> None:
        """Search again if this model is not known: it may have come since."""
        with self._guard:
            known = path in self._models
        if not known:
            self.start_refresh()

    async def refresh(self) -> ModelCatalogue:
        await asyncio.shield(self.start_refresh())
        return self.listing

    async def _search(self) -> None:
        """Read headers in a thread, which ends soon after this task is cancelled."""
        try:
            found = distinct(await search(self._host, self.folders))
        except MachineError as error:
            log.warning("models are not looked for: %s", error)
            return
        stop = threading.Event()
        try:
            await asyncio.to_thread(self._scan, found, stop)
        finally:
            stop.set()

    def _scan(self, every: list[ModelCandidate], stop: threading.Event) -> None:
        present: dict[str, ModelFile] = {}
        known: dict[_Stamp, ModelFile] = {}
        for found in every:
            stamp = tuple((f.path, f.size_bytes, f.mtime_ns) for f in found.files)
            model = self._known.get(stamp) or self._model(found)
            if stop.is_set():
                return
            present[model.path] = known[stamp] = model
            with self._guard:
                self._models[model.path] = model
        with self._guard:
            self._models = present
        self._known = known
        self._scanned_at = self._clock()

    def _model(self, found: ModelCandidate) -> ModelFile:
        info: ModelInfo | None = None
        problem = found.problem
        if not problem:
            try:
                info = self._read(found.path)
            except ModelError as error:
                problem = error.what
        return ModelFile(
            path=info.path if info else shown_path(found.path),
            name=found.name,
            size_bytes=found.size_bytes,
            source=found.source,
            arch=info.arch if info else "",
            file_type=info.file_type if info else "",
            n_layer=info.n_layer if info else 0,
            n_ctx_train=info.n_ctx_train if info else 0,
            problem=problem,
            identity=_identity_of(found.path),
            sparse=sparse_words(info.sparse) if info and info.sparse else "",
            caveat=info.caveat if info else "",
        )


def _identity_of(file: Path) -> str:
    try:
        return identity_of(file)
    except ModelError:
        return ""


LOOK_AGAIN_S = 10.0
"""A look at a file on a peer takes an SFTP session; no more often than this."""


class ModelCache:
    """Reads headers of models; keeps them with size and time of change of their files.

    ``elsewhere`` reads the header of a model on a peer, given its name and the path
    there.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], ModelInfo] = {}
        self._seen: dict[str, tuple[float, ModelInfo]] = {}
        self.elsewhere: Callable[[str, str], Awaitable[ModelInfo]] | None = None

    async def get(self, path: str) -> ModelInfo:
        if "\0" in path:
            raise UsageError("The path of a model holds no NUL character")
        there = at_peer(path)
        if there is None or self.elsewhere is None:
            return await asyncio.to_thread(self._here, path)
        at, model = self._seen.get(path, (-math.inf, None))
        if model is None or time.monotonic() - at > LOOK_AGAIN_S:
            model = await self.elsewhere(*there)
            self._seen[path] = (time.monotonic(), model)
        return model

    def _here(self, path: str) -> ModelInfo:
        hint = "Check the path, or pick another model."
        with disk_errors("read the model", path, hint, ModelError):
            found = [part.stat() for part in part_paths(Path(path))]
        key = (path, *((s.st_ino, s.st_size, s.st_mtime_ns) for s in found))
        if key not in self._kept:
            self._kept[key] = read_model(Path(path))
        return self._kept[key]
