"""Each tensor split over two workers, through relays; and a worker that is frozen."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from backends.split.rpc_traffic import TensorStage, tensor_bytes, tensor_trips
from backends.state import ModelInfo
from tests.kit.models import N_VOCAB, write_llama
from tests.kit.processes import with_word
from tests.native.relaying import Relay, in_thread
from tests.native.stock import SHORT_PROMPT, Cluster, cluster, on_both_engines

TICK_S = 1.2
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def running(relay: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    work = tmp_path_factory.mktemp("tensor")
    model = work / "small.gguf"
    write_llama(model, n_layer=4, n_embd=128, n_ff=256)
    with cluster("8.0.0", model, 2, work, relay, "-sm", "tensor") as started:
        yield started


def test_the_workers_are_not_joined_and_answer_all_the_same(running: Cluster) -> None:
    assert len(running.complete(SHORT_PROMPT, 8)) == 8
    for each in running.relays:
        with each.stats() as stats:
            # What was asked last is counted within a tick.
            seen = stats.until(lambda line: "COMM_INIT" in line.get("commands", ()))
        assert seen["connected"]
        assert seen["refused"] == seen["plain_connections"] == 0
        join = seen["commands"]["COMM_INIT"]
        assert join["answered"] == join["count"] > 0
        assert "COMM_ALLREDUCE" not in seen["commands"]


def test_a_frozen_worker_is_shown_with_its_age(running: Cluster) -> None:
    head = running.relays[0]
    worker = stock_worker_of(head.upstream.rpartition(":")[2])
    with head.stats() as stats:
        stats.snapshot(connected=True)
        worker.send_signal(signal.SIGSTOP)
        asking = in_thread(lambda: running.complete(SHORT_PROMPT, 8))
        seen = stats.until(lambda line: bool(line.get("unanswered_ms")))
        assert seen["unanswered_ms"] >= 1000
        worker.send_signal(signal.SIGCONT)
        stats.snapshot(unanswered_ms=None)
    asking.join(60)
    assert not asking.is_alive()


def stock_worker_of(port: str) -> psutil.Process:
    found = with_word(psutil.Process().children(), port, "ggml-rpc-server")
    assert found, "no worker at that port"
    return found[0]


@on_both_engines
def test_trips_and_bytes_are_those_that_plans_are_told(
    relay: Path, tmp_path: Path, version: str
) -> None:
    """A token is what a longer answer has more of; so the prompt does not count."""
    file = tmp_path / "other.gguf"
    write_llama(file, n_layer=5, n_embd=256, n_ff=512)
    model = ModelInfo(
        path=str(file), arch="llama", n_layer=5, n_embd=256, n_vocab=N_VOCAB
    )
    with cluster(version, file, 2, tmp_path, relay, "-sm", "tensor") as started:

        def counted(tokens: int) -> list[tuple[int, int, int]]:
            before = [totals(one) for one in started.relays]
            started.complete(SHORT_PROMPT, tokens)
            after = [totals(one) for one in started.relays]
            return [
                (z[0] - a[0], z[1] - a[1], z[2] - a[2])
                for a, z in zip(before, after, strict=True)
            ]

        counted(2)
        few, many = counted(2), counted(10)
    up, down = tensor_bytes(model, TensorStage(2, 64, 1, 1), version)
    for less, more in zip(few, many, strict=True):
        per_token = [(z - a) / 8 for a, z in zip(less, more, strict=True)]
        assert per_token[0] == tensor_trips(model, 2)
        assert per_token[1] == pytest.approx(up, rel=0.02)
        assert per_token[2] == pytest.approx(down, rel=0.02)


def totals(relay: Relay) -> tuple[int, int, int]:
    """Trips, and bytes up and down, once all of an answer is counted."""
    before, now = None, told(relay)
    while now != before:
        time.sleep(TICK_S)
        before, now = now, told(relay)
    return now


def told(relay: Relay) -> tuple[int, int, int]:
    with relay.stats() as stats:
        seen = stats.snapshot()
    trips = seen["commands"].get("GET_TENSOR", {"count": 0})["count"]
    return trips, seen["bytes_up"], seen["bytes_down"]
