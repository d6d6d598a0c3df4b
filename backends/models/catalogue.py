"""The catalogue: every GGUF under the configured folders, found in the background."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

from backends.errors import ModelError
from backends.models.folders import Folder, configured_folders, default_folders
from backends.models.identity import identity_of
from backends.models.layers import read_model
from backends.models.search import Found, search
from backends.models.text import shown_path
from backends.state import ModelCatalogue, ModelFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from backends.state import ModelInfo

__all__ = ["Catalogue", "configured_folders", "default_folders"]

_Stamp = tuple[tuple[str, int, int], ...]
"""Path, bytes and modification time (ns) of every part: equal means unchanged."""
_Identity = tuple[int, int] | str
"""Device and inode of the first file; its path for a dead link."""


class Catalogue:
    """Models on this machine; the listing can be read while the search goes on.

    Headers are read once: a later search reads those of new or changed files only.
    """

    def __init__(
        self,
        folders: Iterable[tuple[str, Path]],
        clock: Callable[[], float] = time.time,
        read: Callable[[Path], ModelInfo] = read_model,
    ) -> None:
        """Search nothing yet.

        Args:
            folders: source and path of each; `default_folders` has the usual ones.
            clock: Unix seconds, for ``scanned_at``.
            read: reads one model's headers.
        """
        self.folders = tuple(Folder(source, path) for source, path in folders)
        self._clock = clock
        self._read = read
        self._known: dict[_Stamp, ModelFile] = {}
        self._models: dict[str, ModelFile] = {}
        self._guard = threading.Lock()
        self._scanned_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def listing(self) -> ModelCatalogue:
        """What is known now, by name: while searching, the models found so far."""
        with self._guard:
            models = list(self._models.values())
        return ModelCatalogue(
            models=tuple(sorted(models, key=lambda model: model.name.lower())),
            folders=tuple(shown_path(folder.path) for folder in self.folders),
            scanning=self._task is not None and not self._task.done(),
            scanned_at=self._scanned_at,
        )

    def start_refresh(self) -> asyncio.Task[None]:
        """Search in the background; the search already under way, if there is one."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._search())
        return self._task

    async def refresh(self) -> ModelCatalogue:
        """Search and wait for it; giving up waiting does not end the search."""
        await asyncio.shield(self.start_refresh())
        return self.listing

    async def _search(self) -> None:
        """Scan in a thread, which ends soon after this task is cancelled."""
        stop = threading.Event()
        try:
            await asyncio.to_thread(self._scan, stop)
        finally:
            stop.set()

    def _scan(self, stop: threading.Event) -> None:
        present: dict[str, ModelFile] = {}
        known: dict[_Stamp, ModelFile] = {}
        for stamp, model in self._entries():
            if stop.is_set():
                return
            present[model.path] = known[stamp] = model
            with self._guard:
                self._models[model.path] = model
        with self._guard:
            self._models = present
        self._known = known
        self._scanned_at = self._clock()

    def _entries(self) -> Iterator[tuple[_Stamp, ModelFile]]:
        """Every model once, though it may be linked from several places."""
        seen: set[_Identity] = set()
        for found in search(self.folders):
            identity, stamp = _stamp(found)
            if identity not in seen:
                seen.add(identity)
                yield stamp, self._known.get(stamp) or self._model(found, stamp)

    def _model(self, found: Found, stamp: _Stamp) -> ModelFile:
        """Read the headers; what is wrong with them becomes ``problem``."""
        info: ModelInfo | None = None
        problem = found.problem
        if not problem:
            try:
                info = self._read(found.files[0])
            except ModelError as error:
                problem = error.what
        return ModelFile(
            path=info.path if info else shown_path(found.files[0]),
            name=found.name,
            size_bytes=sum(size for _, size, _ in stamp),
            source=found.source,
            arch=info.arch if info else "",
            file_type=info.file_type if info else "",
            n_layer=info.n_layer if info else 0,
            n_ctx_train=info.n_ctx_train if info else 0,
            problem=problem,
            identity=_identity_of(found.files[0]),
        )


def _identity_of(file: Path) -> str:
    try:
        return identity_of(file)
    except ModelError:
        return ""


def _stamp(found: Found) -> tuple[_Identity, _Stamp]:
    """The first file's identity on disk and all files' state."""
    identity: _Identity = str(found.files[0])
    states = []
    for file in found.files:
        try:
            status = file.stat()
        except OSError:
            states.append((str(file), 0, 0))
            continue
        if file == found.files[0]:
            identity = (status.st_dev, status.st_ino)
        states.append((str(file), status.st_size, status.st_mtime_ns))
    return identity, tuple(states)
