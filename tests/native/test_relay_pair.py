"""A pair of relays as processes: what they refuse, keys, and where they meet."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kit.waiting import PATIENCE_S, wait_until
from tests.native.pairing import FarEnd, key_file
from tests.native.relaying import (
    WORKER,
    Stats,
    Worker,
    run,
    running,
)


def test_a_head_that_sends_all_takes_little_memory(relay: Path, tmp_path: Path) -> None:
    """All sessions there may be, each filled to the last byte of its credit."""
    link = struct.Struct("<8sHHIQIBBH16sQ")
    hello = link.pack(b"dllmlink", 3, 0, link.size, 0, 4 << 20, 1, 0, 0, bytes(16), 1)

    def frame(kind: int, session: int, payload: bytes = b"") -> bytes:
        size = struct.pack("<I", len(payload))[:3]
        return bytes([kind]) + size + struct.pack("<I", session) + payload

    def filled(session: int) -> bytes:
        return frame(0x10, session) + frame(0x11, session, bytes(1 << 16)) * 64

    with (
        Worker() as worker,
        FarEnd(relay, worker.port, tmp_path / "far.log") as far,
        socket.socket(socket.AF_UNIX) as head,
    ):
        head.settimeout(PATIENCE_S)
        head.connect(far.endpoint.removeprefix("unix:"))
        head.sendall(hello + frame(0x04, 0))
        with contextlib.suppress(ConnectionError):
            for session in range(1, 65):
                head.sendall(filled(session))
        wait_until(lambda: "too many sessions" in far.log.read_text())
        peak_kb = int(re.findall(r"VmHWM:\s+(\d+) kB", status_of(far.process.pid))[0])
        assert peak_kb < 60 << 10


def status_of(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()


def dialled(read: Stats, place: str) -> dict[str, Any]:
    seen = read.until(lambda line: (line.get("pair") or {}).get("place") == place)
    found: dict[str, Any] = seen["pair"]
    return found


def test_the_best_place_that_answers_is_dialled(relay: Path, tmp_path: Path) -> None:
    """And sought anew whenever a link has ended."""
    best, other = f"unix:{tmp_path}/best", f"unix:{tmp_path}/other"
    with ExitStack() as stack:
        worker = stack.enter_context(Worker())

        def far(place: str) -> FarEnd:
            log = tmp_path / f"{Path(place).name}.log"
            return FarEnd(relay, worker.port, log, "--listen", place)

        second = stack.enter_context(far(other))
        first = stack.enter_context(far(best))
        places = (best, tmp_path / "w.sock", "--pair-dial", other)
        near = stack.enter_context(running(relay, *places, way="--pair-dial"))
        read = stack.enter_context(near.stats())
        assert dialled(read, best)["detour"] is None
        first.process.terminate()
        assert dialled(read, other)["detour"].startswith(f"cannot reach {best}: ")
        stack.enter_context(far(best))
        second.process.terminate()
        assert dialled(read, best)["detour"] is None


@pytest.mark.usefixtures("with_tls")
def test_a_worker_listens_wherever_it_can(relay: Path, tmp_path: Path) -> None:
    # An address of documentation: nobody's.
    nowhere = ("--listen", "127.0.0.1:0", "--listen", "192.0.2.1:1")
    key = key_file(tmp_path / "key")
    with (
        Worker() as worker,
        FarEnd(relay, worker.port, tmp_path / "far.log", *nowhere, *key) as far,
        running(
            relay, far.endpoint, tmp_path / "w.sock", *key, way="--pair-dial"
        ) as near,
        near.stats() as read,
    ):
        dialled(read, far.endpoint)
    assert "cannot listen" in far.log.read_text()
    done = run(relay, *WORKER, "--listen", "127.0.0.1:0", "--listen", "192.0.2.1:1")
    assert done.returncode == 1
    assert "can be reached by others" in done.stderr
