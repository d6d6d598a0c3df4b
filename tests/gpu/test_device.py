"""The GPU is a device like any other: listed, loaded onto, computing."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.gpu.conftest import listed
from tests.gpu.engine import DEVICE
from tests.native.stock import Cluster, free_port, start, start_worker, wait_until_up

PROMPT = list(range(20, 40))
TOKENS = 12


def test_the_engine_lists_the_device(gpu_engine: Path) -> None:
    line = next(t for t in listed(gpu_engine).splitlines() if DEVICE in t)
    assert re.search(rf"{DEVICE}: .+ \(\d+ MiB, \d+ MiB free\)", line)


def start_server(
    stack: ExitStack, engine: Path, log: Path, model: str, *options: str
) -> Cluster:
    port = free_port()
    argv = [str(engine / "llama-server"), "--model", model, "--host", "127.0.0.1"]
    argv += ["--port", str(port), "--ctx-size", "512", "--n-gpu-layers", "99"]
    server = start(stack, [*argv, "-lv", "4", *options], log)
    cluster = Cluster(f"http://127.0.0.1:{port}")
    wait_until_up(cluster.url, server)
    return cluster


def model_mib(log: str, device: str) -> float:
    found = re.findall(rf"{device}\S* model buffer size = +([\d.]+) MiB", log)
    return sum(map(float, found))


@pytest.mark.parametrize(
    ("worker", "devices", "counts"),
    [
        ("", DEVICE, "1"),
        ("CPU", f"{DEVICE},RPC0", "8,5"),
        ("CPU", f"RPC0,{DEVICE}", "5,8"),
        (DEVICE, f"{DEVICE},RPC0", "7,6"),
    ],
    ids=["head", "head-then-worker", "worker-then-head", "both-gpus"],
)
def test_layers_on_the_gpu_are_computed_there(
    gpu_engine: Path,
    demo_model: str,
    tmp_path: Path,
    worker: str,
    devices: str,
    counts: str,
) -> None:
    log = tmp_path / "server.log"
    options = ["--device", devices, "--tensor-split", counts]
    with ExitStack() as stack:
        if worker:
            # Before --device, which knows only devices that were told of.
            place = tmp_path / "worker.log"
            port = start_worker(stack, gpu_engine, place, "-d", worker)
            options = ["--rpc", f"127.0.0.1:{port}", *options]
        cluster = start_server(stack, gpu_engine, log, demo_model, *options)
        assert len(cluster.complete(PROMPT, TOKENS)) == TOKENS
    text = log.read_text(errors="replace")
    for device in devices.split(","):
        assert model_mib(text, device) > 0.5
