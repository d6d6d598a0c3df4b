"""A relay that only copies and remembers every byte, to compare with."""

from __future__ import annotations

import itertools
import socket
import threading
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Self

from tests.native.relaying import in_thread

BLOCK_BYTES = 1 << 20


@dataclass
class Recording:
    """One connection: pieces in the order they passed, the client's marked ``up``."""

    pieces: list[tuple[bool, bytes]] = field(default_factory=list)

    def turns(self) -> list[tuple[bool, bytes]]:
        """The pieces, joined up to where the direction changes."""
        turns = itertools.groupby(self.pieces, itemgetter(0))
        return [(up, b"".join(part for _, part in group)) for up, group in turns]

    def stream(self, up: bool) -> bytes:
        """All bytes of one direction."""
        return b"".join(part for way, part in self.pieces if way == up)


class Recorder:
    """Listens before a worker, one connection at a time, as the worker itself does."""

    def __init__(self, worker_port: int) -> None:
        """Listen on a free port."""
        self.recordings: list[Recording] = []
        self._worker = ("127.0.0.1", worker_port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = int(self._listener.getsockname()[1])
        self._serving = in_thread(self._serve)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._serving.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, socket.create_connection(self._worker) as worker:
                self._record(client, worker)

    def _record(self, client: socket.socket, worker: socket.socket) -> None:
        recording = Recording()
        self.recordings.append(recording)
        lock = threading.Lock()
        upwards = in_thread(lambda: copy(client, worker, recording, lock, up=True))
        copy(worker, client, recording, lock, up=False)
        upwards.join()


def copy(
    source: socket.socket,
    target: socket.socket,
    recording: Recording,
    lock: threading.Lock,
    *,
    up: bool,
) -> None:
    """One direction, to its end; a piece is noted before it is passed on."""
    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := source.recv(BLOCK_BYTES):
        with lock:
            recording.pieces.append((up, data))
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)
