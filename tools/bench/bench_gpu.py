"""Predicted beside measured speed and memory, where a GPU takes part.

Run it with ``make bench-gpu``. ``DLLM_TEST_GPU_ENGINE`` names the folder of an engine,
and ``DLLM_TEST_GPU`` its device (``CUDA0``). The GPU is the head's own and, by a stock
rpc-server, also a worker's. Each split is predicted, runs, and is measured; what one
run tells is known to the next prediction. The model has random weights, 2.4 GB of Q8_0.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from backends.units import format_percent
from tests.engine.conftest import User
from tests.gpu.engine import DEVICE, directory, environment
from tests.kit.models import write_llama
from tests.native.stock import start_worker
from tools.bench.bench_decode import tokens_per_s

GPU = f"local/{DEVICE}"
ONE_CPU = ("--workers", "1")
CASES: tuple[tuple[str, ...], ...] = (
    ("--split", f"{GPU}=33"),
    ("--split", "box/RPC=33"),
    ("--split", f"box/RPC=16,{GPU}=17"),
    ("--split", f"box/RPC=6,{GPU}=27"),
    (*ONE_CPU, "--split", f"worker1/CPU=4,{GPU}=29"),
    (*ONE_CPU, "--split", f"worker1/CPU=12,{GPU}=21"),
    (*ONE_CPU, "--split", f"box/RPC=20,worker1/CPU=2,{GPU}=11"),
    (*ONE_CPU, "--peer", "box", "--best"),
)
PROMPT = "The quick brown fox jumps over the lazy dog. " * 8
TOKENS = 96
ANSWERS = 3
SETTLE_S = 3.0
"""The speed is read twice a second; then the run is in the store."""
KINDS = ("model_bytes", "kv_bytes", "compute_bytes")


def main() -> None:
    engine = directory()
    if engine is None:
        raise SystemExit("No engine: set DLLM_TEST_GPU_ENGINE, or run make test-gpu")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (home / "run").mkdir(mode=0o700)
        model = home / "model.gguf"
        write_llama(
            model,
            n_layer=32,
            n_embd=2048,
            n_head=16,
            n_ff=8192,
            n_vocab=32_000,
            n_ctx=8192,
            quantized=True,
            whole=True,
            repeating=True,
        )
        user = User(home)
        user.env |= {**environment(), "DLLM_ENGINE_DIR": str(engine)}
        port = start_worker(stack, engine, home / "worker.log", "-d", DEVICE)
        user.run("peers", "add", "box", "--bare", f"127.0.0.1:{port}")
        stack.callback(user.run, "down")
        stack.callback(user.run, "stop")
        print("| layers | predicted tok/s | band | measured | error | memory |")
        print("|---|--:|---|--:|--:|---|")
        for options in CASES:
            print(row(user, str(model), options), flush=True)


def row(user: User, model: str, options: tuple[str, ...]) -> str:
    plan = user.json("plan", "--model", model, *options)
    found = user.json("up", "--model", model, "--detach", "--replace", *options)
    url = user.status()["api_url"].removesuffix("/v1")
    _, *rates = (tokens_per_s(url, PROMPT, TOKENS) for _ in range(1 + ANSWERS))
    measured = median(rates)
    time.sleep(SETTLE_S)
    layers = ", ".join(f"{d} {last - at + 1}" for d, at, last in plan["layers"])
    planned = mib(plan["memory"])
    held = mib(found["measured"]["buffers"])
    most = max(abs(held.get(d, 0) - planned[d]) for d in planned)
    low, high = plan["band"]
    error = format_percent(abs(plan["tok_per_s"] / measured - 1))
    return (
        f"| {layers} | ~{plan['tok_per_s']:.0f} | {low:.0f} to {high:.0f} | "
        f"{measured:.0f} | {error} | within {most} MiB of {sum(held.values())} |"
    )


def mib(memory: list[dict[str, Any]]) -> dict[str, int]:
    return {one["device"]: sum(one[kind] for kind in KINDS) >> 20 for one in memory}


if __name__ == "__main__":
    main()
