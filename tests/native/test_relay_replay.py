"""A recorded session of a stock client and worker, played again through the relay."""

from __future__ import annotations

import filecmp
from contextlib import ExitStack
from pathlib import Path

import pytest

from backends.demo import MODEL_PATH
from tests.native.recording import Recorder, Recording
from tests.native.relaying import Worker, running
from tests.native.replaying import replay
from tests.native.stock import SHORT_PROMPT, Cluster, engine, server, start_worker

pytestmark = pytest.mark.engine

TOKENS = 12


def record(version: str, work: Path) -> list[Recording]:
    with ExitStack() as stack:
        port = start_worker(stack, engine(version), work / "worker.log")
        recorder = stack.enter_context(Recorder(port))
        with server(version, MODEL_PATH, [recorder.port], work / "server.log") as url:
            assert len(Cluster(url).complete(SHORT_PROMPT, TOKENS)) == TOKENS
    return recorder.recordings


@pytest.mark.parametrize("version", ["7.0.0", "8.0.0"])
def test_every_byte_is_that_of_a_direct_recording(
    relay: Path, tmp_path: Path, version: str
) -> None:
    recordings = record(version, tmp_path)
    assert len(recordings) > 1
    assert max(len(each.stream(up=True)) for each in recordings) > 1 << 20
    with (
        Worker() as worker,
        running(relay, worker.port, tmp_path / "w.sock", "--no-answers") as head,
    ):
        for recording in recordings:
            arrived = replay(head, worker, recording)
            for up in (True, False):
                files = (tmp_path / "recorded", tmp_path / "replayed")
                files[0].write_bytes(recording.stream(up))
                files[1].write_bytes(arrived.stream(up))
                assert filecmp.cmp(*files, shallow=False)
        with head.stats() as stats:
            seen = stats.snapshot(connected=False, connections=len(recordings))
    assert seen["protocol"] == version
    assert seen["plain_connections"] == seen["refused"] == 0
    sizes = [sum(len(each.stream(up)) for each in recordings) for up in (True, False)]
    assert [seen["bytes_up"], seen["bytes_down"]] == sizes
