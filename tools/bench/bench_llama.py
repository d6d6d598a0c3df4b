"""``llama-bench`` through relays against direct: the cost of a relay for a token.

Run as ``python -m tools.bench.bench_llama RELAY``. Two workers of the installed engine
hold the demo model. ``llama-bench`` generates text over them. Each turn has one run
direct and one through a relay per worker, in random order. With ``--way pair`` there
are two relays per worker with TLS between them. The model is then one of 1.1 GB, and a
prompt is read, too. The verdict is the median of the turns' ratios. ``llama-bench`` is
built once, from the engine's source, below the user's cache.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from backends.demo import MODEL_PATH
from backends.engine import accelerators, build, compiling, install
from backends.engine.versions import find_source
from backends.paths import user_paths
from tests.native.pairing import key_file, paired
from tests.native.stock import free_port
from tools.bench.bench_relay import start
from tools.bench.link_ways import large_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from backends.state import EngineProgress

PROGRAM = "llama-bench"
WORKERS = 2


@dataclass(frozen=True)
class Task:
    prompt_tokens: int
    generated_tokens: int
    targets: Mapping[str, float]
    """Share of the direct speed."""
    least_tok_s: float = 0
    """Generated directly: below that the machine is too busy to tell."""


TASKS = {
    "relay": Task(0, 512, {"decode": 0.99}, least_tok_s=100),
    "pair": Task(512, 32, {"decode": 0.98, "prompt": 0.95}),
}


def tell(progress: EngineProgress) -> None:
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
        async with build.locked(job.folder.with_name(f"{job.key}.lock"), tell) as lock:
            await build._make(job, (PROGRAM,), lock)
    return program


def installed_engine(version: str) -> Path:
    for directory, manifest in install.installed(user_paths()):
        if manifest.rpc_protocol == version:
            return directory
    sys.exit(f"no engine of protocol {version}: dllm-tui engine build")


def start_workers(stack: ExitStack, engine: Path) -> list[int]:
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


def start_pairs(
    stack: ExitStack, relay: Path, model: Path, ports: list[int]
) -> list[int]:
    """The ports of two relays before each worker, which speak TLS and know the file."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    own = []
    for index, worker in enumerate(ports):
        key = key_file(folder / f"{index}.key")
        stats = folder / f"{index}.sock"
        known = ("--model", str(model))
        ends = paired(relay, worker, stats, *key, far_options=known)
        own.append(stack.enter_context(ends)[0].port)
    return own


def tokens_per_s(
    program: Path, model: Path, ports: list[int], task: Task
) -> dict[str, float]:
    """One run of ``llama-bench``: the speeds of what it did."""
    endpoints = ",".join(f"127.0.0.1:{port}" for port in ports)
    argv = [str(program), "-m", str(model), "--rpc", endpoints]
    argv += ["-dev", "/".join(f"RPC{index}" for index in range(len(ports)))]
    argv += ["-ngl", "99", "-t", "1", "-p", str(task.prompt_tokens)]
    argv += ["-n", str(task.generated_tokens), "-r", "1", "-o", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"{PROGRAM} failed:\n{done.stderr}")
    return {
        "decode" if run["n_gen"] else "prompt": float(run["avg_ts"])
        for run in json.loads(done.stdout)
    }


def quartiles(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4)
    return f"{low:.3f}…{high:.3f}"


def compare(
    program: Path, options: argparse.Namespace, task: Task
) -> dict[str, list[dict[str, float]]]:
    """The speeds of every turn, by way."""
    model = large_model() if options.way == "pair" else MODEL_PATH
    order = random.Random(1)
    relay = options.relay.resolve()
    speeds: dict[str, list[dict[str, float]]] = {"direct": [], options.way: []}
    with ExitStack() as stack:
        direct = start_workers(stack, installed_engine(options.engine))
        through = (
            start_pairs(stack, relay, model, direct)
            if options.way == "pair"
            else start_relays(stack, relay, direct)
        )
        ways = {"direct": direct, options.way: through}
        for ports in ways.values():
            tokens_per_s(program, model, ports, task)
        for _ in range(options.turns):
            for way in order.sample(sorted(ways), len(ways)):
                speeds[way].append(tokens_per_s(program, model, ways[way], task))
    return speeds


def judge(speeds: Mapping[str, list[dict[str, float]]], way: str, task: Task) -> bool:
    """Print what was found; whether it is good enough."""
    good = True
    for what, target in task.targets.items():
        direct, through = ([each[what] for each in speeds[w]] for w in ("direct", way))
        ratios = [a / b for a, b in zip(through, direct, strict=True)]
        ratio = statistics.median(ratios)
        print(
            f"{what}: {statistics.median(direct):.1f} tok/s direct,"
            f" {statistics.median(through):.1f} by {way}; {way} / direct: median of"
            f" {len(ratios)} turns {ratio:.3f} (middle half {quartiles(ratios)}),"
            f" target {target}"
        )
        good = good and ratio >= target
    generated = [each["decode"] for each in speeds["direct"]]
    return good and statistics.median(generated) >= task.least_tok_s


def main() -> None:
    """Build what is missing, measure, print; the exit status is the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("relay", type=Path)
    parser.add_argument("--way", choices=TASKS, default="relay")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--engine", default="7.0.0", help="protocol version")
    parser.add_argument("--jobs", type=int, default=build.default_jobs())
    parser.add_argument("--only-build", action="store_true")
    options = parser.parse_args()
    program = asyncio.run(built_bench(options.engine, options.jobs))
    if options.only_build:
        return
    task = TASKS[options.way]
    sys.exit(not judge(compare(program, options, task), options.way, task))


if __name__ == "__main__":
    main()
