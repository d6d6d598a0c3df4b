"""Playing a recorded conversation again through a relay, both ends of it."""

from __future__ import annotations

import socket
from collections.abc import Callable

from tests.native.recording import Recording
from tests.native.relaying import Relay, Worker, in_thread, receive

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
