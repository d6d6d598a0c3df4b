"""What a GPU has free is asked of the engine now, and never while it serves."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from backends.config import Config
from backends.engine.ask import Engine
from backends.errors import DllmError
from backends.machines import readers as module
from backends.machines.local import local_host
from backends.machines.readers import DEVICES_LAST_S, Readers
from backends.paths import Paths
from backends.state import Device, EngineInfo, EngineSource

if TYPE_CHECKING:
    from pathlib import Path

LOCATION = EngineInfo(
    directory="/e", server_path="/e/s", worker_path="/e/w", source=EngineSource.CACHE
)


def gpu(free_bytes: int) -> Device:
    return Device(id="local/CUDA0", name="CUDA0", free_bytes=free_bytes)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An engine whose GPU has one byte less at every question; the questions."""
    questions: list[int] = []

    async def describe(*_: object, light: bool) -> Engine:
        info = replace(LOCATION, rpc_protocol="7.0.0", devices=(gpu(7),))
        return Engine(info=info, flags=frozenset())

    async def list_devices(host: object, engine: EngineInfo) -> tuple[Device, ...]:
        questions.append(len(questions))
        return (gpu(1000 - len(questions)),)

    monkeypatch.setattr(module, "describe", describe)
    monkeypatch.setattr(module, "list_devices", list_devices)
    monkeypatch.setattr(module, "find_engine", lambda *_: LOCATION)
    return questions


@pytest.fixture
def readers(tmp_path: Path) -> Readers:
    return Readers(
        Paths(
            config_dir=tmp_path,
            state_dir=tmp_path,
            cache_dir=tmp_path,
            runtime_dir=tmp_path,
        ),
        local_host(tmp_path),
    )


async def free(readers: Readers) -> int:
    return (await readers.engine("/e")).info.devices[0].free_bytes


async def test_the_disks_old_figure_is_not_used(
    readers: Readers, asked: list[int]
) -> None:
    assert await free(readers) == 999
    assert await free(readers) == 999, "asked once for a while"
    assert len(asked) == 1


async def test_it_is_asked_anew_after_a_while_but_not_while_serving(
    readers: Readers, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await free(readers) == 999
    start = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: start + DEVICES_LAST_S + 1)
    readers.serves = lambda: True
    assert await free(readers) == 999
    readers.serves = lambda: False
    assert await free(readers) == 998
    assert len(asked) == 2


def test_settings_that_cannot_be_read_are_those_before(readers: Readers) -> None:
    """Also for a controller that never read them: the one before left a copy."""
    file = readers.paths.config_file
    file.write_text("api_port = 8123\n")
    assert readers.settings().api_port == 8123
    file.write_text("workres = 3\n")
    for reads in (readers, Readers(readers.paths, readers.host)):
        assert reads.settings().api_port == 8123
        with pytest.raises(DllmError, match="workres"):
            reads.config()
    file.write_text("")
    assert readers.config().api_port is None
    file.unlink()
    assert Readers(readers.paths, readers.host).settings() == Config()


def test_a_file_that_stays_is_read_once(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Config] = []

    def load(*_: object) -> Config:
        reads.append(Config())
        return reads[-1]

    monkeypatch.setattr(module, "load_config", load)
    readers.paths.config_file.write_text("workers = 3\n")
    for _ in range(3):
        readers.settings()
    assert len(reads) == 1
