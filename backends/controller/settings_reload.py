"""Following the settings: what changes in config.toml counts without a new start."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from backends.config import Config, stamp_of
from backends.controller.clusters import Clusters
from backends.errors import DllmError
from backends.machines.local_inventory import LocalInventory
from backends.machines.peers import Peers
from backends.models.catalogue import Catalogue
from backends.models.search import user_folders
from backends.state import EventKind, EventTone

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5


class SettingsReloader:
    """Watches the file of the settings, and has the other parts take up changes."""

    def __init__(
        self,
        file: Path,
        inventory: LocalInventory,
        catalogue: Catalogue,
        clusters: Clusters,
        peers: Peers,
    ) -> None:
        self._file = file
        self._inventory = inventory
        self._catalogue = catalogue
        self._clusters = clusters
        self._peers = peers
        self._known = inventory.settings()
        self._seen = stamp_of(file)
        self._all_peers = True
        self._wrong: DllmError | None = None
        """Why what the file says now does not count."""
        self._looking = asyncio.Lock()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self._look()
            except DllmError as error:
                # A slip in the file: what was known stays, and who needs it says so.
                log.warning("%s", error)
            except Exception:
                log.exception("the settings are followed again")

    async def taken(self) -> None:
        """Wait until what the file says now counts."""
        await self._look()
        if self._wrong is not None:
            raise self._wrong

    def show(self, error: DllmError | None) -> None:
        self._clusters.show_settings_error(error)
        if error is not None:
            text = f"{error.what}: the last good settings count until that is mended"
            event_log = self._clusters.event_log
            event_log.tell(EventKind.SETTINGS, text, tone=EventTone.WARNING)

    async def _look(self) -> None:
        async with self._looking:
            stamp = stamp_of(self._file)
            if stamp == self._seen:
                if not self._all_peers:
                    self._all_peers = await self._peers.follow(self._known.peers)
                return
            self._seen, self._wrong = stamp, None
            try:
                config = self._inventory.config()
                self.show(None)
                await self._take(config)
            except DllmError as error:
                self._wrong = error
                self.show(error)
                raise

    async def _take(self, config: Config) -> None:
        before, self._known = self._known, config
        log.info("the settings have changed")
        # Who adds or removes a peer is known, and told.
        changed = [
            name
            for name in config.__struct_fields__
            if name != "peers" and getattr(config, name) != getattr(before, name)
        ]
        if changed:
            text = f"config.toml changed: {', '.join(changed)}"
            self._clusters.event_log.tell(EventKind.SETTINGS, text)
        if config.model_dirs != before.model_dirs:
            self._catalogue.look_in(user_folders(config.model_dirs))
        if config.engine != before.engine:
            await self._show_engine()
        self._all_peers = await self._peers.follow(config.peers)
        await self._clusters.look_at_memory()

    async def _show_engine(self) -> None:
        try:
            engine = await self._inventory.engine()
        except DllmError as error:
            self._clusters.get().store.update(message=str(error))
            return
        for cluster in self._clusters:
            if cluster.pursued is None:
                cluster.store.update(engine=None)
        self._clusters.show_engine(engine.info)
