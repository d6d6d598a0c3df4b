"""Each tensor split over two workers, through relays; and a worker that is frozen."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.kit.models import write_llama
from tests.kit.processes import with_word
from tests.native.relaying import in_thread
from tests.native.stock import SHORT_PROMPT, Cluster, cluster

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
    asking = in_thread(lambda: running.complete(SHORT_PROMPT, 200))
    with head.stats() as stats:
        before = stats.snapshot(connected=True)["bytes_down"]
        stats.until(lambda line: line.get("bytes_down", 0) > before)
        worker.send_signal(signal.SIGSTOP)
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
