#!/usr/bin/env python3
"""A worker with a planted fault: a proxy before the stock one, of RPC 7.0.0.

It stands in the place of the worker's program, which is beside it as ``NAME.real``. The
file ``fault`` there says what is wrong: ``lacks NUMBER NAME`` ends it as an engine ends
that meets an operator it does not have; ``miscalculates`` spoils what it computed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable

HERE = os.path.dirname(os.path.abspath(__file__))
GRAPH_COMPUTE = 10
TENSOR_BYTES, OP_AT = 296, 52
LONG_REPLY_BYTES = 512


def read_exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = connection.recv(min(count - len(data), 1 << 20))
        if not more:
            raise EOFError
        data += more
    return data


def operators(payload: bytes) -> set[int]:
    n_nodes = struct.unpack_from("<I", payload, 4)[0]
    at = 8 + 8 * n_nodes
    n_tensors = struct.unpack_from("<I", payload, at)[0]
    first = at + 4 + OP_AT
    ends = range(first, first + TENSOR_BYTES * n_tensors, TENSOR_BYTES)
    return {struct.unpack_from("<I", payload, place)[0] for place in ends}


def lacks(payload: bytes, number: int, name: str) -> None:
    if number in operators(payload):
        print(f"ggml_backend_graph_compute: unsupported op {name}", flush=True)
        os._exit(134)


def up(client: socket.socket, worker: socket.socket, fault: list[str]) -> None:
    while True:
        header = read_exactly(client, 9)
        command, size = struct.unpack("<BQ", header)
        payload = read_exactly(client, size)
        if command == GRAPH_COMPUTE and fault[0] == "lacks":
            lacks(payload, int(fault[1]), fault[2])
        worker.sendall(header + payload)


def down(client: socket.socket, worker: socket.socket, fault: list[str]) -> None:
    while data := worker.recv(1 << 20):
        if fault[0] == "miscalculates" and len(data) > LONG_REPLY_BYTES:
            spoiled = bytearray(data)
            # The exponents of some numbers.
            for at in range(8 + 3, len(data), 64):
                spoiled[at] ^= 0x40
            data = bytes(spoiled)
        client.sendall(data)
    client.shutdown(socket.SHUT_RDWR)


def aside(work: Callable[..., None], *given: object) -> threading.Thread:
    def quietly() -> None:
        with contextlib.suppress(EOFError, OSError):
            work(*given)

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    return thread


def main() -> None:
    arguments = sys.argv[1:]
    real = os.path.join(HERE, os.path.basename(__file__) + ".real")
    if "-p" not in arguments:
        os.execv(real, [real, *arguments])
    with open(os.path.join(HERE, "fault")) as file:
        fault = file.read().split()
    at = arguments.index("-p") + 1
    listener = socket.create_server(("127.0.0.1", int(arguments[at])))
    with socket.create_server(("127.0.0.1", 0)) as free:
        arguments[at] = str(free.getsockname()[1])
    child = subprocess.Popen([real, *arguments])
    while True:
        client = listener.accept()[0]
        while True:
            try:
                worker = socket.create_connection(("127.0.0.1", int(arguments[at])))
                break
            except ConnectionRefusedError:
                if child.poll() is not None:
                    sys.exit(child.returncode)
        threads = [aside(up, client, worker, fault), aside(down, client, worker, fault)]
        threads[0].join()
        # A close alone would leave the other thread, and the worker, waiting.
        worker.shutdown(socket.SHUT_RDWR)
        threads[1].join()
        worker.close()
        client.close()


main()
