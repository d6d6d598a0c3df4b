"""The settings, engine and models of this machine, read off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable

import msgspec

from backends.config import Config, Stamp, load_config, stamp_of
from backends.engine.ask import Engine, list_devices, read_engine
from backends.engine.install import find_engine
from backends.errors import DllmError
from backends.machine_names import LOCAL
from backends.machines.agent import AgentSession
from backends.models.catalogue import ModelCache
from backends.paths import Paths
from backends.state import Device, EngineInfo, ModelInfo, Plan
from backends.writing import write_private

DEVICES_LAST_S = 10.0
"""Asking a GPU for its memory makes a context on it; no more often than this."""


class LocalInventory:
    """Reads configuration, engine and model headers.

    Read below these directories; ``agent`` is the machine we run on.
    """

    def __init__(self, paths: Paths, agent: AgentSession) -> None:
        self.paths = paths
        self.agent = agent
        self.models = ModelCache()
        self._devices: dict[str, tuple[float, tuple[Device, ...]]] = {}
        self._settings: Config | None = None
        self._stamp: Stamp | None = None
        self.settings_error: DllmError | None = None
        """Why the settings are not those of the file; None where they are."""
        self.serves: Callable[[], bool] = lambda: False
        """True if a cluster of ours is at work here: then no GPU is disturbed."""

    def config(self) -> Config:
        settings = self.settings()
        if self.settings_error is not None:
            raise self.settings_error
        return settings

    def settings(self) -> Config:
        """The settings as they could last be read, be it by an earlier controller.

        A slip in the file must not disturb what serves.
        """
        stamp = stamp_of(self.paths.config_file)
        if self._settings is None or stamp != self._stamp:
            self._stamp, self.settings_error = stamp, None
            try:
                self._settings = load_config(self.paths)
                self._keep_settings()
            except DllmError as error:
                self.settings_error = error
                self._settings = self._settings or self._kept_settings()
        return self._settings

    def _keep_settings(self) -> None:
        """Copy the file for a later controller; without room it does without."""
        kept, file = self.paths.kept_config_file, self.paths.config_file
        with contextlib.suppress(OSError):
            if stamp_of(file) is None:
                kept.unlink(missing_ok=True)
            else:
                write_private(kept, file.read_bytes(), durable=False)

    def _kept_settings(self) -> Config:
        try:
            return load_config(self.paths, self.paths.kept_config_file)
        except DllmError:
            return Config()

    async def engine(self, wanted: str | None = None) -> Engine:
        """The engine a plan names, else the one the settings and the search give."""
        configured = wanted or self.settings().engine
        found = await asyncio.to_thread(find_engine, configured, self.paths)
        light = self.serves()
        engine = await read_engine(self.agent, found, self.paths, light=light)
        if not engine.info.devices:
            return engine
        devices = await self._devices_now(engine.info)
        info = msgspec.structs.replace(engine.info, devices=devices)
        return msgspec.structs.replace(engine, info=info)

    async def rpc_protocol(self, plan: Plan | None = None) -> str:
        """The RPC version of a head's engine; "" without one.

        A head elsewhere has one that speaks with ours.
        """
        wanted = plan.engine if plan and plan.head == LOCAL else None
        try:
            return (await self.engine(wanted)).info.rpc_protocol
        except DllmError:
            return ""

    async def _devices_now(self, engine: EngineInfo) -> tuple[Device, ...]:
        """The accelerators with what is free now, or was before we began to serve."""
        at, known = self._devices.get(engine.server_path, (-math.inf, ()))
        if self.serves() or time.monotonic() - at < DEVICES_LAST_S:
            return known or engine.devices
        now = await list_devices(self.agent, engine)
        self._devices[engine.server_path] = (time.monotonic(), now)
        return now

    async def model(self, path: str) -> ModelInfo:
        return await self.models.get(path)
