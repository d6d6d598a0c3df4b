"""Measure the cost of the ways to a worker: run it with ``make bench-tunnel`` (root).

The other end is a real sshd in a network namespace. Each figure is taken through an
SSH tunnel of ours and plain, in turn, in one run. There are round trips of 4 KB and
16 KB, one every 20 ms as tokens come.

Then there are tokens per second of one worker there, in turn by every way. Relays meet
directly (TLS) or by an SSH tunnel. To a lent machine its connection is that tunnel, by
TCP and by QUIC. The plain worker listens on the network, as nobody should let one. All
of it is done with no delay, and with 10 ms that the head's relay adds each way. The
kernel's own way there takes no time, so QUIC loses nothing on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from backends.client.client import ControllerClient
from backends.demo import MODEL_PATH
from backends.machines.ssh.config import Destination
from backends.machines.ssh.connection import Connection
from backends.state import Lab
from tests.engine.conftest import wait_for
from tests.hosts.network import Network, missing
from tests.hosts.user import HeadUser

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.hosts.machine import Machine

ECHO_PORT = 4000
SIZES_BYTES = (4096, 16384)
ROUNDS = 6
TRIPS = 150
PERIOD_S = 0.02
ANSWERS = int(os.environ.get("DLLM_BENCH_ANSWERS", "10"))
TOKENS = 64
DELAYS_MS = (0.0, 10.0)
NOBODY = "127.0.0.1:1"
MODEL = Path(os.environ.get("DLLM_BENCH_MODEL", MODEL_PATH))
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


class Lender(HeadUser):
    """The owner of a machine on the peer's network, who lends it."""

    def __init__(self, network: Network, peer: Machine) -> None:
        super().__init__(network, CACHE, state=network.home / "lender")
        self._enter = ["nsenter", "-t", str(peer.container.pid), "-n", "--"]
        (models := self.home / "models").mkdir()
        shutil.copy(MODEL, models)
        self._worker = self._start("run", "--headless", "--models", str(models))

    def _start(self, *args: str) -> subprocess.Popen[str]:
        argv = [*self._enter, "dllm-tui", "worker", *args]
        out = subprocess.DEVNULL if "run" in args else subprocess.PIPE
        return subprocess.Popen(argv, env=self.env, text=True, stdout=out)

    def lend_to(self, user: HeadUser) -> None:
        def token() -> str:
            return self._start("invite").communicate()[0].strip()

        user.run("peers", "add", wait_for(token, "a token"), "--name", "ada")

    def close(self) -> None:
        self._worker.terminate()
        self._worker.wait()


def compare_tokens(network: Network, peer: Machine) -> None:
    """Tokens per second by every way, in turn."""
    ways = ("plain", "TLS", "SSH", "lent, TCP", "lent, QUIC")
    users = {
        way: HeadUser(network, CACHE, state=network.home / f"user{number}")
        for number, way in enumerate(ways)
    }
    lender = Lender(network, peer)
    try:
        for way, data in (("SSH", "tunnel"), ("TLS", "auto")):
            users[way].run("peers", "add", peer.name)
            users[way].run("peers", "provision", peer.name)
            set_up(users[way], data)
        for way, place in (("lent, TCP", ""), ("lent, QUIC", NOBODY)):
            lender.lend_to(users[way])
            set_up(users[way], "tunnel", place)
        wait_for(lambda: is_by(users["lent, QUIC"], "quic"), "QUIC")
        wait_for(lambda: is_by(users["lent, TCP"], "tcp"), "TCP")
        start_plain_worker(users["SSH"], peer)
        place = f"{peer.address}:50052"
        users["plain"].run("peers", "add", "ada", "--bare", place)
        for user in users.values():
            user.run("up", "--model", str(MODEL), "--peer", "ada", "--detach")
        for delay_ms in DELAYS_MS:
            compare_delayed(users, delay_ms)
        for way, user in users.items():
            show_bytes(way, user)
    finally:
        for user in users.values():
            user.run("stop")
        lender.close()
        peer.kill_processes()


def compare_delayed(users: Mapping[str, HeadUser], delay_ms: float) -> None:
    lab = Lab(latency_ms=delay_ms)
    for user in users.values():
        asyncio.run(ControllerClient(user.paths).set_lab("ada", lab))
        tokens_per_s(user)
    rates: dict[str, list[float]] = {way: [] for way in users}
    for _ in range(ANSWERS):
        for way, user in users.items():
            rates[way].append(tokens_per_s(user))
    print(f"{delay_ms:g} ms added each way:")
    for way, found in rates.items():
        took_ms = [1e3 / rate for rate in found]
        pairs = zip(took_ms, rates["plain"], strict=True)
        more_ms = statistics.median(own - 1e3 / bare for own, bare in pairs)
        print(
            f"decode, {way:12} {statistics.median(took_ms):6.2f} ms a token, "
            f"best {min(took_ms):6.2f}, {more_ms:+6.2f} beside plain (pairs)"
        )


def is_by(user: HeadUser, way: str) -> bool:
    (line,) = user.run("peers", "list").stdout.splitlines()[1:]
    return way in line.split()


def show_bytes(way: str, user: HeadUser) -> None:
    (link,) = user.status()["links"]
    wire = [link[f"wire_bytes_{end}"] for end in ("up", "down")]
    said = [link[f"bytes_{end}"] for end in ("up", "down")]
    weights = link["weight_bytes_home"], link["weight_bytes_sent"]
    print(f"{way}: said {said}, crossed {wire}; weights at home, sent {weights}")


def set_up(user: HeadUser, data: str, place: str = "") -> None:
    """Have a peer's data go by a way, and its worker be at another place."""
    file = user.home / "config" / "dllm-tui" / "config.toml"
    text = file.read_text()
    if place:
        text = re.sub(r"worker = .*", f'worker = "{place}"', text)
    file.write_text(f'{text}threads = 1\ndata = "{data}"\n')


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
