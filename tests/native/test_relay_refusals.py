"""Every class of refused request before a stock worker: it lives.

``DLLM_REFUSALS`` tells how many of each class, for a longer run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.native.refused import (
    F32,
    LONG,
    ROW_BYTES,
    TOO_LONG,
    UNFIT,
    Given,
    numbers,
    of_version,
    set_tensor,
)
from tests.native.relaying import GET_TENSOR, Relay, receive, request, running
from tests.native.stock import engine, on_both_engines, start_worker

pytestmark = pytest.mark.engine

COUNT = int(os.environ.get("DLLM_REFUSALS", "10"))


def is_refused(head: Relay, version: str, made: Callable[[Given], bytes]) -> None:
    with head.connect() as client:
        bad = made(Given(client, version))
        with contextlib.suppress(ConnectionError):
            client.sendall(bad)
            assert client.recv(1) == b""


def child_at(port: int) -> psutil.Process:
    """The worker there, among what other tests of this process may have left."""
    ours = psutil.Process().children()
    alive = (c for c in ours if c.status() != psutil.STATUS_ZOMBIE)
    return next(child for child in alive if str(port) in child.cmdline())


@contextlib.contextmanager
def guarded(relay: Path, work: Path, version: str) -> Iterator[Relay]:
    with ExitStack() as stack:
        port = start_worker(stack, engine(version), work / "worker.log")
        worker = child_at(port)
        yield stack.enter_context(running(relay, port, work / "w.sock"))
        assert worker.status() != psutil.STATUS_ZOMBIE


@pytest.mark.timeout(60 + COUNT)
@pytest.mark.parametrize("version", ["7.0.0", "8.0.0"])
def test_a_stock_worker_lives(relay: Path, tmp_path: Path, version: str) -> None:
    classes = of_version(version)
    with guarded(relay, tmp_path, version) as head:
        for made in classes.values():
            for _ in range(COUNT):
                is_refused(head, version, made)
        with head.connect() as client, head.stats() as stats:
            given = Given(client, version)
            client.sendall(set_tensor(given.row(), 0, bytes(range(ROW_BYTES))))
            client.sendall(request(GET_TENSOR, given.row() + numbers(0, ROW_BYTES)))
            assert receive(client, 8 + ROW_BYTES)[8:] == bytes(range(ROW_BYTES))
            seen = stats.snapshot(refused=COUNT * len(classes))
        assert seen["plain_connections"] == 0


@on_both_engines
def test_without_a_guard_what_does_not_suit_an_op_ends_a_worker(
    tmp_path: Path, version: str
) -> None:
    for name, made in UNFIT.items():
        with ExitStack() as stack:
            port = start_worker(stack, engine(version), tmp_path / "worker.log")
            worker = child_at(port)
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            given = Given(client, version)
            client.sendall(made(given))
            assert worker.wait(20) == -signal.SIGABRT, name


@on_both_engines
def test_no_worker_s_stack_overflows(relay: Path, tmp_path: Path, version: str) -> None:
    """The longest chain that passes is computed."""
    with guarded(relay, tmp_path, version) as head:
        is_refused(head, version, lambda g: g.chain(TOO_LONG))
        with head.connect() as client:
            given = Given(client, version)
            one = struct.pack("<16f", *[1.0] * 16)
            client.sendall(set_tensor(given.row(kind=F32), 0, one))
            client.sendall(given.chain(LONG))
            row = given.row(kind=F32)
            client.sendall(request(GET_TENSOR, row + numbers(0, ROW_BYTES)))
            summed = struct.unpack("<8x16f", receive(client, 8 + ROW_BYTES))
            assert summed == (2.0,) * 16
