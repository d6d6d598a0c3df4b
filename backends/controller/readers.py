"""Slow questions asked off the event loop: which engine, which model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from backends.config import Config, load_config
from backends.controller.places import at_peer
from backends.engine.ask import describe, flags_of
from backends.engine.find import EngineLocation, find_engine
from backends.errors import ModelError
from backends.models.layers import read_model
from backends.state import EngineInfo, ModelInfo, Value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from backends.paths import Paths


class Engine(Value, frozen=True, kw_only=True):
    """A llama.cpp, what it says of itself, and the flags it knows."""

    location: EngineLocation
    info: EngineInfo
    flags: frozenset[str]


class Readers:
    """Reads engine, configuration and model headers; models are kept until changed."""

    def __init__(self, paths: Paths) -> None:
        """Read below these directories."""
        self._paths = paths
        self._models: dict[tuple[str, int, int], ModelInfo] = {}
        self.elsewhere: Callable[[str, str], Awaitable[ModelInfo]] | None = None
        """Reads a model on a peer, given the peer's name and the path there."""

    def config(self) -> Config:
        """The settings as they are now."""
        return load_config(self._paths)

    async def engine(self, wanted: str | None = None) -> Engine:
        """The engine a plan names, else the one the settings and the search give.

        Raises:
            EngineError: there is none, or it does not answer.
        """
        configured = wanted or self.config().engine
        location = await asyncio.to_thread(find_engine, configured, self._paths)
        info = await describe(location, self._paths)
        return Engine(
            location=location, info=info, flags=await flags_of(location, self._paths)
        )

    async def model(self, path: str) -> ModelInfo:
        """A model's header; ``peer:/path`` is one that a peer holds.

        Raises:
            ModelError: the file is missing or not a usable GGUF.
            HostError: there is no such peer, or it cannot be reached.
        """
        if (there := at_peer(path)) and self.elsewhere is not None:
            return await self.elsewhere(*there)
        return await asyncio.to_thread(self._model, path)

    def _model(self, path: str) -> ModelInfo:
        try:
            status = Path(path).stat()
        except OSError as error:
            raise ModelError(
                f"Cannot read the model {path} ({error.strerror})",
                "Check the path, or pick another model.",
            ) from error
        key = (path, status.st_size, status.st_mtime_ns)
        if key not in self._models:
            self._models[key] = read_model(Path(path))
        return self._models[key]
