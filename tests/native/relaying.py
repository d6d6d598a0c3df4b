"""Running ``dllm-relay head``, reading its stats, and standing in for either end."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from tests.kit.waiting import PATIENCE_S

HELLO, DEVICE_COUNT, GET_TENSOR, BUFFER_GET_BASE, GRAPH_COMPUTE = 14, 15, 8, 3, 10
ALLOC_BUFFER, SET_TENSOR, GET_DEVICE_MEMORY = 0, 6, 11
HEAD = ("head", "--listen", "127.0.0.1:0", "--name", "w")
WORKER = ("worker", "--worker", "127.0.0.1:1", "--name", "w")
# The buffer a worker of the tests gives, and where it lies.
BUFFER, BASE = 1, 0x7F0000000000
TENSOR_BYTES = 296


def request(command: int, payload: bytes = b"") -> bytes:
    return struct.pack("<BQ", command, len(payload)) + payload


def reply(payload: bytes) -> bytes:
    return struct.pack("<Q", len(payload)) + payload


def tensor(op: int = 0) -> bytes:
    made = bytearray(TENSOR_BYTES)
    struct.pack_into("<4I4I", made, 20, 4, 1, 1, 1, 4, 16, 16, 16)
    struct.pack_into("<I", made, 52, op)
    return bytes(made)


def set_tensor_header(size: int) -> bytes:
    made = bytearray(TENSOR_BYTES)
    struct.pack_into("<IQ", made, 8, 24, BUFFER)
    struct.pack_into("<4I4I", made, 20, size, 1, 1, 1, 1, size, size, size)
    struct.pack_into("<Q", made, 220, BASE)
    head = bytes(made) + bytes(1) + bytes(8)
    return struct.pack("<BQ", SET_TENSOR, len(head) + size) + head


def graph(*tensors: bytes) -> bytes:
    payload = struct.pack("<II", 0, len(tensors))
    payload += b"".join(struct.pack("<Q", i + 1) for i in range(len(tensors)))
    payload += struct.pack("<I", len(tensors)) + b"".join(tensors)
    return request(GRAPH_COMPUTE, payload)


HELLO_REQUEST = request(HELLO, bytes(24))
HELLO_REPLY = reply(bytes((7, 0, 0, 0)) + bytes(24))


def receive(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (part := peer.recv(count - len(data))):
        data += part
    return data


def run(relay: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(relay), *args], capture_output=True, text=True, timeout=20, check=False
    )


class Stats:
    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(path))
        self._lines = self.socket.makefile("r")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._lines.close()
        self.socket.close()

    def line(self) -> dict[str, Any]:
        text = self._lines.readline()
        assert text, "the relay closed its stats"
        return dict(json.loads(text))

    def send(self, command: object) -> None:
        self.socket.sendall(json.dumps(command).encode() + b"\n")

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            line = self.line()
            if condition(line):
                return line
        raise AssertionError("the line did not come")

    def snapshot(self, **wanted: object) -> dict[str, Any]:
        return self.until(
            lambda line: (
                line["type"] == "snapshot"
                and all(line[key] == value for key, value in wanted.items())
            )
        )


class Relay:
    def __init__(
        self,
        program: Path,
        worker: int | str,
        stats: Path,
        *options: str,
        way: str = "--worker",
    ) -> None:
        """Start it before a port of ours, or an endpoint, and learn its own port.

        ``way`` is the option that says what is there.
        """
        self.stats_path = stats
        self.log = stats.with_suffix(".log")
        argv = [str(program), "head", "--listen", "127.0.0.1:0", "--name", stats.stem]
        self.upstream = worker if isinstance(worker, str) else f"127.0.0.1:{worker}"
        argv += [way, self.upstream, "--stats", str(stats), *options]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout
        self.ready = json.loads(self.process.stdout.readline())
        self.port = int(self.ready["port"])

    def connect(self) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    def stats(self) -> Stats:
        return Stats(self.stats_path)

    def stop(self) -> int:
        self.process.terminate()
        try:
            code = self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
        if self.process.stdout:
            self.process.stdout.close()
        return code


@contextmanager
def running(
    program: Path,
    worker: int | str,
    stats: Path,
    *options: str,
    way: str = "--worker",
) -> Iterator[Relay]:
    relay = Relay(program, worker, stats, *options, way=way)
    try:
        yield relay
    finally:
        relay.stop()


class Worker:
    """A listener that stands in for an rpc-server; a test says what it does."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1)
        self.listener.settimeout(PATIENCE_S)
        self.port = int(self.listener.getsockname()[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    def accept(self) -> socket.socket:
        peer, _ = self.listener.accept()
        peer.settimeout(PATIENCE_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer


def greet(client: socket.socket, worker: socket.socket) -> None:
    client.sendall(HELLO_REQUEST)
    assert receive(worker, len(HELLO_REQUEST)) == HELLO_REQUEST
    worker.sendall(HELLO_REPLY)
    assert receive(client, len(HELLO_REPLY)) == HELLO_REPLY


def give_buffer(client: socket.socket, worker: socket.socket, size: int) -> None:
    asked = request(ALLOC_BUFFER, struct.pack("<IQ", 0, size))
    exchange(client, worker, asked, reply(struct.pack("<QQ", BUFFER, size)))
    asked = request(BUFFER_GET_BASE, struct.pack("<Q", BUFFER))
    exchange(client, worker, asked, reply(struct.pack("<Q", BASE)))


def exchange(
    client: socket.socket, worker: socket.socket, asked: bytes, answer: bytes
) -> None:
    client.sendall(asked)
    assert receive(worker, len(asked)) == asked
    worker.sendall(answer)
    assert receive(client, len(answer)) == answer


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
