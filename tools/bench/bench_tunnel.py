"""Measure the cost of an SSH tunnel: run it with ``make bench-tunnel`` (root).

The other end is a real sshd in a network namespace. Each figure is taken through an
SSH tunnel of ours and plain, in turn, in one run. There are round trips of 4 KB and
16 KB, one every 20 ms as tokens come. Then there are tokens per second of one worker
there, also with relays that meet without the tunnel. The plain worker listens on the
network, as nobody should let one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from backends.demo import MODEL_PATH
from backends.machines.ssh.config import Destination
from backends.machines.ssh.connection import Connection
from tests.engine.conftest import wait_for
from tests.hosts.network import Network, missing
from tests.hosts.user import HeadUser

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.hosts.machine import Machine

ECHO_PORT = 4000
SIZES_BYTES = (4096, 16384)
ROUNDS = 6
TRIPS = 150
PERIOD_S = 0.02
ANSWERS = 10
TOKENS = 64
PROMPT = "Tell me everything you know about split bars and boundaries"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))

ECHO = """
import socket
server = socket.create_server(("0.0.0.0", {port}))
while True:
    client, _ = server.accept()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := client.recv(65536):
        client.sendall(data)
"""
ASK = """
import json, socket, sys, time
host, port, size, trips, period = sys.argv[1], *map(float, sys.argv[2:])
link = socket.create_connection((host, int(port)))
link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
data, took = b"x" * int(size), []
for _ in range(int(trips)):
    start = time.perf_counter()
    link.sendall(data)
    missing = len(data)
    while missing:
        missing -= len(link.recv(missing))
    took.append((time.perf_counter() - start) * 1e3)
    time.sleep(period)
print(json.dumps(took))
"""


async def round_trips_ms(host: str, port: int, size_bytes: int) -> list[float]:
    """Round trips of one connection, asked for by a process of its own."""
    words = [host, port, size_bytes, TRIPS, PERIOD_S]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ASK, *map(str, words)), stdout=subprocess.PIPE
    )
    out, _ = await child.communicate()
    return list(json.loads(out))


@contextlib.contextmanager
def echoing(peer: Machine) -> Iterator[None]:
    """A server on the peer's network that sends back what it gets."""
    argv = [sys.executable, "-c", ECHO.format(port=ECHO_PORT)]
    enter = ["nsenter", "-t", str(peer.container.pid), "-n", "--"]
    server = subprocess.Popen([*enter, *argv])
    try:
        wait_for(lambda: str(ECHO_PORT) in " ".join(peer.listening()), "the echo")
        yield
    finally:
        server.kill()
        server.wait()


async def compare_trips(network: Network, peer: Machine) -> None:
    """Round trips plain and through a tunnel, in turn."""
    connection = Connection(
        peer.name,
        Destination.parse(peer.name),
        config_file=network.config_file,
        known_hosts=network.known_hosts,
    )
    try:
        await connection.connect()
        tunnel = await connection.forward(ECHO_PORT)
        for size_bytes in SIZES_BYTES:
            plain: list[float] = []
            tunnelled: list[float] = []
            for _ in range(ROUNDS):
                plain += await round_trips_ms(peer.address, ECHO_PORT, size_bytes)
                tunnelled += await round_trips_ms("127.0.0.1", tunnel.port, size_bytes)
            show(f"{size_bytes // 1024} KB round trip, plain", plain, "ms")
            show(f"{size_bytes // 1024} KB round trip, SSH", tunnelled, "ms")
    finally:
        await connection.close()


def compare_tokens(network: Network, peer: Machine) -> None:
    """Tokens per second plain, directly and through a tunnel, in turn."""
    over_ssh = HeadUser(network, CACHE)
    direct = HeadUser(network, CACHE, state=network.home / "direct")
    plain = HeadUser(network, CACHE, state=network.home / "plain")
    users = {"plain": plain, "direct": direct, "SSH": over_ssh}
    try:
        for user, data in ((over_ssh, "tunnel"), (direct, "auto")):
            user.run("peers", "add", peer.name)
            user.run("peers", "provision", peer.name)
            set_up(user, data)
        start_plain_worker(over_ssh, peer)
        plain.run("peers", "add", "box", "--bare", f"{peer.address}:50052")
        model = str(MODEL_PATH)
        over_ssh.run("up", "--model", model, "--peer", peer.name, "--detach")
        direct.run("up", "--model", model, "--peer", peer.name, "--detach")
        plain.run("up", "--model", model, "--peer", "box", "--detach")
        rates: dict[str, list[float]] = {way: [] for way in users}
        for _ in range(ANSWERS):
            for way, user in users.items():
                rates[way].append(tokens_per_s(user))
    finally:
        for user in users.values():
            user.run("stop")
        peer.kill_processes()
    for way, found in rates.items():
        show(f"decode, {way}", found, "tok/s")
    for way in ("direct", "SSH"):
        pairs = zip(rates[way], rates["plain"], strict=True)
        ratio = statistics.median(own / bare for own, bare in pairs)
        print(f"decode, {way} / plain: median of {ANSWERS} pairs {ratio:.3f}")


def set_up(user: HeadUser, data: str) -> None:
    file = user.home / "config" / "dllm-tui" / "config.toml"
    file.write_text(f'{file.read_text()}threads = 1\ndata = "{data}"\n')


def start_plain_worker(user: HeadUser, peer: Machine) -> None:
    engine = user.json("peers", "probe", peer.name)[0]["facts"]["engines"][0]
    command = f"setsid {engine['worker_path']} -H 0.0.0.0 -p 50052 -d CPU -t 1"
    peer.run(["sh", "-c", f"{command} >/dev/null 2>&1 </dev/null &"])
    wait_for(lambda: "50052" in " ".join(peer.listening()), "the plain worker listens")


def tokens_per_s(user: HeadUser) -> float:
    answer = user.json("chat", PROMPT, "--max-tokens", str(TOKENS))
    return float(answer["timings"]["tok_per_s"])


def show(what: str, figures: Sequence[float], unit: str) -> None:
    ordered = sorted(figures)
    p99 = ordered[min(len(ordered) - 1, round(len(ordered) * 0.99))]
    p50 = statistics.median(ordered)
    print(f"{what:28} p50 {p50:8.2f} {unit}  p99 {p99:8.2f}  n {len(ordered)}")


def main() -> None:
    """Both comparisons; nothing is left behind."""
    if reason := missing():
        sys.exit(f"bench-tunnel {reason}")
    network = Network()
    try:
        network.write_ssh_config()
        os.environ["HOME"] = str(network.home)
        with echoing(network.peer("ada")):
            asyncio.run(compare_trips(network, network.peer("ada")))
        compare_tokens(network, network.peer("ada"))
    finally:
        network.close()


if __name__ == "__main__":
    main()
