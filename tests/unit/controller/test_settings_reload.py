"""What changes in config.toml counts while the controller runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from backends.config import Config, PeerConfig, load_config
from backends.controller import settings_reload
from backends.controller.settings_reload import SettingsReloader
from backends.errors import DllmError, EngineError
from backends.models.catalogue import Catalogue
from backends.state import EventKind
from tests.kit.clusters import paths_in
from tests.kit.waiting import until


class Controller:
    """The parts a reloader tells, each remembering what it was told."""

    def __init__(self, home: Path) -> None:
        self.paths = paths_in(home)
        self.paths.config_dir.mkdir()
        self.peers: list[dict[str, PeerConfig]] = []
        self.all_taken = True
        self.folders: list[str] = []
        self.messages: list[str] = []
        self.looked = 0
        self.reads = 0
        self.told: list[str] = []
        self.error: DllmError | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    # --- the parts -----------------------------------------------------------------

    def config(self) -> Config:
        self.reads += 1
        return load_config(self.paths)

    async def engine(self) -> None:
        raise EngineError(f"There is no engine in {self.config().engine}")

    def look_in(self, folders: Any) -> None:
        self.folders = [str(folder.path) for folder in folders]

    async def look_at_memory(self) -> None:
        self.looked += 1

    def get(self) -> Controller:
        return self

    @property
    def store(self) -> Controller:
        return self

    def settings(self) -> Config:
        return self.config()

    @property
    def event_log(self) -> Controller:
        return self

    def tell(self, kind: EventKind, text: str, **_: Any) -> None:
        self.told.append(text)

    def show_settings_error(self, error: DllmError | None) -> None:
        self.error = error

    def update(self, *, message: str) -> None:
        self.messages.append(message)

    async def follow(self, peers: Mapping[str, PeerConfig]) -> bool:
        await self.gate.wait()
        self.peers.append(dict(peers))
        return self.all_taken

    # --- what tests do ---------------------------------------------------------------

    def write(self, text: str) -> None:
        new = self.paths.config_file.with_suffix(".new")
        new.write_text(text)
        new.replace(self.paths.config_file)

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[SettingsReloader]:
        parts = cast("Any", self)
        reloader = SettingsReloader(self.paths.config_file, parts, parts, parts, parts)
        task = asyncio.create_task(reloader.run())
        try:
            yield reloader
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.fixture
def controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Controller:
    monkeypatch.setattr(settings_reload, "LOOK_EVERY_S", 0.005)
    return Controller(tmp_path)


async def test_folders_peers_and_engine_follow_file(controller: Controller) -> None:
    async with controller.followed():
        controller.write('model_dirs = ["/more"]\n')
        await until(lambda: controller.looked == 1)
        assert controller.told == ["config.toml changed: model_dirs"]
        assert "/more" in controller.folders
        assert controller.messages == []
        controller.folders = []
        controller.write('model_dirs = ["/more"]\nengine = "/e"\n')
        await until(lambda: controller.looked == 2)
        assert controller.folders == []
        assert "no engine in /e" in controller.messages[-1]
        same = 'model_dirs = ["/more"]\nengine = "/e"\n'
        controller.write(f'{same}[peers.mini]\nssh = "mini"\n')
        await until(lambda: controller.looked == 3)
        assert controller.peers[-1] == {"mini": PeerConfig(ssh="mini")}
        assert len(controller.told) == 2, "who adds a peer is told otherwise"


async def test_a_slip_changes_nothing_the_next_counts(controller: Controller) -> None:
    async with controller.followed():
        controller.write("workers = 'x'\n")
        await until(lambda: controller.reads == 2)
        assert "workers cannot be 'x'" in str(controller.error)
        assert "the last good settings count" in controller.told[0]
        controller.write('[peers.nuc]\nssh = "nuc"\n')
        await until(lambda: controller.looked == 1)
        assert controller.peers == [{"nuc": PeerConfig(ssh="nuc")}]
        assert controller.error is None


async def test_a_clusters_peer_is_asked_for_until_taken(controller: Controller) -> None:
    controller.all_taken = False
    async with controller.followed():
        controller.write('[peers.nuc]\nssh = "nuc"\n')
        await until(lambda: len(controller.peers) > 2)
        controller.all_taken = True
        n_asked = len(controller.peers)
        await until(lambda: len(controller.peers) == n_asked + 1)
        reads = controller.reads
        controller.write("workers = 'x'\n")
        await until(lambda: controller.reads > reads)
        assert len(controller.peers) == n_asked + 1


async def test_who_waits_for_the_settings_finds_them_taken(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings_reload, "LOOK_EVERY_S", 3600.0)
    async with controller.followed() as reloader:
        await reloader.taken()
        assert controller.peers == []
        controller.write('[peers.nuc]\nssh = "nuc"\n')
        await reloader.taken()
        assert controller.peers == [{"nuc": PeerConfig(ssh="nuc")}]
        controller.write("workers = 'x'\n")
        for _ in range(2):
            with pytest.raises(DllmError, match="workers cannot be 'x'"):
                await reloader.taken()
        controller.write("workers = 3\n")
        await reloader.taken()
        assert controller.peers[1:] == [{}]


async def test_settings_being_taken_are_waited_for(controller: Controller) -> None:
    controller.gate.clear()
    async with controller.followed() as reloader:
        controller.write('[peers.nuc]\nssh = "nuc"\n')
        await until(lambda: controller.reads == 2)
        waiting = asyncio.create_task(reloader.taken())
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        controller.gate.set()
        await waiting
        assert controller.peers == [{"nuc": PeerConfig(ssh="nuc")}]


async def test_other_folders_are_searched_after_a_search_under_way() -> None:
    gate = asyncio.Event()
    searched: list[tuple[str, ...]] = []

    class Slow(Catalogue):
        async def _search(self) -> None:
            folders = cast("tuple[str, ...]", self.folders)
            await gate.wait()
            searched.append(folders)

    catalogue = Slow(cast("Any", None), cast("Any", ("old",)))
    catalogue.start_refresh()
    await asyncio.sleep(0)
    catalogue.look_in(cast("Any", ("new",)))
    gate.set()
    await catalogue.start_refresh()
    assert searched == [("old",), ("new",)]
