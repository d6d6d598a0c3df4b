"""``dllm-relay head`` between a client and a worker that the tests play."""

from __future__ import annotations

import re
import socket
import stat
import struct
import time
from pathlib import Path

import psutil
import pytest

from tests.kit.waiting import wait_until
from tests.native.relaying import (
    BUFFER_GET_BASE,
    DEVICE_COUNT,
    HELLO_REPLY,
    HELLO_REQUEST,
    Relay,
    Stats,
    Worker,
    give_buffer,
    graph,
    greet,
    in_thread,
    receive,
    reply,
    request,
    running,
    set_tensor_header,
    tensor,
)

MAX_RSS_BYTES = 32 << 20
CUSTOM_OP = 95
BIG_BYTES = 1 << 30


def ask_hello(head: Relay) -> bytes:
    with head.connect() as client:
        client.sendall(HELLO_REQUEST)
        return client.recv(1)


def test_says_where_it_listens_and_ends_when_told(relay: Path, tmp_path: Path) -> None:
    started = Relay(relay, 1, tmp_path / "w.sock")
    assert started.ready == {"port": started.port, "pid": started.process.pid}
    mode = started.stats_path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert started.stop() == 0
    assert not started.stats_path.exists()


def test_first_lines(head: Relay) -> None:
    with head.stats() as stats:
        hello = stats.line()
        assert hello["type"] == "hello"
        assert hello["worker"] == "w"
        assert hello["pid"] == head.process.pid
        first = stats.snapshot(connected=False)
        assert first["mode"] == "metered"
        assert first["protocol"] is None
        assert first["lab"] is None


def test_counts_a_connection(head: Relay, worker: Worker) -> None:
    with head.connect() as client, worker.accept() as peer, head.stats() as stats:
        greet(client, peer)
        client.sendall(request(BUFFER_GET_BASE, bytes(8)))
        receive(peer, 17)
        peer.sendall(reply(bytes(8)))
        receive(client, 16)
        seen = stats.until(
            lambda line: (
                "BUFFER_GET_BASE" in line.get("commands", {})
                and line["commands"]["BUFFER_GET_BASE"]["bytes_down"] == 16
            )
        )
        assert seen["protocol"] == "7.0.0"
        assert seen["connected"] is True
        assert seen["guard"] == "checked"
        command = seen["commands"]["BUFFER_GET_BASE"]
        assert command["count"] == 1
        assert command["bytes_up"] == 17
        assert 0 < command["p50_us"] <= command["max_us"]
        assert sum(count for _, count in command["histogram_us"]) == 1


def test_a_second_client_waits_by_name(head: Relay, worker: Worker) -> None:
    with head.stats() as stats, head.connect() as first:
        with worker.accept() as peer:
            greet(first, peer)
            second = head.connect()
            second.sendall(HELLO_REQUEST)
            name = "{}:{}".format(*second.getsockname())
            stats.snapshot(waiting=[name])
            assert f"client {name} waits" in head.log.read_text()
            first.close()
            assert receive(peer, 1) == b""
        with worker.accept() as peer:
            assert receive(peer, len(HELLO_REQUEST)) == HELLO_REQUEST
            stats.snapshot(waiting=[])
        second.close()


@pytest.mark.parametrize("said", [b"", HELLO_REQUEST[:1], HELLO_REQUEST[:-1]])
def test_a_client_without_a_whole_request_gives_way(
    head: Relay, worker: Worker, said: bytes
) -> None:
    with head.connect() as silent, worker.accept() as idle, head.connect() as client:
        silent.sendall(said)
        client.sendall(HELLO_REQUEST)
        assert said.startswith(receive(idle, len(said) + 1))
        idle.close()
        with worker.accept() as peer:
            assert receive(peer, len(HELLO_REQUEST)) == HELLO_REQUEST
            peer.sendall(HELLO_REPLY)
            assert receive(client, len(HELLO_REPLY)) == HELLO_REPLY
        name = "{}:{}".format(*silent.getsockname())
        told = f"client {name} asks nothing while another waits; connection closed"
        wait_until(lambda: told in head.log.read_text())
        (line,) = [text for text in head.log.read_text().splitlines() if told in text]
        assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]{12}Z W dllm-relay: w: ", line)


def test_a_waiting_client_may_give_up(head: Relay, worker: Worker) -> None:
    with head.stats() as stats, head.connect() as first, worker.accept() as peer:
        greet(first, peer)
        second = head.connect()
        stats.until(lambda line: bool(line.get("waiting")))
        second.close()
        stats.snapshot(waiting=[])


def test_a_worker_that_is_not_there_is_told_by_a_reset(
    relay: Path, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with running(relay, port, tmp_path / "w.sock") as head:
        with pytest.raises(ConnectionResetError):
            ask_hello(head)
        assert f"cannot reach the worker at 127.0.0.1:{port}" in head.log.read_text()


def test_a_worker_s_reset_is_passed_on(head: Relay, worker: Worker) -> None:
    with head.connect() as client:
        peer = worker.accept()
        greet(client, peer)
        linger = struct.pack("ii", 1, 0)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        peer.close()
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_back_pressure(head: Relay, worker: Worker) -> None:
    with head.connect() as client, worker.accept() as peer:
        greet(client, peer)
        give_buffer(client, peer, BIG_BYTES)
        client.setblocking(False)
        payload = set_tensor_header(BIG_BYTES) + bytes(1 << 16)
        sent, deadline = 0, time.monotonic() + 2
        while time.monotonic() < deadline:
            try:
                sent += client.send(payload if sent == 0 else bytes(1 << 16))
            except BlockingIOError:
                time.sleep(0.01)
        assert sent < 64 << 20
        assert psutil.Process(head.process.pid).memory_info().rss < MAX_RSS_BYTES
        assert len(receive(peer, 1 << 20)) == 1 << 20


def test_a_refused_request_closes_the_connection_only(
    head: Relay, worker: Worker
) -> None:
    with head.connect() as client, worker.accept() as peer, head.stats() as stats:
        greet(client, peer)
        bad = graph(tensor(), tensor(CUSTOM_OP))
        client.sendall(bad)
        got = receive(peer, len(bad))
        assert len(got) < len(bad)
        peer.close()
        assert client.recv(1) == b""
        seen = stats.snapshot(refused=1)
        assert "custom op" in seen["refused_reason"]
        assert "custom op" in head.log.read_text()
    with head.connect() as client, worker.accept() as peer:
        greet(client, peer)


def test_answers_end_with_the_worker(head: Relay, worker: Worker) -> None:
    ask, count = request(DEVICE_COUNT), reply(struct.pack("<I", 1))
    for _ in range(2):
        with head.connect() as client, worker.accept() as peer:
            greet(client, peer)
            client.sendall(ask)
            assert receive(peer, len(ask)) == ask
            peer.sendall(count)
            assert receive(client, len(count)) == count
            peer.close()
            assert client.recv(1) == b""


def test_a_wrong_command_is_told(head: Relay) -> None:
    with head.stats() as stats:
        stats.send({"lab": {"latency_ms": "soon"}})
        assert "error" in stats.until(lambda line: line["type"] == "error")


def test_a_slow_reader_loses_lines_and_slows_nobody(
    head: Relay, worker: Worker
) -> None:
    slow = [Stats(head.stats_path) for _ in range(8)]
    answer = reply(bytes(8))
    with head.connect() as client, worker.accept() as peer:
        greet(client, peer)
        times = []
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            start = time.monotonic()
            client.sendall(request(BUFFER_GET_BASE, bytes(8)))
            receive(peer, 17)
            peer.sendall(answer)
            receive(client, len(answer))
            times.append(time.monotonic() - start)
        assert sorted(times)[len(times) // 2] < 0.1
        assert psutil.Process(head.process.pid).memory_info().rss < MAX_RSS_BYTES
    for reader in slow:
        assert reader.line()["type"] == "hello"
        reader.socket.close()


@pytest.mark.parametrize("lab", [{}, {"latency_ms": 5}])
def test_memory_stays_small_whatever_passes(
    head: Relay, worker: Worker, lab: dict[str, float]
) -> None:
    """A message of 1 GB."""
    block = bytes(1 << 20)
    header = set_tensor_header(BIG_BYTES)

    def send(client: socket.socket) -> None:
        client.sendall(header)
        for _ in range(BIG_BYTES >> 20):
            client.sendall(block)

    process = psutil.Process(head.process.pid)
    with head.connect() as client, worker.accept() as peer, head.stats() as stats:
        greet(client, peer)
        give_buffer(client, peer, BIG_BYTES)
        stats.send({"lab": lab or None})
        in_thread(lambda: send(client))
        left, most = BIG_BYTES + len(header), 0
        while left > 0:
            left -= len(receive(peer, min(left, 16 << 20)))
            most = max(most, process.memory_info().rss)
        assert most < MAX_RSS_BYTES
