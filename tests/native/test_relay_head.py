"""``dllm-relay head`` between a client and a worker that the tests play."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import stat
import struct
import subprocess
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.kit.waiting import PATIENCE_S, wait_until
from tests.native.relaying import (
    ALLOC_BUFFER,
    BASE,
    BUFFER,
    BUFFER_GET_BASE,
    DEVICE_COUNT,
    GET_DEVICE_MEMORY,
    GET_TENSOR,
    HELLO_REPLY,
    HELLO_REQUEST,
    Relay,
    Stats,
    Worker,
    exchange,
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
BIG_BYTES = 1 << 28


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
            told = f"client {name} waits"
            wait_until(lambda: told in head.log.read_text(), "the log")
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


def test_worker_that_is_not_there_is_told_by_reset(relay: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with running(relay, port, tmp_path / "w.sock") as head:
        with pytest.raises(ConnectionResetError):
            ask_hello(head)
        told = f"cannot reach the worker at 127.0.0.1:{port}"
        wait_until(lambda: told in head.log.read_text(), "the log")


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


def test_slow_reader_loses_lines_and_slows_nobody(head: Relay, worker: Worker) -> None:
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
            time.sleep(0.005)
        # On a busy machine most take as long as its turns do.
        assert sorted(times)[len(times) // 10] < 0.1
        assert psutil.Process(head.process.pid).memory_info().rss < MAX_RSS_BYTES
    for reader in slow:
        assert reader.line()["type"] == "hello"
        reader.socket.close()


@pytest.mark.parametrize("lab", [{}, {"latency_ms": 5}])
def test_memory_stays_small_whatever_passes(
    head: Relay, worker: Worker, lab: dict[str, float]
) -> None:
    size_bytes = 3 * MAX_RSS_BYTES
    block = bytes(1 << 20)
    header = set_tensor_header(size_bytes)

    def send(client: socket.socket) -> None:
        client.sendall(header)
        for _ in range(size_bytes >> 20):
            client.sendall(block)

    process = psutil.Process(head.process.pid)
    with head.connect() as client, worker.accept() as peer, head.stats() as stats:
        greet(client, peer)
        give_buffer(client, peer, size_bytes)
        stats.send({"lab": lab or None})
        in_thread(lambda: send(client))
        left, most = size_bytes + len(header), 0
        while left > 0:
            part = peer.recv(1 << 20)
            assert part, "it was cut off"
            left -= len(part)
            most = max(most, process.memory_info().rss)
        assert most < MAX_RSS_BYTES


# --- ``dllm-relay head`` where one end is silent or its log takes nothing ---

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


# --- ``dllm-relay head --worker unix:PATH``: a worker behind a tunnel's socket ---

BUFFER_BYTES = 1 << 16
READ_S = 0.01
"""Of each of them; 16 take longer than a reply, if that has to wait for its turn."""
ADD, NAME_AT = 2, 228


def test_a_worker_behind_a_unix_socket(relay: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(tmp_path / "worker"))
        listener.listen()
        listener.settimeout(PATIENCE_S)
        upstream = f"unix:{tmp_path / 'worker'}"
        head = stack.enter_context(running(relay, upstream, tmp_path / "w.sock"))
        client = stack.enter_context(head.connect())
        peer = stack.enter_context(listener.accept()[0])
        peer.settimeout(PATIENCE_S)
        greet(client, peer)
        with head.stats() as stats:
            seen = stats.snapshot(connected=True, protocol="7.0.0")
        assert seen["mode"] == "metered"
        assert seen["rtt_us"] == 0, "a Unix socket knows no round trip"
        peer.close()
        with contextlib.suppress(ConnectionError):
            assert receive(client, 1) == b""


def test_the_rate_behind_a_tunnel_is_that_of_bulks(relay: Path, tmp_path: Path) -> None:
    bulk, fed = set_tensor(4_000_000), set_tensor(1_000_000)
    summed = graph(in_buffer(1), in_buffer(2, ADD, 1))
    fetch = request(GET_TENSOR, in_buffer(2, ADD) + struct.pack("<QQ", 0, 16))
    ask = request(ALLOC_BUFFER, struct.pack("<IQ", 0, 16))
    answer = reply(struct.pack("<QQ", BUFFER + 1, 16))

    def read_slowly(peer: socket.socket, count: int) -> None:
        while count > 0:
            count -= len(receive(peer, min(count, BUFFER_BYTES)))
            time.sleep(READ_S)

    def serve(peer: socket.socket) -> None:
        for sent in (bulk + ask, fed + summed + fetch):
            read_slowly(peer, len(sent))
            peer.sendall(answer)

    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(tmp_path / "worker"))
        listener.listen()
        upstream = f"unix:{tmp_path / 'worker'}"
        head = stack.enter_context(running(relay, upstream, tmp_path / "w.sock"))
        client = stack.enter_context(head.connect())
        peer = stack.enter_context(listener.accept()[0])
        greet(client, peer)
        give_buffer(client, peer, 4_000_000)
        stats = stack.enter_context(head.stats())
        in_thread(partial(serve, peer))
        client.sendall(bulk + ask)
        assert receive(client, len(answer)) == answer
        seen = stats.until(lambda line: line.get("rate_bytes_per_s", 0) > 0)
        assert seen["rate_bytes_per_s"] <= BUFFER_BYTES / READ_S
        client.sendall(fed + summed + fetch)
        receive(client, 24)
        client.shutdown(socket.SHUT_WR)
        (one,) = stats.until(lambda line: line["type"] == "passes")["passes"]
    assert one["up_ns"] > one["compute_ns"]


def set_tensor(count: int) -> bytes:
    header = bytearray(set_tensor_header(count))
    struct.pack_into("11s", header, 9 + NAME_AT, b"RPC0#embd#0")
    return bytes(header) + bytes(count)


def in_buffer(number: int, op: int = 0, source: int = 0) -> bytes:
    """A tensor of four floats, of a source added to itself."""
    made = bytearray(tensor(op))
    struct.pack_into("<Q4xQ", made, 0, number, BUFFER)
    struct.pack_into("<QQ", made, 124, source, source)
    struct.pack_into("<Q", made, 220, BASE)
    return bytes(made)


# --- The socket of a relay's figures, when its directory vanishes and comes back ---


def meet(head: Relay, worker: Worker, stats: Stats, bytes_up: int) -> None:
    with head.connect() as client, worker.accept() as peer:
        greet(client, peer)
        stats.snapshot(bytes_up=bytes_up)


def answers(head: Relay) -> bool:
    try:
        head.stats().close()
    except OSError:
        return False
    return True


def test_figures_can_be_had_again_where_the_directory_vanished(
    relay: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runtime"
    folder.mkdir()
    path, hello = folder / "w.sock", len(HELLO_REQUEST)
    with (
        Worker() as worker,
        running(relay, worker.port, path) as head,
        head.stats() as before,
    ):
        shutil.rmtree(folder)
        meet(head, worker, before, hello)
        folder.mkdir(mode=0o700)
        wait_until(lambda: answers(head), "its socket")
        with head.stats() as after:
            after.snapshot(bytes_up=hello)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        # What another has put there is not ours to replace.
        path.unlink()
        path.write_text("another's")
        meet(head, worker, before, 2 * hello)
        meet(head, worker, before, 3 * hello)
        assert path.read_text() == "another's"
