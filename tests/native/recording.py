"""Files of what passed between a client and a worker, and playing it again."""

from __future__ import annotations

import itertools
import json
import socket
import struct
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path

from tests.native.relaying import HELLO, Relay, Worker, in_thread, receive

FOLDER = Path(__file__).with_name("recordings")
ABOUT = "about.json"
REQUEST_HEADER_BYTES, REPLY_HEADER_BYTES = 9, 8


@dataclass
class Recording:
    """One connection: pieces in the order they passed, the client's marked ``up``."""

    pieces: list[tuple[bool, bytes]] = field(default_factory=list)

    def turns(self) -> list[tuple[bool, bytes]]:
        turns = itertools.groupby(self.pieces, itemgetter(0))
        return [(up, b"".join(part for _, part in group)) for up, group in turns]

    def stream(self, up: bool) -> bytes:
        return b"".join(part for way, part in self.pieces if way == up)

    @classmethod
    def unpack(cls, packed: bytes) -> Recording:
        made = cls()
        at = 0
        while at < len(packed):
            way, size = struct.unpack_from("<cQ", packed, at)
            at += 9 + size
            made.pieces.append((way == b">", packed[at - size : at]))
        return made


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

    @classmethod
    def load(cls, file: Path) -> Session:
        with tarfile.open(file) as archive:
            parts = {each.name: archive.extractfile(each) for each in archive}
            data = {name: part.read() for name, part in parts.items() if part}
        about = json.loads(data.pop(ABOUT))
        return cls(about, [Recording.unpack(data[name]) for name in sorted(data)])


Cut = Callable[[bytes], list[bytes]]


def whole(data: bytes) -> list[bytes]:
    return [data]


def replay(
    head: Relay, worker: Worker, recording: Recording, cut: Cut = whole
) -> Recording:
    """The same turns through the relay, sent in pieces; what arrived at either end."""
    arrived = Recording()
    with head.connect() as client, worker.accept() as peer:
        for up, sent in recording.turns():
            source, target = (client, peer) if up else (peer, client)
            sending = in_thread(lambda: send(source, cut(sent)))  # noqa: B023
            arrived.pieces.append((up, receive(target, len(sent))))
            sending.join()
        client.shutdown(socket.SHUT_WR)
        arrived.pieces.append((True, peer.recv(1)))
        peer.shutdown(socket.SHUT_WR)
        arrived.pieces.append((False, client.recv(1)))
    return arrived


def send(source: socket.socket, pieces: list[bytes]) -> None:
    for piece in pieces:
        source.sendall(piece)
