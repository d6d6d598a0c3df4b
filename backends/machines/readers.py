"""Slow questions asked off the event loop: which engine, which model."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from backends.config import Config, load_config
from backends.engine.ask import Engine, describe, list_devices
from backends.engine.find import find_engine
from backends.errors import ModelError
from backends.gateway.access import access_of
from backends.models.layers import read_model
from backends.models.parts import part_paths
from backends.places import at_peer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from backends.gateway.access import Access
    from backends.paths import Paths
    from backends.questions import Asked
    from backends.state import Device, EngineInfo, ModelInfo

DEVICES_LAST_S = 10.0
"""Asking a GPU for its memory makes a context on it; no more often than this."""


class Readers:
    """Reads engine, configuration and model headers; models are kept until changed."""

    def __init__(self, paths: Paths, host: Asked) -> None:
        """Read below these directories; ``host`` is the machine we run on."""
        self._paths = paths
        self.host = host
        self._models: dict[tuple[object, ...], ModelInfo] = {}
        self._devices: dict[str, tuple[float, tuple[Device, ...]]] = {}
        self.serves: Callable[[], bool] = lambda: False
        """Whether a cluster of ours is at work here: then no GPU is disturbed."""
        self.elsewhere: Callable[[str, str], Awaitable[ModelInfo]] | None = None
        """Reads a model on a peer, given the peer's name and the path there."""

    def config(self) -> Config:
        """The settings as they are now."""
        return load_config(self._paths)

    def access(self) -> Access:
        """Who may reach the API, as the settings want it now."""
        return access_of(self.config(), self._paths)

    async def engine(self, wanted: str | None = None) -> Engine:
        """The engine a plan names, else the one the settings and the search give.

        Raises:
            EngineError: there is none, or it does not answer.
        """
        configured = wanted or self.config().engine
        found = await asyncio.to_thread(find_engine, configured, self._paths)
        light = self.serves()
        engine = await describe(self.host, found, self._paths, light=light)
        if not engine.info.devices:
            return engine
        devices = await self._devices_now(engine.info)
        info = msgspec.structs.replace(engine.info, devices=devices)
        return msgspec.structs.replace(engine, info=info)

    async def _devices_now(self, engine: EngineInfo) -> tuple[Device, ...]:
        """The accelerators with what is free now, or was before we began to serve."""
        at, known = self._devices.get(engine.server_path, (-math.inf, ()))
        if self.serves() or time.monotonic() - at < DEVICES_LAST_S:
            return known or engine.devices
        now = await list_devices(self.host, engine)
        self._devices[engine.server_path] = (time.monotonic(), now)
        return now

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
            found = [part.stat() for part in part_paths(Path(path))]
        except OSError as error:
            raise ModelError(
                f"Cannot read the model {path} ({error.strerror})",
                "Check the path, or pick another model.",
            ) from error
        key = (path, *((s.st_ino, s.st_size, s.st_mtime_ns) for s in found))
        if key not in self._models:
            self._models[key] = read_model(Path(path))
        return self._models[key]
