"""A worker whose machine vanishes, as its relay notices without asking it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from backends.paths import relay_binary
from tests.kit.waiting import PATIENCE_S, wait_until
from tests.native.relaying import (
    GET_DEVICE_MEMORY,
    HELLO_REPLY,
    HELLO_REQUEST,
    receive,
    request,
    running,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hosts.network import Network

PORT = 4711
GONE_AFTER_S = 2
WORKER = f"""
import socket, time
listener = socket.create_server(("", {PORT}))
peer, _ = listener.accept()
peer.recv(1000)
peer.sendall(bytes.fromhex("{HELLO_REPLY.hex()}"))
time.sleep(600)
"""


def test_a_machine_without_a_cable_is_given_up(
    network: Network, tmp_path: Path
) -> None:
    """Other than one that is busy, whose kernel goes on acknowledging."""
    ada = network.peer("ada")
    behind = 'setsid python3 -c "$0" </dev/null >/dev/null 2>&1 &'
    ada.run(["sh", "-c", behind, WORKER])
    wait_until(lambda: f":{PORT} " in ada.run(["ss", "-ltn"]).stdout, "the worker")
    upstream = f"{ada.address}:{PORT}"
    options = ("--gone-after", str(GONE_AFTER_S))
    with (
        running(relay_binary(), upstream, tmp_path / "w.sock", *options) as head,
        head.connect() as client,
    ):
        client.sendall(HELLO_REQUEST)
        assert receive(client, len(HELLO_REPLY)) == HELLO_REPLY
        client.sendall(request(GET_DEVICE_MEMORY, bytes(4)))
        client.settimeout(2 * GONE_AFTER_S)
        busy = ""
        try:
            busy = f"closed: {client.recv(1)!r}"
        except TimeoutError:
            cut = time.monotonic()
            ada.link_down()
        assert not busy
        client.settimeout(PATIENCE_S)
        client.sendall(request(GET_DEVICE_MEMORY, bytes(4)))
        assert client.recv(1) == b""
        assert time.monotonic() - cut > GONE_AFTER_S - 1
        # Written by another thread than the one that closed.
        told = "has not been heard for 2 s"
        wait_until(lambda: told in head.log.read_text(), "the reason in the log")
    ada.kill_processes()
