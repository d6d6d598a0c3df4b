"""``dllm-relay head`` between stock llama-server and rpc-servers, both protocols."""

from __future__ import annotations

import itertools
import socket
import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.kit.models import write_delta_net, write_llama
from tests.native.pairing import all_waited_for, key_file, paired, waited_for
from tests.native.relaying import (
    HELLO_REPLY,
    HELLO_REQUEST,
    Relay,
    Stats,
    receive,
    running,
)
from tests.native.stock import (
    SHORT_PROMPT,
    Cluster,
    cluster,
    engine,
    on_both_engines,
    server,
    start_worker,
)

pytestmark = pytest.mark.engine

ATTEMPTS = 6
N_EMBD, N_VOCAB = 128, 512
KV_STEP = 256
LONG_PROMPT = [1, *(5 + i % 200 for i in range(1499))]
# Fixed bytes of protocol 7.0 per token and stage; see the protocol page, §3.
SETS_BYTES, GET_BYTES, OUT_IDS_BYTES = 1570 + 20, 321, 318
RECOMPUTE_BYTES = {"7.0.0": 13, "8.0.0": 21}
# The 8.0.0 engine feeds its first stage three tensors more: inp_mixed_embd,
# inp_mixed_slots and the embedding mixed from them.
FIRST_STAGE_BYTES = {"7.0.0": 0, "8.0.0": 2 * (314 + 4 * N_EMBD) + 322}
PARTS = ("head_ns", "up_ns", "compute_ns", "down_ns", "wait_ns")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "small.gguf"
    write_llama(file, n_layer=12, n_embd=N_EMBD, n_ff=256)
    return file


def passes_of(stats: Stats, wanted: int) -> list[dict[str, Any]]:
    passes: list[dict[str, Any]] = []
    while sum(each["generated"] for each in passes) < wanted:
        passes += stats.until(lambda line: line["type"] == "passes")["passes"]
    return passes


WORKERS = {"7.0.0": 3, "8.0.0": 2}


@pytest.fixture(scope="module")
def direct(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[list[int]]]:
    """The answers of an engine without relays, asked for once."""

    @cache
    def answered(version: str) -> list[list[int]]:
        folder = tmp_path_factory.mktemp("direct")
        with cluster(version, model, WORKERS[version], folder, None) as stock:
            found = answers(stock.url)
        assert [len(each) for each in found] == [TOKENS, TOKENS]
        return found

    return answered


@pytest.mark.parametrize("version", WORKERS)
def test_the_same_tokens_with_and_without(
    relay: Path,
    model: Path,
    direct: Callable[[str], list[list[int]]],
    tmp_path: Path,
    version: str,
) -> None:
    """And the cost of one: a trip per worker, bytes by formula, parts that add up."""
    workers = WORKERS[version]
    with cluster(version, model, workers, tmp_path, relay) as running_cluster:
        # First: the passes of an answer may be told when the next is asked for.
        check_costs(running_cluster, version)
        assert answers(running_cluster.url) == direct(version)
        for each in running_cluster.relays:
            with each.stats() as stats:
                seen = stats.snapshot(connected=True)
            assert seen["mode"] == "metered"
            assert seen["protocol"] == version
            assert seen["plain_connections"] == seen["refused"] == 0


@on_both_engines
def test_a_model_with_states_of_sequences_is_not_refused(
    relay: Path, tmp_path: Path, version: str
) -> None:
    file = tmp_path / "states.gguf"
    write_delta_net(file)
    with cluster(version, file, 2, tmp_path, relay) as running_cluster:
        assert len(running_cluster.complete(LONG_PROMPT[:200], 8)) == 8
        for each in running_cluster.relays:
            with each.stats() as stats:
                seen = stats.snapshot(connected=True)
            assert (seen["guard"], seen["refused"]) == ("checked", 0)


def check_costs(target: Cluster, version: str) -> None:
    readers = [each.stats() for each in target.relays]
    target.complete(SHORT_PROMPT, 64)
    passes = [passes_of(reader, 60) for reader in readers]
    snapshots = []
    for each in target.relays:
        with each.stats() as stats:
            snapshots.append(stats.snapshot(connected=True))
    up = SETS_BYTES + RECOMPUTE_BYTES[version] + GET_BYTES + 4 * N_EMBD + 2 * KV_STEP
    formula = [
        (up + FIRST_STAGE_BYTES[version], 8 + 4 * N_EMBD),
        *((up, 8 + 4 * N_EMBD) for _ in readers[2:]),
        (up + OUT_IDS_BYTES, 8 + 4 * N_VOCAB),
    ]
    for wanted, seen, snapshot in zip(formula, passes, snapshots, strict=True):
        generated = [each for each in seen if each["generated"]]
        assert {each["tokens"] for each in generated} == {1}
        assert {each["round_trips"] for each in generated} == {1}
        # The first one carries its graph.
        steady = {(each["bytes_up"], each["bytes_down"]) for each in generated[1:]}
        assert steady == {wanted}
        assert snapshot["generated"]["round_trips_per_token"] == 1
        for before, after in itertools.pairwise(seen):
            wall = after["last_reply_ns"] - before["last_reply_ns"]
            assert sum(after[part] for part in PARTS) == wall
    for reader in readers:
        reader.socket.close()


def set_lab(target: Cluster, lab: dict[str, float] | None) -> None:
    """The same lab on every link, in force when this returns."""
    for each in target.relays:
        with each.stats() as stats:
            stats.send({"lab": lab})
            stats.until(
                lambda line: (
                    line["type"] == "snapshot" and bool(line["lab"]) == bool(lab)
                )
            )


def medians_ms(target: Cluster) -> tuple[float, list[float]]:
    """Of a token: its wall time, and the link's part at each worker."""
    readers = [each.stats() for each in target.relays]
    target.complete(SHORT_PROMPT, 40)
    walls, links = [], []
    for reader in readers:
        passes = [each for each in passes_of(reader, 38) if each["generated"]][1:]
        walls += [sum(each[part] for part in PARTS) / 1e6 for each in passes]
        link = [(each["up_ns"] + each["down_ns"]) / 1e6 for each in passes]
        links.append(statistics.median(link))
        reader.socket.close()
    return statistics.median(walls), links


def test_the_lab_adds_what_it_says(relay: Path, model: Path, tmp_path: Path) -> None:
    """10 ms each way on two links: 40 ms a token."""
    added: list[float] = []
    longest_ms: list[float] = []
    off_ms = 99.0
    with cluster("7.0.0", model, 2, tmp_path, relay) as running_cluster:
        medians_ms(running_cluster)
        while len(added) < ATTEMPTS and off_ms > 2:
            without, _ = medians_ms(running_cluster)
            set_lab(running_cluster, {"latency_ms": 10})
            with_lab, links = medians_ms(running_cluster)
            set_lab(running_cluster, None)
            assert min(links) > 19.5
            longest_ms.append(max(links))
            added.append(with_lab - without)
            off_ms = min(abs(each - 40) for each in added)
    # A busy machine adds to each time, most to a sleeping engine's; delaying each of
    # the seven messages of a token would make it 280 ms.
    assert min(longest_ms) < 40
    assert any(38 <= each < 140 for each in added)


def test_a_worker_that_another_client_has_is_named(relay: Path, tmp_path: Path) -> None:
    """A stock worker lets a second client hang; the relay says so, until it answers."""
    with ExitStack() as stack:
        port = start_worker(stack, engine("7.0.0"), tmp_path / "worker.log")
        other = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        head = stack.enter_context(running(relay, port, tmp_path / "w.sock"))
        stats = stack.enter_context(head.stats())
        client = stack.enter_context(head.connect())
        client.sendall(HELLO_REQUEST)
        seen = stats.until(lambda line: bool(line.get("plain_reason")))
        assert "another client may hold it" in seen["plain_reason"]
        other.close()
        assert receive(client, len(HELLO_REPLY)) == HELLO_REPLY
        stats.snapshot(plain_reason=None)


# --- A pair of relays between stock llama-server and rpc-servers, both protocols ---

TOKENS = 40
VOUCHED_S = 10.0
"""So long what a start was told first is told it again: ``Answers::kStartMax``."""


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
@on_both_engines
def test_the_same_tokens_through_pairs(
    relay: Path,
    model: Path,
    direct: Callable[[str], list[list[int]]],
    tmp_path: Path,
    version: str,
) -> None:
    """One worker through a plain pair, one through TLS, against both direct."""
    with ExitStack() as stack:
        workers = [
            start_worker(stack, engine(version), tmp_path / f"worker{i}.log")
            for i in range(2)
        ]
        keys = ((), key_file(tmp_path / "key"))
        pairs = [
            stack.enter_context(paired(relay, port, tmp_path / f"w{i}.sock", *key))[0]
            for i, (port, key) in enumerate(zip(workers, keys, strict=True))
        ]
        ports = [each.port for each in pairs]
        with server(version, model, ports, tmp_path / "paired.log") as url:
            assert answers(url) == direct(version)
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


@on_both_engines
def test_a_start_waits_for_few_answers_across_the_link(
    relay: Path,
    model: Path,
    direct: Callable[[str], list[list[int]]],
    tmp_path: Path,
    version: str,
) -> None:
    """Of some 35 a worker: one greeting, three buffers, and sizes of a kind each."""
    with ExitStack() as stack:
        workers = [
            start_worker(stack, engine(version), tmp_path / f"worker{i}.log")
            for i in range(2)
        ]
        ends = [
            paired(relay, port, tmp_path / f"w{i}.sock")
            for i, port in enumerate(workers)
        ]
        pairs = [stack.enter_context(each)[0] for each in ends]
        for _ in range(2):
            started, tokens = counted_start(version, model, pairs, tmp_path / "log")
            assert tokens == direct(version)[0]
            for of_worker in started:
                # The last one holds the output too.
                assert of_worker.pop("GET_ALLOC_SIZE", 0) <= 5
                assert of_worker == {"HELLO": 1, "ALLOC_BUFFER": 3}
