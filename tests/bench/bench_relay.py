"""The relay against a bare copy relay, socat and haproxy: round trips and throughput.

Run as ``python -m tests.bench.bench_relay BUILD``, BUILD being a build of ``native/``
with its target ``bench_programs``. All relays run at once and are asked in turn, so
that what else the machine does hits them alike; the ratios are of medians.
"""

from __future__ import annotations

import argparse
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

SIZES = (4096, 16384)
TRIPS = 400
BULK_BYTES = 256 << 20
BULK_ROUNDS_SHARE = 4
START_S = 10.0

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


def free_port() -> int:
    """A port nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


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


def load(build: Path, mode: str, port: int, *args: int) -> list[int]:
    """Nanoseconds of what the client measured."""
    argv = [str(build / "bench/rpc_load"), mode, str(port), *map(str, args)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    return [int(line) for line in done.stdout.split()]


def percentile(values: list[int], share: float) -> float:
    """By rank."""
    return float(sorted(values)[min(int(share * len(values)), len(values) - 1)])


def show(title: str, unit: str, rows: dict[str, list[float]], better: str) -> None:
    """One table; ratios of the first column against the bare copy."""
    print(f"\n{title}")
    for name, values in rows.items():
        ratio = values[0] / rows["copy"][0]
        numbers = "  ".join(f"{value:9.1f}" for value in values)
        print(
            f"  {name:8} {numbers} {unit}   x{ratio:.3f} of copy ({better} is better)"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    build: Path = options.build.resolve()
    order = random.Random(1)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        worker = free_port()
        start(stack, [str(build / "bench/rpc_load"), "worker", str(worker)], worker)
        relays = commands(build, worker, work)
        for port, argv in relays.values():
            start(stack, argv, port)
        trips: dict[tuple[int, str], list[list[int]]] = {}
        bulk: dict[str, list[float]] = {name: [] for name in relays}
        for round_number in range(options.rounds):
            names = order.sample(sorted(relays), len(relays))
            for size in SIZES:
                for name in names:
                    nanos = load(build, "client", relays[name][0], size, TRIPS)
                    trips.setdefault((size, name), []).append(nanos[TRIPS // 10 :])
            for name in names if round_number % BULK_ROUNDS_SHARE == 0 else ():
                taken = load(build, "bulk", relays[name][0], BULK_BYTES)[0]
                bulk[name].append(BULK_BYTES / taken * 1000)
    for size in SIZES:
        rows = {
            name: [
                statistics.median(percentile(each, share) / 1000 for each in runs)
                for share in (0.5, 0.99)
            ]
            for name, runs in ((name, trips[size, name]) for name in relays)
        }
        show(f"round trip of {size} bytes each way: p50, p99", "us", rows, "less")
    show(
        f"one message of {BULK_BYTES >> 20} MB",
        "MB/s",
        {name: [statistics.median(values)] for name, values in bulk.items()},
        "more",
    )


if __name__ == "__main__":
    main()
