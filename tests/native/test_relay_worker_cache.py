"""A stock worker's own cache, filled from a model beside it: the bytes stay away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from backends.machines.local import local_host_for_now
from backends.state.models import Seeding
from tests.kit.models import write_llama
from tests.native.relaying import running
from tests.native.stock import SHORT_PROMPT, Cluster, engine, server, start_worker

pytestmark = pytest.mark.engine

N_LAYER, N_EMBD, N_FF = 2, 512, 11264
FFN_BYTES = 2 * N_EMBD * N_FF
"""Of each of three tensors a layer: more than 10 MiB, so asked for by hash."""
N_HASHED = 3 * N_LAYER
N_TOKENS = 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "wide.gguf"
    write_llama(file, n_layer=N_LAYER, n_embd=N_EMBD, n_ff=N_FF, n_ctx=256)
    return file


@contextmanager
def loaded(version: str, relay: Path, model: Path, work: Path) -> Iterator[Cluster]:
    """The model on one worker with a cache."""
    with ExitStack() as stack:
        port = start_worker(stack, engine(version), work / "worker.log", "-c")
        between = stack.enter_context(running(relay, port, work / "stats.sock"))
        options = (version, model, [between.port], work / "server.log")
        url = stack.enter_context(server(*options, "-c", "256"))
        yield Cluster(url, [between])


def answered(line: dict[str, Any]) -> bool:
    if line["type"] != "snapshot":
        return False
    return bool(line["commands"].get("GET_TENSOR", {"count": 0})["count"] >= N_TOKENS)


async def seeded(run_dir: Path, model: Path) -> Seeding:
    async with local_host_for_now(run_dir) as host:
        return [told async for told in host.seeding(str(model))][-1]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("version", ["7.0.0", "8.0.0"])
def test_what_is_seeded_does_not_cross(
    relay: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
) -> None:
    answers, sent, asked = [], [], []
    for cache in ("its own", "ours"):
        monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / cache))
        if cache == "ours":
            with monkeypatch.context() as patched:
                patched.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
                told = asyncio.run(seeded(tmp_path / "run", model))
            assert told.seeded_bytes == told.size_bytes == N_HASHED * FFN_BYTES
        with loaded(version, relay, model, tmp_path) as cluster:
            answers.append(cluster.complete(SHORT_PROMPT, N_TOKENS))
            with cluster.relays[0].stats() as stats:
                commands = stats.until(answered)["commands"]
        sent.append(commands["SET_TENSOR"]["bytes_up"])
        asked.append(commands["SET_TENSOR_HASH"]["count"])
    assert answers[0] == answers[1]
    assert len(answers[0]) == N_TOKENS
    assert asked == [N_HASHED, N_HASHED]
    assert sent[1] < FFN_BYTES
    # But for the few bytes of the passes, of which one run may count more.
    assert sent[0] - sent[1] > (N_HASHED - 1) * FFN_BYTES
    assert contents(tmp_path / "its own" / "rpc") == contents(tmp_path / "ours" / "rpc")
