"""Headers of models, each read once until its file changes."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

from backends.errors import ModelError, UsageError
from backends.models.layers import read_model
from backends.models.parts import part_paths
from backends.places import at_peer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from backends.state import ModelInfo

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
        """A model's header; ``peer:/path`` is one that a peer holds."""
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
        try:
            found = [part.stat() for part in part_paths(Path(path))]
        except OSError as error:
            raise ModelError(
                f"Cannot read the model {path} ({error.strerror})",
                "Check the path, or pick another model.",
            ) from error
        key = (path, *((s.st_ino, s.st_size, s.st_mtime_ns) for s in found))
        if key not in self._kept:
            self._kept[key] = read_model(Path(path))
        return self._kept[key]
