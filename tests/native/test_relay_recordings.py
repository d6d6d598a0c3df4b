"""What real builds of many protocol versions said, played again through the relay."""

from __future__ import annotations

import itertools
import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.native.pairing import AS_ASKED
from tests.native.recording import FOLDER, REQUEST_HEADER_BYTES, Session, replay, whole
from tests.native.relaying import Worker, running

# In the order of llama.cpp's `enum rpc_cmd`, RPC 8.0.0.
COMMANDS = (
    "ALLOC_BUFFER",
    "GET_ALIGNMENT",
    "GET_MAX_SIZE",
    "BUFFER_GET_BASE",
    "FREE_BUFFER",
    "BUFFER_CLEAR",
    "SET_TENSOR",
    "SET_TENSOR_HASH",
    "GET_TENSOR",
    "COPY_TENSOR",
    "GRAPH_COMPUTE",
    "GET_DEVICE_MEMORY",
    "INIT_TENSOR",
    "GET_ALLOC_SIZE",
    "HELLO",
    "DEVICE_COUNT",
    "GRAPH_RECOMPUTE",
    "MEMSET_TENSOR",
    "SET_TENSOR_2D",
    "GET_TENSOR_2D",
    "COMM_INIT",
    "COMM_ALLREDUCE",
    "COMM_FREE",
)
TIMES = 2  # each session: whole, then in pieces
LONGEST_PIECE = 1500

FILES = sorted(FOLDER.glob("*.tar.xz"))
# A guard answers COMM_INIT itself.
PASSED = [file for file in FILES if not file.name.endswith("-comm.tar.xz")]


def in_pieces(data: bytes) -> list[bytes]:
    cuts = [0]
    while cuts[-1] < len(data):
        cuts.append(cuts[-1] + random.randint(1, LONGEST_PIECE))
    return [data[at:end] for at, end in itertools.pairwise(cuts)]


def tally(session: Session) -> dict[str, tuple[int, int]]:
    """Requests and their bytes by command, as the framing alone tells them."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for recording in session.recordings:
        stream = recording.stream(up=True)
        at = 0
        while at < len(stream):
            command, payload = struct.unpack_from("<BQ", stream, at)
            at += REQUEST_HEADER_BYTES + payload
            counts[COMMANDS[command]] += 1
            sizes[COMMANDS[command]] += REQUEST_HEADER_BYTES + payload
        assert at == len(stream)
    return {name: (counts[name], sizes[name]) for name in counts}


def check_understood(session: Session, seen: dict[str, Any]) -> None:
    """Every request was counted as what it is, every byte to its command."""
    assert seen["plain_reason"] is None
    assert seen["protocol"] == session.protocol()
    counted = {
        name: (each["count"], each["bytes_up"])
        for name, each in seen["commands"].items()
    }
    twice = {
        name: (TIMES * n, TIMES * size) for name, (n, size) in tally(session).items()
    }
    assert counted == twice
    commands = seen["commands"].values()
    assert not any(each["errors"] for each in commands)
    assert sum(each["bytes_down"] for each in commands) == seen["bytes_down"]


def check_passed_plain(session: Session, seen: dict[str, Any]) -> None:
    assert seen["protocol"] is None
    assert seen["plain_reason"] == "no HELLO first: RPC from before 1.0, or none"
    assert seen["plain_connections"] == TIMES * len(session.recordings)


def test_there_are_recordings_of_many_versions() -> None:
    versions = {Session.load(file).protocol() for file in FILES}
    assert {None, "2.0.0", "3.0.0", "3.6.1", "4.0.0", "4.0.1"} < versions
    assert {"5.1.0", "6.0.0", "7.0.0", "8.0.0"} < versions


@pytest.mark.parametrize("file", PASSED, ids=lambda file: file.name.partition(".")[0])
def test_a_real_session_passes_byte_for_byte_and_is_counted_right(
    relay: Path, tmp_path: Path, file: Path
) -> None:
    session = Session.load(file)
    with (
        Worker() as worker,
        running(relay, worker.port, tmp_path / "w.sock", *AS_ASKED) as head,
        head.stats() as stats,
    ):
        for recording in session.recordings:
            for cut in (whole, in_pieces):
                arrived = replay(head, worker, recording, cut)
                assert arrived.stream(up=True) == recording.stream(up=True)
                assert arrived.stream(up=False) == recording.stream(up=False)
        connections = TIMES * len(session.recordings)
        seen = stats.snapshot(connected=False, connections=connections)
    assert seen["refused"] == 0
    (check_understood if session.protocol() else check_passed_plain)(session, seen)
