"""``dllm-relay head`` where one end is silent or its log takes nothing."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.kit.waiting import PATIENCE_S
from tests.native.relaying import (
    GET_DEVICE_MEMORY,
    HELLO_REQUEST,
    Relay,
    Worker,
    exchange,
    greet,
    receive,
    reply,
    request,
    running,
)

ASK_MEMORY = request(GET_DEVICE_MEMORY, bytes(4))
MEMORY = reply(bytes(16))


def test_many_commands_at_once_are_all_obeyed(head: Relay) -> None:
    with head.stats() as stats:
        lab = b'{"lab": {"latency_ms": %d, "jitter_ms": 0, "rate_mb_s": 0, "seed": 1}}'
        lines = [lab % (i + 1) + b" " * 100 + b"\n" for i in range(5)]
        stats.socket.sendall(b"".join(lines))
        stats.until(lambda line: (line.get("lab") or {}).get("latency_ms") == 5)
        stats.send({"lab": None})
        stats.snapshot(lab=None)


def test_a_command_without_end_drops_its_reader(head: Relay) -> None:
    with head.stats() as stats:
        stats.socket.sendall(b"x" * 2000)
        with pytest.raises((AssertionError, ConnectionResetError)):
            stats.until(lambda _: False)


def test_a_log_that_takes_nothing_holds_up_no_token(
    relay: Path, worker: Worker, tmp_path: Path
) -> None:
    argv = [str(relay), "head", "--listen", "127.0.0.1:0", "--name", "w"]
    argv += ["--worker", f"127.0.0.1:{worker.port}"]
    argv += ["--stats", str(tmp_path / "w.sock")]
    reader, writer = full_pipe()
    started = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=writer, text=True)
    try:
        assert started.stdout
        port = json.loads(started.stdout.readline())["port"]
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as client:
                peer = worker.accept()
                greet(client, peer)
                exchange(client, peer, ASK_MEMORY, MEMORY)
                client.sendall(request(99))
                assert receive(peer, 1) == b""
                peer.close()
                assert receive(client, 1) == b""
    finally:
        started.kill()
        started.communicate()
        os.close(reader)
        os.close(writer)


def full_pipe() -> tuple[int, int]:
    """A pipe in which every further byte blocks."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(1 << 12))
    os.set_blocking(writer, True)
    return reader, writer


def test_an_ipv6_address_at_either_end(relay: Path, tmp_path: Path) -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    listener.settimeout(PATIENCE_S)
    upstream = f"[::1]:{listener.getsockname()[1]}"
    with (
        listener,
        running(relay, upstream, tmp_path / "w.sock", "--listen", "[::1]:0") as head,
        socket.create_connection(("::1", head.port), PATIENCE_S) as client,
    ):
        peer = listener.accept()[0]
        greet(client, peer)
        exchange(client, peer, ASK_MEMORY, MEMORY)
        peer.close()


def test_a_client_without_hello_is_nobody_s_guard(head: Relay, worker: Worker) -> None:
    """Passed on unread, and the snapshot claims no guard over it."""
    with head.connect() as client, worker.accept() as peer, head.stats() as stats:
        client.sendall(request(99) * 2)
        assert receive(peer, 18) == request(99) * 2
        assert stats.snapshot(mode="plain")["guard"] == "off"
    with head.connect() as client, worker.accept() as peer, head.stats() as stats:
        client.sendall(HELLO_REQUEST + ASK_MEMORY)
        assert receive(peer, len(HELLO_REQUEST) + 1) == HELLO_REQUEST
        peer.close()
        assert receive(client, 1) == b""
        assert "before the HELLO reply" in stats.snapshot(refused=1)["refused_reason"]
