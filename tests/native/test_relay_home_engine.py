"""Weights that stay home, between stock llama-server and rpc-servers, both protocols."""

from __future__ import annotations

import shutil
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import gguf
import pytest

from tests.engine.synthetic import write_llama
from tests.native.pairing import paired
from tests.native.stock import SHORT_PROMPT, Cluster, engine, server, start_worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.engine

VERSIONS = ["7.0.0", "8.0.0"]
N_TOKENS = 24
HASHED_BYTES = 10 << 20
"""From there on llama-server asks for a tensor by its hash."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with tensors of all sizes, some of them asked for by hash."""
    file = tmp_path_factory.mktemp("model") / "wide.gguf"
    write_llama(file, n_layer=3, n_embd=512, n_ff=11264, n_ctx=512)
    return file


@pytest.fixture(scope="module")
def direct(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[int]]:
    """What each engine says of it without relays."""
    return {each: tokens_direct(each, model, tmp_path_factory) for each in VERSIONS}


def tokens_direct(
    version: str, model: Path, factory: pytest.TempPathFactory
) -> list[int]:
    work = factory.mktemp("direct")
    with ExitStack() as stack:
        port = start_worker(stack, engine(version), work / "worker.log")
        with server(version, model, [port], work / "server.log", "-c", "256") as url:
            return Cluster(url).complete(SHORT_PROMPT, N_TOKENS)


def weights_of(model: Path) -> list[tuple[str, int]]:
    """What a worker with all layers is sent: name and bytes."""
    tensors = gguf.GGUFReader(model).tensors
    return [(t.name, int(t.n_bytes)) for t in tensors if t.name != "token_embd.weight"]


def loaded(count: int) -> Any:
    """Of a snapshot: whether so many tensors came, and an answer."""

    def holds(line: dict[str, Any]) -> bool:
        pair = line.get("pair")
        asked = line.get("commands", {}).get("GET_TENSOR", {"count": 0})["count"]
        return bool(pair and pair["tensors"] >= count and asked >= N_TOKENS)

    return holds


@contextmanager
def load(
    version: str, relay: Path, model: Path, work: Path, *files: Path
) -> Iterator[tuple[list[int], dict[str, Any], str]]:
    """One load and answer through a pair whose worker has these files."""
    beside = [word for file in files for word in ("--model", str(file))]
    with ExitStack() as stack:
        port = start_worker(stack, engine(version), work / "worker.log")
        near, far = stack.enter_context(
            paired(relay, port, work / "w.sock", far_options=beside)
        )
        log = work / "server.log"
        url = stack.enter_context(server(version, model, [near.port], log, "-c", "256"))
        tokens = Cluster(url).complete(SHORT_PROMPT, N_TOKENS)
        with near.stats() as stats:
            seen = stats.until(loaded(len(weights_of(model))))
        yield tokens, seen, far.log.read_text()


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_worker_has_does_not_cross(
    relay: Path, model: Path, direct: dict[str, list[int]], tmp_path: Path, version: str
) -> None:
    weights = weights_of(model)
    for _ in range(2):
        with load(version, relay, model, tmp_path, model) as (tokens, seen, _):
            assert tokens == direct[version]
            pair = seen["pair"]
            assert pair["weight_bytes_sent"] == 0
            assert pair["weight_bytes_home"] == sum(size for _, size in weights)
            assert pair["tensors"] == len(weights)
            assert pair["tensors_differ"] == pair["tensors_missing"] == 0
            # Counted as llama-server said it; asked, and not of the worker.
            commands = seen["commands"]
            said = commands["SET_TENSOR"]["bytes_up"]
            assert said > pair["weight_bytes_home"]
            hashes = commands["SET_TENSOR_HASH"]
            large = sum(size > HASHED_BYTES for _, size in weights)
            assert hashes["count"] == hashes["answered"] == large
            assert pair["wire_bytes_up"] < said / 20
