"""A hub with one small model, a user who gets it, and this machine."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gguf import GGUFReader

from backends.machines.agent import AgentSession
from backends.machines.local import local_agent_for_now
from tests.unit.models.getting import NAME, Getting
from tests.unit.models.ggufs import LLAMA, llama_tensors, write_gguf
from tests.unit.models.hub import Hub


def random_model(file: Path, n_layer: int) -> bytes:
    """A model no two bytes of which are the same by plan."""
    write_gguf(file, LLAMA | {"block_count": n_layer}, llama_tensors(n_layer))
    header = GGUFReader(file).tensors[0].data_offset
    body = random.Random(n_layer).randbytes(file.stat().st_size - header)
    return file.read_bytes()[:header] + body


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return random_model(tmp_path_factory.mktemp("m") / NAME, n_layer=12)


@pytest.fixture(scope="module")
def other_content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What another version of the same model would be."""
    return random_model(tmp_path_factory.mktemp("m") / NAME, n_layer=13)


@pytest.fixture
async def hub(content: bytes) -> AsyncIterator[Hub]:
    one = Hub({NAME: content})
    async with one.served():
        yield one


@pytest.fixture
def forking(forking: None) -> None:
    """Forks, none of which imports the hub's library again."""
    import huggingface_hub.file_download
    import huggingface_hub.hf_api  # noqa: F401

    import backends.models.download_process  # noqa: F401


@pytest.fixture
def getting(forking: None, hub: Hub, tmp_path: Path) -> Getting:
    return Getting(hub, tmp_path)


@pytest.fixture
async def agent(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[AgentSession]:
    async with local_agent_for_now(tmp_path_factory.mktemp("run")) as agent:
        yield agent


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, with all folders at their default places."""
    for variable in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path
