"""``llama-bench`` through relays against direct: what a relay costs a token.

Run as ``python -m tests.bench.bench_llama RELAY``. Two workers of the installed engine
hold the demo model; ``llama-bench`` generates text over them, in pairs of one run
direct and one through a relay per worker, in random order. The verdict is the median
of the pairs' ratios. ``llama-bench`` itself is built once, from the engine's source,
below the user's cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import msgspec

from backends.demo import MODEL_PATH
from backends.engine import accelerators, build, compiling, install
from backends.engine.versions import find_source
from backends.paths import user_paths
from tests.bench.bench_relay import start
from tests.native.stock import free_port

PROGRAM = "llama-bench"
WORKERS = 2
GENERATED_TOKENS = 512
TARGET_RATIO = 0.99
TARGET_TOK_S = 100


def tell(progress: build.BuildProgress) -> None:
    """One line per build stage."""
    if progress.fraction is None:
        print(f"{progress.stage.value}: {progress.text}", file=sys.stderr)


async def built_bench(version: str | None, jobs: int) -> Path:
    """``llama-bench`` of the pinned source, built with the engine's own steps."""
    own = user_paths()
    paths = msgspec.structs.replace(own, cache_dir=own.cache_dir / "bench")
    choice = await accelerators.choose("none", compiling.Here(os.environ))
    job = build._Job(find_source(version), choice, paths, jobs, tell)
    program = job.folder / "programs" / PROGRAM
    if not program.is_file():
        async with build._lock(job) as lock:
            await build._make(job, (PROGRAM,), lock)
    return program


def installed_engine(version: str) -> Path:
    """The user's engine of a protocol version: the workers are the real ones."""
    for directory, manifest in install.installed(user_paths()):
        if manifest.rpc_protocol == version:
            return directory
    sys.exit(f"no engine of protocol {version}: dllm-tui engine build")


def start_workers(stack: ExitStack, engine: Path) -> list[int]:
    """The ports of workers with one thread each; a stock worker dies of SIGPIPE."""
    ports = [free_port() for _ in range(WORKERS)]
    for port in ports:
        argv = [str(engine / install.WORKER), "-H", "127.0.0.1", "-p", str(port)]
        start(stack, [*argv, "-t", "1"], port)
    return ports


def start_relays(stack: ExitStack, relay: Path, ports: list[int]) -> list[int]:
    """The ports of a relay before each worker."""
    own = [free_port() for _ in ports]
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    for index, (listen, worker) in enumerate(zip(own, ports, strict=True)):
        argv = [str(relay), "head", "--name", f"worker{index + 1}"]
        argv += ["--listen", f"127.0.0.1:{listen}", "--worker", f"127.0.0.1:{worker}"]
        argv += ["--stats", str(folder / f"{index}.sock")]
        start(stack, argv, listen)
    return own


def tokens_per_s(program: Path, ports: list[int]) -> float:
    """One run of ``llama-bench`` that only generates."""
    endpoints = ",".join(f"127.0.0.1:{port}" for port in ports)
    argv = [str(program), "-m", str(MODEL_PATH), "--rpc", endpoints]
    argv += ["-dev", "/".join(f"RPC{index}" for index in range(len(ports)))]
    argv += ["-ngl", "99", "-t", "1", "-p", "0", "-n", str(GENERATED_TOKENS)]
    done = subprocess.run(
        [*argv, "-r", "1", "-o", "json"], capture_output=True, text=True, timeout=120
    )
    if done.returncode != 0:
        sys.exit(f"{PROGRAM} failed:\n{done.stderr}")
    return float(json.loads(done.stdout)[0]["avg_ts"])


def quartiles(values: list[float]) -> str:
    """The middle half, as text."""
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.3f}…{high:.3f}"


def main() -> None:
    """Build what is missing, measure, print; the exit status is the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("relay", type=Path)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--engine", default="7.0.0", help="protocol version")
    parser.add_argument("--jobs", type=int, default=build.default_jobs())
    parser.add_argument("--only-build", action="store_true")
    options = parser.parse_args()
    program = asyncio.run(built_bench(options.engine, options.jobs))
    if options.only_build:
        return
    order = random.Random(1)
    speeds: dict[str, list[float]] = {"direct": [], "relay": []}
    with ExitStack() as stack:
        direct = start_workers(stack, installed_engine(options.engine))
        ways = {
            "direct": direct,
            "relay": start_relays(stack, options.relay.resolve(), direct),
        }
        for ports in ways.values():
            tokens_per_s(program, ports)
        for _ in range(options.pairs):
            for way in order.sample(sorted(ways), len(ways)):
                speeds[way].append(tokens_per_s(program, ways[way]))
    pairs = zip(speeds["relay"], speeds["direct"], strict=True)
    ratios = [relay / direct for relay, direct in pairs]
    for way, values in speeds.items():
        print(f"{way:7} {statistics.median(values):7.1f} tok/s")
    ratio = statistics.median(ratios)
    print(
        f"relay / direct: median of {len(ratios)} pairs {ratio:.3f} "
        f"(middle half {quartiles(ratios)}), target {TARGET_RATIO}"
    )
    fast_enough = statistics.median(speeds["direct"]) >= TARGET_TOK_S
    sys.exit(not (fast_enough and ratio >= TARGET_RATIO))


if __name__ == "__main__":
    main()
