"""``dllm-relay paper`` as a process: what it answers, and when it ends."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.native.relaying import (
    DEVICE_COUNT,
    HELLO_REPLY,
    HELLO_REQUEST,
    receive,
    reply,
    request,
)

GIB = 1 << 30
ALLOC_BUFFER, GET_DEVICE_MEMORY = 0, 11


@contextmanager
def paper(relay: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A running worker on paper and its port."""
    child = subprocess.Popen(
        [relay, "paper", "--device", "CUDA0:24GiB:20GiB", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        told = json.loads(child.stdout.readline())
        assert told["pid"] == child.pid
        yield child, told["port"]
    finally:
        child.kill()
        child.communicate()


@contextmanager
def greeted(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(HELLO_REQUEST)
        assert receive(client, len(HELLO_REPLY)) == HELLO_REPLY
        yield client


def test_it_answers_several_clients_at_once(relay: Path) -> None:
    with (
        paper(relay, "--device", "CPU:1GiB") as (_, port),
        greeted(port) as one,
        greeted(port) as other,
    ):
        for client in (other, one):
            client.sendall(request(DEVICE_COUNT))
            assert receive(client, 12) == reply(struct.pack("<I", 2))
        one.sendall(request(GET_DEVICE_MEMORY, struct.pack("<I", 0)))
        assert receive(one, 24) == reply(struct.pack("<QQ", 20 * GIB, 24 * GIB))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(relay: Path, number: signal.Signals) -> None:
    with paper(relay) as (child, port), greeted(port):
        child.send_signal(number)
        assert child.wait(10) == 0


def test_it_ends_with_its_parents_pipe(relay: Path) -> None:
    with paper(relay) as (child, port), greeted(port):
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(10) == 0
        child.stdin = None


def test_it_lives_without_a_pipe(relay: Path) -> None:
    child = subprocess.Popen(
        [relay, "paper", "--device", "CPU:1GiB"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        with greeted(json.loads(child.stdout.readline())["port"]):
            assert child.poll() is None
    finally:
        child.kill()
        child.communicate()
