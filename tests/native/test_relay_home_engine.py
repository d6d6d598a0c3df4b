"""Weights that stay home, between stock llama-server and rpc-servers."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import pytest

from backends.machines.local import local_agent_for_now
from backends.state.models import Seeding
from tests.kit.models import write_llama
from tests.native.pairing import paired
from tests.native.relaying import running
from tests.native.stock import (
    SHORT_PROMPT,
    Cluster,
    engine,
    on_both_engines,
    server,
    start_worker,
)

pytestmark = pytest.mark.engine

VERSIONS = ["7.0.0", "8.0.0"]
N_TOKENS = 24
HASHED_BYTES = 10 << 20
"""From there on llama-server asks for a tensor by its hash."""
CHUNK_BYTES = 1 << 20
HELD_BYTES = 16 << 20
N_LAYER, N_EMBD, N_FF = 2, 512, 11264
FFN_BYTES = 2 * N_EMBD * N_FF
"""Of each of three tensors a layer: more than 10 MiB, so asked for by hash."""
RSS_BYTES_MAX = 32 << 20
"""Of each end, beside the chunks it holds."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "wide.gguf"
    write_llama(file, n_layer=N_LAYER, n_embd=N_EMBD, n_ff=N_FF, n_ctx=512)
    # No table is kept of a file that was changed just now.
    os.utime(file, (1e9, 1e9))
    return file


Direct = Callable[[str], list[int]]


@pytest.fixture(scope="module")
def direct(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Direct:
    """The tokens of an engine without relays, asked for once."""

    @functools.cache
    def tokens(version: str) -> list[int]:
        work = tmp_path_factory.mktemp("direct")
        log = work / "server.log"
        with ExitStack() as stack:
            port = start_worker(stack, engine(version), work / "worker.log")
            with server(version, model, [port], log, "-c", "256") as url:
                return Cluster(url).complete(SHORT_PROMPT, N_TOKENS)

    return tokens


def weights_of(model: Path) -> list[tuple[str, int]]:
    tensors = gguf.GGUFReader(model).tensors
    return [(t.name, int(t.n_bytes)) for t in tensors if t.name != "token_embd.weight"]


def peak_rss_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def loaded(weights: list[tuple[str, int]]) -> Callable[[dict[str, Any]], bool]:
    """Of a snapshot: whether all of these came, and an answer."""
    size_bytes = sum(size for _, size in weights)

    def holds(line: dict[str, Any]) -> bool:
        pair = line.get("pair")
        if not pair or pair["tensors"] < len(weights):
            return False
        came = pair["weight_bytes_home"] + pair["weight_bytes_sent"]
        asked = line["commands"].get("GET_TENSOR", {"count": 0})["count"]
        return bool(came == size_bytes and asked >= N_TOKENS)

    return holds


@contextmanager
def load(
    version: str,
    relay: Path,
    model: Path,
    work: Path,
    *files: Path,
    before: Callable[[], object] = lambda: None,
    at_both: Sequence[str] = (),
    cache: Path | None = None,
) -> Iterator[tuple[list[int], dict[str, Any], str]]:
    """One load and answer through a pair whose worker has these files.

    ``before``: what happens to them when they are open. ``at_both``: options of both
    ends. ``cache``: where these look for tables of tensors.
    """
    beside = [word for file in files for word in ("--model", str(file))]
    with ExitStack() as stack:
        port = start_worker(stack, engine(version), work / "worker.log")
        tables = {"XDG_CACHE_HOME": str(cache)} if cache else {}
        with patch.dict(os.environ, tables):
            near, far = stack.enter_context(
                paired(relay, port, work / "w.sock", *at_both, far_options=beside)
            )
        before()
        log = work / "server.log"
        url = stack.enter_context(server(version, model, [near.port], log, "-c", "256"))
        tokens = Cluster(url).complete(SHORT_PROMPT, N_TOKENS)
        with near.stats() as stats:
            seen = stats.until(loaded(weights_of(model)))
        for end in (near.process, far.process):
            assert peak_rss_bytes(end.pid) < RSS_BYTES_MAX + HELD_BYTES
        yield tokens, seen, far.log.read_text()


def test_what_the_worker_has_does_not_cross(
    relay: Path, model: Path, direct: Direct, tmp_path: Path
) -> None:
    """The second time its relay knows the bytes by a table of the first."""
    weights = weights_of(model)
    for version in VERSIONS:
        with load(version, relay, model, tmp_path, model) as (tokens, seen, _):
            assert tokens == direct(version)
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


async def make_tables(run_dir: Path, model: Path) -> None:
    async with local_agent_for_now(run_dir) as agent:
        last = [told async for told in agent.hashing(str(model))][-1]
    assert last.complete


@on_both_engines
def test_known_hashes_save_the_bytes_of_llama_server_too(
    relay: Path, model: Path, direct: Direct, tmp_path: Path, version: str
) -> None:
    cache = tmp_path / "cache"
    with patch.dict(os.environ, {"XDG_CACHE_HOME": str(cache)}):
        asyncio.run(make_tables(tmp_path / "run", model))
    weights = weights_of(model)
    options = ("--model", str(model))
    with load(version, relay, model, tmp_path, at_both=options, cache=cache) as seen:
        tokens, line, _ = seen
        assert tokens == direct(version)
        assert line["pair"]["weight_bytes_home"] == sum(size for _, size in weights)
        assert line["pair"]["weight_bytes_sent"] == 0
        hashes = line["commands"]["SET_TENSOR_HASH"]
        assert hashes["count"] == hashes["answered"] > 0
        small = sum(size for _, size in weights if size <= HASHED_BYTES)
        inputs = HASHED_BYTES
        assert small < line["commands"]["SET_TENSOR"]["bytes_up"] < small + inputs


def copy_of(model: Path, file: Path) -> Path:
    shutil.copy(model, file)
    return file


def chunks_at(model: Path, names: set[str]) -> tuple[list[int], int]:
    tensors = [t for t in gguf.GGUFReader(model).tensors if t.name in names]
    sizes = sum(min(int(t.n_bytes), CHUNK_BYTES) for t in tensors)
    return [int(t.data_offset) for t in tensors], sizes


def spoil(file: Path, places: list[int]) -> None:
    """Other bytes at these places, and nothing else about the file."""
    status = file.stat()
    with file.open("r+b") as out:
        for place in places:
            out.seek(place)
            was = out.read(1)
            out.seek(place)
            out.write(bytes([was[0] ^ 1]))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


DIFFERENT = {"blk.0.ffn_up.weight", "blk.1.attn_q.weight", "output_norm.weight"}


@pytest.mark.parametrize(
    "when", ["before", pytest.param("after", marks=pytest.mark.trial)]
)
def test_a_fine_tune_costs_what_differs(
    relay: Path, model: Path, direct: Direct, tmp_path: Path, when: str
) -> None:
    """Of equal shapes; told by its bytes alone, also when they change later."""
    other = copy_of(model, tmp_path / "other.gguf")
    places, different_bytes = chunks_at(model, DIFFERENT)
    if when == "before":
        spoil(other, places)

    def then() -> None:
        if when == "after":
            spoil(other, places)

    with load("8.0.0", relay, model, tmp_path, other, before=then) as seen:
        tokens, line, _ = seen
        assert tokens == direct("8.0.0")
        assert line["pair"]["tensors_differ"] == len(DIFFERENT)
        assert line["pair"]["tensors_missing"] == 0
        assert line["pair"]["weight_bytes_sent"] == different_bytes


def test_files_that_cannot_be_read_are_told_and_the_others_serve(
    relay: Path, model: Path, direct: Direct, tmp_path: Path
) -> None:
    cut = copy_of(model, tmp_path / "cut.gguf")
    os.truncate(cut, model.stat().st_size // 2)
    none = tmp_path / "none.gguf"
    with load("8.0.0", relay, model, tmp_path, none, cut, model) as seen:
        tokens, line, log = seen
        assert tokens == direct("8.0.0")
        assert line["pair"]["weight_bytes_sent"] == 0
        assert f"{none} cannot be read" in log
        assert f"{cut} is truncated" in log
        sentences = [each for each in log.splitlines() if "will not come" in each]
        assert len(sentences) == 2


# --- A stock worker's own cache, filled from a model beside it: the bytes stay away ---

N_HASHED = 3 * N_LAYER
FEW_TOKENS = 8


@contextmanager
def with_cache(version: str, relay: Path, model: Path, work: Path) -> Iterator[Cluster]:
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
    return bool(line["commands"].get("GET_TENSOR", {"count": 0})["count"] >= FEW_TOKENS)


async def seeded(run_dir: Path, model: Path) -> Seeding:
    async with local_agent_for_now(run_dir) as agent:
        return [told async for told in agent.seeding(str(model))][-1]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@on_both_engines
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
        with with_cache(version, relay, model, tmp_path) as cluster:
            answers.append(cluster.complete(SHORT_PROMPT, FEW_TOKENS))
            with cluster.relays[0].stats() as stats:
                commands = stats.until(answered)["commands"]
        sent.append(commands["SET_TENSOR"]["bytes_up"])
        asked.append(commands["SET_TENSOR_HASH"]["count"])
    assert answers[0] == answers[1]
    assert len(answers[0]) == FEW_TOKENS
    assert asked == [N_HASHED, N_HASHED]
    assert sent[1] < FFN_BYTES
    # But for the few bytes of the passes, of which one run may count more.
    assert sent[0] - sent[1] > (N_HASHED - 1) * FFN_BYTES
    assert contents(tmp_path / "its own" / "rpc") == contents(tmp_path / "ours" / "rpc")
