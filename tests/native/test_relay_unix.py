"""``dllm-relay head --worker unix:PATH``: a worker behind a tunnel's socket."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.kit.models import write_llama
from tests.kit.waiting import PATIENCE_S
from tests.native.relaying import (
    BUFFER_GET_BASE,
    GET_TENSOR,
    TENSOR_BYTES,
    Relay,
    graph,
    greet,
    in_thread,
    receive,
    reply,
    request,
    running,
    tensor,
)
from tests.native.stock import SHORT_PROMPT, Cluster, engine, server, start_worker

BUFFER_BYTES = 1 << 16
SET_TENSOR, ADD, NAME_AT = 6, 2, 228


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(BUFFER_BYTES):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def lead(path: Path, port: int) -> socket.socket:
    """A Unix socket that leads to a port of ours, as a tunnel's near end does."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", port))
                far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                in_thread(partial(pump, near, far))
                in_thread(partial(pump, far, near))

    in_thread(serve)
    return listener


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
            seen = stats.snapshot(connected=True)
        assert (seen["mode"], seen["protocol"]) == ("metered", "7.0.0")
        assert seen["rtt_us"] == 0, "a Unix socket knows no round trip"
        peer.close()
        with contextlib.suppress(ConnectionError):
            assert receive(client, 1) == b""


def test_the_rate_behind_a_tunnel_is_that_of_bulks(relay: Path, tmp_path: Path) -> None:
    bulk = set_tensor(4_000_000)
    ask, answer = request(BUFFER_GET_BASE, bytes(8)), reply(bytes(8))
    fed, computed = set_tensor(1_000_000), tensor(op=ADD)
    fetch = request(GET_TENSOR, computed + struct.pack("<QQ", 0, 16))

    def read_slowly(peer: socket.socket, count: int) -> None:
        while count > 0:
            count -= len(receive(peer, min(count, BUFFER_BYTES)))
            time.sleep(0.002)

    def serve(peer: socket.socket) -> None:
        read_slowly(peer, len(bulk + ask))
        peer.sendall(answer)
        read_slowly(peer, len(fed + graph(computed) + fetch))
        peer.sendall(reply(bytes(16)))

    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(tmp_path / "worker"))
        listener.listen()
        upstream = f"unix:{tmp_path / 'worker'}"
        options = (tmp_path / "w.sock", "--no-guard")
        head = stack.enter_context(running(relay, upstream, *options))
        client = stack.enter_context(head.connect())
        peer = stack.enter_context(listener.accept()[0])
        greet(client, peer)
        stats = stack.enter_context(head.stats())
        in_thread(partial(serve, peer))
        client.sendall(bulk + ask)
        assert receive(client, len(answer)) == answer
        seen = stats.until(lambda line: line.get("rate_bytes_per_s", 0) > 0)
        assert seen["rate_bytes_per_s"] <= BUFFER_BYTES / 0.002
        client.sendall(fed + graph(computed) + fetch)
        receive(client, 24)
        client.shutdown(socket.SHUT_WR)
        (one,) = stats.until(lambda line: line["type"] == "passes")["passes"]
    assert one["up_ns"] > one["compute_ns"]


def set_tensor(count: int) -> bytes:
    named = tensor()[:NAME_AT] + b"RPC0#embd#0"
    return request(SET_TENSOR, named.ljust(TENSOR_BYTES, b"\0") + bytes(9 + count))


def test_no_socket_there_is_said_at_once(relay: Path, tmp_path: Path) -> None:
    with running(relay, f"unix:{tmp_path / 'no'}", tmp_path / "w.sock") as head:
        before = time.monotonic()
        with contextlib.suppress(ConnectionError), head.connect() as client:
            client.sendall(request(0))
            assert receive(client, 1) == b""
        assert time.monotonic() - before < 5
        assert f"cannot reach the worker at unix:{tmp_path / 'no'}" in log_of(head)


def log_of(head: Relay) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not (text := head.log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return text


@pytest.mark.engine
@pytest.mark.parametrize("version", ["7.0.0", "8.0.0"])
def test_the_same_tokens_through_a_unix_socket(
    relay: Path, tmp_path: Path, version: str
) -> None:
    model = tmp_path / "small.gguf"
    write_llama(model, n_layer=8, n_embd=128, n_ff=256)
    with ExitStack() as stack:
        worker = start_worker(stack, engine(version), tmp_path / "worker.log")
        with server(version, model, [worker], tmp_path / "direct.log") as url:
            direct = complete(url)
        stack.enter_context(lead(tmp_path / "tunnel", worker))
        upstream = f"unix:{tmp_path / 'tunnel'}"
        head = stack.enter_context(running(relay, upstream, tmp_path / "w.sock"))
        with server(version, model, [head.port], tmp_path / "relayed.log") as url:
            relayed = complete(url)
            with head.stats() as stats:
                seen = stats.snapshot(connected=True)
    assert relayed == direct
    assert len(direct) == 32
    assert (seen["mode"], seen["protocol"]) == ("metered", version)


def complete(url: str) -> list[int]:
    return Cluster(url).complete(SHORT_PROMPT, 32)
