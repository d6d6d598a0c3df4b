"""``dllm-relay head --worker unix:PATH``: a worker behind a tunnel's socket."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.kit.waiting import PATIENCE_S
from tests.native.relaying import (
    BUFFER_GET_BASE,
    GET_TENSOR,
    TENSOR_BYTES,
    graph,
    greet,
    in_thread,
    receive,
    reply,
    request,
    running,
    tensor,
)

BUFFER_BYTES = 1 << 16
SET_TENSOR, ADD, NAME_AT = 6, 2, 228


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
