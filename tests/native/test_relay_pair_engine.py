"""A pair of relays between stock llama-server and rpc-servers, both protocols."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kit.models import write_llama
from tests.native.pairing import all_waited_for, key_file, paired, waited_for
from tests.native.relaying import Relay
from tests.native.stock import SHORT_PROMPT, Cluster, engine, server, start_worker

pytestmark = pytest.mark.engine

LONG_PROMPT = [1, *(5 + i % 200 for i in range(1499))]
TOKENS = 40
VOUCHED_S = 10.0
"""So long what a start was told first is told it again: ``Answers::kStartMax``."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "small.gguf"
    write_llama(file, n_layer=12, n_embd=128, n_ff=256)
    return file


def answers(url: str) -> list[list[int]]:
    return [Cluster(url).complete(each, TOKENS) for each in (SHORT_PROMPT, LONG_PROMPT)]


def in_full(line: dict[str, Any]) -> bool:
    pair = line.get("pair")
    return bool(
        pair
        and pair["up"]
        and line["connected"]
        and pair["wire_bytes_down"] > line["bytes_down"]
    )


@pytest.mark.usefixtures("with_tls")
@pytest.mark.parametrize("version", ["7.0.0", "8.0.0"])
def test_the_same_tokens_through_pairs(
    relay: Path, model: Path, tmp_path: Path, version: str
) -> None:
    """One worker through a plain pair, one through TLS, against both direct."""
    with ExitStack() as stack:
        workers = [
            start_worker(stack, engine(version), tmp_path / f"worker{i}.log")
            for i in range(2)
        ]
        with server(version, model, workers, tmp_path / "direct.log") as url:
            direct = answers(url)
        keys = ((), key_file(tmp_path / "key"))
        pairs = [
            stack.enter_context(paired(relay, port, tmp_path / f"w{i}.sock", *key))[0]
            for i, (port, key) in enumerate(zip(workers, keys, strict=True))
        ]
        ports = [each.port for each in pairs]
        with server(version, model, ports, tmp_path / "paired.log") as url:
            assert answers(url) == direct
            for each, sealed in zip(pairs, (False, True), strict=True):
                with each.stats() as stats:
                    seen = stats.until(in_full)
                # Weights cross as they are; graphs, masks and headers hardly.
                weights = seen["commands"]["SET_TENSOR"]["bytes_up"]
                graphs = seen["commands"]["GRAPH_COMPUTE"]["bytes_up"]
                crossed = seen["pair"]["wire_bytes_up"]
                assert crossed < weights + graphs // 2
                assert seen["mode"] == "metered"
                assert seen["protocol"] == version
                assert seen["plain_connections"] == seen["refused"] == 0
                assert seen["pair"]["sealed"] is sealed
                assert seen["rtt_us"] > 0
    assert all(len(each) == TOKENS for each in direct)


def counted_start(
    version: str, model: Path, pairs: list[Relay], log: Path
) -> tuple[list[Counter[str]], list[int]]:
    before = [all_waited_for(each) for each in pairs]
    began = time.monotonic()
    with server(version, model, [each.port for each in pairs], log) as url:
        waited = [waited_for(*each) for each in zip(pairs, before, strict=True)]
        took_s = time.monotonic() - began
        once = [asked_once(each, took_s) for each in waited]
        return once, Cluster(url).complete(SHORT_PROMPT, TOKENS)


def asked_once(waited: Counter[str], took_s: float) -> Counter[str]:
    again = int(took_s / VOUCHED_S)
    if again:
        del waited["GET_DEVICE_MEMORY"]
        waited["HELLO"] -= min(again, waited["HELLO"] - 1)
    return waited


@pytest.mark.parametrize("version", ["7.0.0", "8.0.0"])
def test_a_start_waits_for_few_answers_across_the_link(
    relay: Path, model: Path, tmp_path: Path, version: str
) -> None:
    """Of some 35 a worker: one greeting, three buffers, and sizes of a kind each."""
    with ExitStack() as stack:
        workers = [
            start_worker(stack, engine(version), tmp_path / f"worker{i}.log")
            for i in range(4)
        ]
        with server(version, model, workers, tmp_path / "direct.log") as url:
            direct = Cluster(url).complete(SHORT_PROMPT, TOKENS)
        ends = [
            paired(relay, port, tmp_path / f"w{i}.sock")
            for i, port in enumerate(workers)
        ]
        pairs = [stack.enter_context(each)[0] for each in ends]
        for _ in range(2):
            started, tokens = counted_start(version, model, pairs, tmp_path / "log")
            assert tokens == direct
            for of_worker in started:
                # The last one holds the output too.
                assert of_worker.pop("GET_ALLOC_SIZE", 0) <= 5
                assert of_worker == {"HELLO": 1, "ALLOC_BUFFER": 3}
