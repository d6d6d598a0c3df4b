"""The relay against a bare copy relay, socat and haproxy: round trips and throughput.

Run as ``python -m tools.bench.bench_relay BUILD``. BUILD is a build of ``native/``
with its target ``bench_programs``. One client makes a block of round trips through
each relay in turn, and to the worker itself. Each has a new connection. So other load
on the machine hits them alike. Every round has new processes, because a thread's core
is settled early and then stays. A ratio is the median, over the blocks, of a relay's
median against the bare copy's of the same block.
"""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from math import inf
from pathlib import Path

from tests.native.stock import free_port

SIZES = (4096, 16384)
TRIPS = 40
BULK_BYTES = 256 << 20
START_S = 10.0
TRIP_TARGET = 1.05
BULK_TARGET = 0.95
RIVALS = ("socat", "haproxy")
"""To be faster than both, where they are installed."""

Taken = dict[str, list[int]]
"""Nanoseconds of every round trip, by relay."""

HAPROXY = """
global
    nbthread 1
defaults
    mode tcp
    timeout connect 5s
    timeout client 1m
    timeout server 1m
listen relay
    bind 127.0.0.1:{own}
    server worker 127.0.0.1:{worker}
"""


def commands(build: Path, worker: int, work: Path) -> dict[str, tuple[int, list[str]]]:
    """Each relay's port and command."""
    ports = {name: free_port() for name in ("ours", "copy", "socat", "haproxy")}
    config = work / "haproxy.cfg"
    config.write_text(HAPROXY.format(own=ports["haproxy"], worker=worker))
    ours = [str(build / "dllm-relay"), "head", "--name", "bench"]
    ours += [
        "--listen",
        f"127.0.0.1:{ports['ours']}",
        "--worker",
        f"127.0.0.1:{worker}",
    ]
    ours += ["--stats", str(work / "stats.sock")]
    listen = f"TCP-LISTEN:{ports['socat']},bind=127.0.0.1,reuseaddr,fork,nodelay"
    all_of_them = {
        "ours": ours,
        "copy": [str(build / "bench/copy_relay"), str(ports["copy"]), str(worker)],
        "socat": ["socat", listen, f"TCP:127.0.0.1:{worker},nodelay"],
        "haproxy": ["haproxy", "-db", "-f", str(config)],
    }
    return {
        name: (ports[name], argv)
        for name, argv in all_of_them.items()
        if shutil.which(argv[0])
    }


def start(stack: ExitStack, argv: list[str], port: int) -> None:
    """A listening process that ends with the stack."""
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(argv, stdout=quiet, stderr=quiet)
    stack.callback(process.wait)
    stack.callback(process.kill)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.02)
    sys.exit(f"{argv[0]} does not listen")


def load(build: Path, *args: object, ports: dict[str, int]) -> Taken:
    """Nanoseconds of every round trip, by relay, in the order they were made."""
    argv = [str(build / "bench/rpc_load"), *map(str, args), *map(str, ports.values())]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    names = {str(port): name for name, port in ports.items()}
    taken: Taken = {name: [] for name in ports}
    for line in done.stdout.splitlines():
        port, nanos = line.split()
        taken[names[port]].append(int(nanos))
    return taken


def block_medians(taken: list[int], trips: int) -> list[float]:
    starts = range(0, len(taken), trips)
    return [statistics.median(taken[at : at + trips]) for at in starts]


def ratio_to_copy(taken: Taken, name: str, trips: int) -> float:
    ours, copy = (block_medians(taken[each], trips) for each in (name, "copy"))
    return statistics.median(a / b for a, b in zip(ours, copy, strict=True))


def percentile(values: list[int], share: float) -> float:
    return float(sorted(values)[min(int(share * len(values)), len(values) - 1)])


def show_trips(size: int, taken: Taken) -> list[str]:
    """One table; what misses its target."""
    print(
        f"\nround trip of {size} bytes each way        p50        p99   of copy's p50"
    )
    ratios = {name: ratio_to_copy(taken, name, TRIPS) for name in taken}
    for name, values in taken.items():
        p50, p99 = (percentile(values, share) / 1000 for share in (0.5, 0.99))
        print(f"  {name:32} {p50:8.1f}   {p99:8.1f} us   {ratios[name]:.3f}")
    missed: list[str] = [
        name for name in RIVALS if ratios["ours"] >= ratios.get(name, inf)
    ]
    missed += ["copy"] if ratios["ours"] > TRIP_TARGET else []
    return [f"{size} bytes: not faster than wanted against {name}" for name in missed]


def show_bulk(taken: Taken) -> list[str]:
    """One table; what misses its target."""
    print(
        f"\none message of {BULK_BYTES >> 20} MB                   median   of copy's"
    )
    shares = {name: 1 / ratio_to_copy(taken, name, 1) for name in taken}
    for name, values in taken.items():
        speed = BULK_BYTES / statistics.median(values) * 1000
        print(f"  {name:32} {speed:8.1f} MB/s   {shares[name]:.3f}")
    slower: list[str] = [
        name for name in RIVALS if shares["ours"] <= shares.get(name, 0)
    ]
    slower += ["copy"] if shares["ours"] < BULK_TARGET else []
    return [f"{BULK_BYTES >> 20} MB: slower than {name}" for name in slower]


def measure(build: Path, blocks: int, bulk_blocks: int) -> dict[int, Taken]:
    """One round with processes of its own: by size of the message, by relay."""
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        worker = free_port()
        start(stack, [str(build / "bench/rpc_load"), "worker", str(worker)], worker)
        relays = commands(build, worker, work)
        for port, argv in relays.values():
            start(stack, argv, port)
        ports = {name: port for name, (port, _) in relays.items()}
        ports["direct"] = worker
        trips = {
            size: load(build, "trips", size, blocks, TRIPS, ports=ports)
            for size in SIZES
        }
        bulk = load(build, "bulk", BULK_BYTES, bulk_blocks, ports=ports)
        return {**trips, BULK_BYTES: bulk}


def compare(build: Path, rounds: int, blocks: int, bulk_blocks: int) -> list[str]:
    """Measure and print; what misses its target."""
    taken: dict[int, Taken] = {}
    for _ in range(rounds):
        for size, of_round in measure(build, blocks, bulk_blocks).items():
            for name, values in of_round.items():
                taken.setdefault(size, {}).setdefault(name, []).extend(values)
    missed = [line for size in SIZES for line in show_trips(size, taken[size])]
    return missed + show_bulk(taken[BULK_BYTES])


def main() -> None:
    """Measure both ways; the exit status is the verdict of the first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--blocks", type=int, default=40, help="of a round")
    parser.add_argument("--bulk-blocks", type=int, default=3, help="of a round")
    options = parser.parse_args()
    sizes = options.rounds, options.blocks, options.bulk_blocks
    build: Path = options.build.resolve()
    cores = os.sched_getaffinity(0)
    print(f"load average before: {os.getloadavg()[0]:.1f}")
    for name in RIVALS:
        if not shutil.which(name):
            print(f"{name} is not installed and left out")
    print("\n== all on one core: what the relays themselves cost")
    os.sched_setaffinity(0, {max(cores)})
    missed = compare(build, *sizes)
    print("\n" + ("\n".join(missed) or "all targets met"))
    print(f"\n== free on {len(cores)} cores: with the waking of sleeping cores")
    os.sched_setaffinity(0, cores)
    print("\n" + ("\n".join(compare(build, *sizes)) or "all targets met here, too"))
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
