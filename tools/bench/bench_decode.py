"""Tokens per second with relays and without, on a model of some 10 ms a token.

Run as ``python -m tools.bench.bench_decode BUILD``. BUILD is a build of ``native/``
with its target ``bench_programs``. There are three clusters of a llama-server and two
workers. One has a relay before every worker. One has a bare copy relay, which does the
least any relay can. They answer a turn at a time, in random order. Every round has new
processes, because where their memory lies is settled at the start. The verdict is the
median of the turns' ratios. The model has random weights; it is written once, below
the user's cache.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from backends.paths import user_paths
from tests.kit.models import write_llama
from tests.native.relaying import running
from tests.native.stock import (
    engine,
    free_port,
    server,
    start,
    start_worker,
    wait_for_port,
)
from tools.bench.bench_llama import quartiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

WAYS = ("direct", "copy", "relay")
WORKERS = 2
TOKENS = 64
"""Of one answer."""
TARGET_RATIO = 0.99
PROMPT = [1, *range(300, 315)]
N_LAYER, N_EMBD, N_FF, N_VOCAB = 20, 512, 1536, 32_000


def model() -> Path:
    """The model: 170 MB of weights are read for a token, some 10 ms of work."""
    name = f"bench-{N_LAYER}x{N_EMBD}x{N_FF}x{N_VOCAB}.gguf"
    file = user_paths().cache_dir / "bench" / name
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        half = file.with_suffix(".part")
        write_llama(half, n_layer=N_LAYER, n_embd=N_EMBD, n_ff=N_FF, n_vocab=N_VOCAB)
        half.replace(file)
    return file


def tokens_per_s(url: str, prompt: object = PROMPT, n_tokens: int = TOKENS) -> float:
    """Of one answer, by llama-server's own timings."""
    body = {
        "prompt": prompt,
        "n_predict": n_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(
        url + "/completion", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(asked, timeout=300) as answer:
        return float(json.load(answer)["timings"]["predicted_per_second"])


@contextmanager
def before(build: Path, way: str, worker: int, stats: Path) -> Iterator[int]:
    """The port by which a worker is reached one way."""
    with ExitStack() as stack:
        if way == "relay":
            relay = running(build / "dllm-relay", worker, stats)
            yield stack.enter_context(relay).port
        elif way == "copy":
            port = free_port()
            argv = [str(build / "bench/copy_relay"), str(port), str(worker)]
            start(stack, argv, stats.with_suffix(".log"))
            wait_for_port(port)
            yield port
        else:
            yield worker


@contextmanager
def reached(version: str, build: Path, way: str, work: Path) -> Iterator[str]:
    """A cluster whose workers are reached one way; its address."""
    work.mkdir()
    with ExitStack() as stack:
        ports = []
        for index in range(WORKERS):
            worker = start_worker(stack, engine(version), work / f"worker{index}.log")
            way_there = before(build, way, worker, work / f"w{index}.sock")
            ports.append(stack.enter_context(way_there))
        log = work / "server.log"
        yield stack.enter_context(server(version, model(), ports, log))


def one_round(
    version: str, build: Path, order: random.Random, turns: int
) -> list[Mapping[str, float]]:
    """Turns of one set of clusters: tokens per second of each way."""
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = {
            way: stack.enter_context(reached(version, build, way, work / way))
            for way in shuffled(order)
        }
        for url in urls.values():
            tokens_per_s(url)
        return [
            {way: tokens_per_s(urls[way]) for way in shuffled(order)}
            for _ in range(turns)
        ]


def shuffled(order: random.Random) -> list[str]:
    return order.sample(WAYS, len(WAYS))


def likely(values: Sequence[float]) -> tuple[float, float]:
    ranked = sorted(values)
    low = max(int((len(ranked) - 1.96 * math.sqrt(len(ranked))) / 2), 0)
    return ranked[low], ranked[-1 - low]


def compared(
    turns: Sequence[Mapping[str, float]], way: str, other: str
) -> tuple[float, float]:
    """The median ratio of two ways' speeds, printed; where it lies with certainty."""
    ratios = [turn[way] / turn[other] for turn in turns]
    middle = statistics.median(ratios)
    low, high = likely(ratios)
    print(
        f"{way:5} / {other:6}: {middle:.3f}, median of {len(ratios)} turns, "
        f"with 95 % certainty {low:.3f}…{high:.3f} (middle half {quartiles(ratios)})"
    )
    return low, high


def main() -> None:
    """Measure, print; the exit status is the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--turns", type=int, default=15, help="of a round")
    parser.add_argument("--engine", default="7.0.0", help="protocol version")
    options = parser.parse_args()
    order = random.Random(1)
    print(f"load average before: {os.getloadavg()[0]:.1f}")
    turns = [
        turn
        for _ in range(options.rounds)
        for turn in one_round(
            options.engine, options.build.resolve(), order, options.turns
        )
    ]
    for way in WAYS:
        speed = statistics.median(turn[way] for turn in turns)
        print(f"{way:6} {speed:7.1f} tok/s, {1000 / speed:.1f} ms a token")
    compared(turns, "copy", "direct")
    compared(turns, "relay", "copy")
    low, high = compared(turns, "relay", "direct")
    verdict = "missed" if high < TARGET_RATIO else "met"
    unsure = low < TARGET_RATIO <= high
    print(f"target {TARGET_RATIO}: {'too noisy to tell' if unsure else verdict}")
    sys.exit(high < TARGET_RATIO)


if __name__ == "__main__":
    main()
