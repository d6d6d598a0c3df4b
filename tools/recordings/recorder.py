"""A relay that only copies and remembers every byte, and files of what passed."""

from __future__ import annotations

import io
import itertools
import json
import socket
import struct
import tarfile
import threading
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Self

from tests.native.relaying import HELLO, in_thread

FOLDER = Path(__file__).resolve().parents[2] / "tests/native/recordings"
"""Of the tests of ``native/``, which replay them."""
ABOUT = "about.json"
REQUEST_HEADER_BYTES, REPLY_HEADER_BYTES = 9, 8
BLOCK_BYTES = 1 << 20


@dataclass
class Recording:
    """One connection: pieces in the order they passed, the client's marked ``up``."""

    pieces: list[tuple[bool, bytes]] = field(default_factory=list)

    def turns(self) -> list[tuple[bool, bytes]]:
        turns = itertools.groupby(self.pieces, itemgetter(0))
        return [(up, b"".join(part for _, part in group)) for up, group in turns]

    def stream(self, up: bool) -> bytes:
        return b"".join(part for way, part in self.pieces if way == up)


@dataclass
class Session:
    """All that passed between a client and one worker, in order of the connections."""

    about: dict[str, str]
    recordings: list[Recording]

    def protocol(self) -> str | None:
        first = self.recordings[0]
        if first.stream(up=True)[0] != HELLO:
            return None
        version = first.stream(up=False)[REPLY_HEADER_BYTES:][:3]
        return ".".join(str(number) for number in version)


class Recorder:
    """Listens before a worker, one connection at a time, as the worker itself does."""

    def __init__(self, worker_port: int) -> None:
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


def save(session: Session, file: Path) -> None:
    """Write the archive that the tests of ``native/`` unpack."""
    file.parent.mkdir(exist_ok=True)
    with tarfile.open(file, "w:xz") as archive:
        _add(archive, ABOUT, json.dumps(session.about, indent=1).encode())
        for index, recording in enumerate(session.recordings):
            _add(archive, f"{index:02}", _packed(recording))


def _packed(recording: Recording) -> bytes:
    return b"".join(
        struct.pack("<cQ", b">" if up else b"<", len(data)) + data
        for up, data in recording.turns()
    )


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))
