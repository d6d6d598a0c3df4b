"""The head computes too: every arrangement of a GPU, on a real device.

The configurations A, B and C are those of the wider README this project answers to: a
big head with 82 % of the layers, a small one with 15 %, and one without a device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import User, wait_for
from tests.gpu.conftest import listed
from tests.gpu.engine import DEVICE
from tests.native.stock import start_worker

ASK = "Who are you?"
GPU = f"local/{DEVICE}"
N_PARTS = 13
"""Twelve layers and the output of the bundled model."""


@pytest.fixture
def gpu_user(user: User, gpu_engine: Path) -> User:
    user.env["DLLM_ENGINE_DIR"] = str(gpu_engine)
    user.env["GGML_VK_VISIBLE_DEVICES"] = "0"
    return user


@pytest.fixture
def server(
    request: pytest.FixtureRequest, gpu_engine: Path, tmp_path: Path
) -> Iterator[int]:
    """The port of a stock rpc-server with the devices of the parameter."""
    with ExitStack() as stack:
        log = tmp_path / "worker.log"
        yield start_worker(stack, gpu_engine, log, "-d", request.param)


def up(user: User, model: str, *options: str) -> Any:
    found = user.json("up", "--model", model, "--detach", "--replace", *options)
    assert found["measured"]["mismatches"] == []
    return found


def layers(found: Any) -> dict[str, int]:
    return {device: last - first + 1 for device, first, last in measured(found)}


def measured(found: Any) -> list[Any]:
    return list(found["measured"]["layers"])


def model_bytes(found: Any) -> dict[str, int]:
    return {b["device"]: b["model_bytes"] for b in found["measured"]["buffers"]}


def test_the_engine_lists_the_device(gpu_engine: Path) -> None:
    line = next(t for t in listed(gpu_engine).splitlines() if DEVICE in t)
    assert re.search(rf"{DEVICE}: .+ \(\d+ MiB, \d+ MiB free\)", line)


def test_the_heads_gpu_takes_all_where_alone(gpu_user: User, demo_model: str) -> None:
    found = up(gpu_user, demo_model)
    assert layers(found) == {GPU: N_PARTS}
    assert "layer" in gpu_user.ask("What is a split?").lower()
    names = [p["name"] for p in gpu_user.status()["processes"]]
    assert names == ["api-gateway", "llama-server"]


def test_head_gpu_and_cpu_worker(gpu_user: User, demo_model: str) -> None:
    found = up(gpu_user, demo_model, "--workers", "1")
    assert set(layers(found)) == {"worker1/CPU", GPU}
    assert measured(found)[-1][0] == GPU
    assert gpu_user.ask(ASK)


@pytest.mark.parametrize("server", [DEVICE], indirect=True)
def test_head_gpu_and_gpu_worker(gpu_user: User, demo_model: str, server: int) -> None:
    gpu_user.run("peers", "add", "box", "--bare", f"127.0.0.1:{server}")
    found = up(gpu_user, demo_model, "--split", f"box/RPC=5,{GPU}=8")
    assert measured(found) == [["box/RPC", 0, 4], [GPU, 5, 12]]
    assert all(model_bytes(found)[device] for device in ("box/RPC", GPU))
    assert gpu_user.ask(ASK)


@pytest.mark.parametrize("server", [f"CPU,{DEVICE}"], indirect=True)
def test_devices_of_one_server(gpu_user: User, demo_model: str, server: int) -> None:
    """CPU and GPU of one rpc-server, the head's GPU, and a worker after them."""
    gpu_user.run("peers", "add", "box", "--bare", f"127.0.0.1:{server}")
    split = f"box/RPC1=4,worker1/CPU=3,{GPU}=6"
    found = up(gpu_user, demo_model, "--split", split)
    assert layers(found) == {"box/RPC1": 4, "worker1/CPU": 3, GPU: 6}
    assert "box/RPC0" not in model_bytes(found)
    found = up(gpu_user, demo_model, "--split", "box/RPC0=6,box/RPC1=7")
    assert layers(found) == {"box/RPC0": 6, "box/RPC1": 7}
    assert gpu_user.ask(ASK)


def test_a_machine_with_a_gpu_gets_no_cpu_workers_unasked(
    gpu_user: User, demo_model: str
) -> None:
    shown = gpu_user.json("plan", "--model", demo_model)
    assert shown["plan"]["workers"] == []
    devices = [share["device"] for share in shown["plan"]["split"]["shares"]]
    assert devices == ["local/CPU", GPU]
    without = gpu_user.json("plan", "--model", demo_model, "--exclude", GPU)
    assert [w["name"] for w in without["plan"]["workers"]] == ["worker1", "worker2"]


def test_configuration_a_a_big_head(gpu_user: User, big_model: str) -> None:
    """82 to 18, the output on the head: the worker sends hidden states only."""
    found = up(gpu_user, big_model, "--split", f"worker1/CPU=2,{GPU}=11")
    assert layers(found) == {"worker1/CPU": 2, GPU: 11}
    assert measured(found)[-1] == [GPU, 2, 12]
    share = model_bytes(found)
    assert 0.78 < share[GPU] / (share[GPU] + share["worker1/CPU"]) < 0.90
    hidden, logits = sizes(gpu_user, big_model)
    assert down_per_token(gpu_user) < hidden + logits / 4


def test_configuration_b_a_small_head(gpu_user: User, big_model: str) -> None:
    """15 to 85: the head's own memory stays that of its share, not of the model."""
    found = up(gpu_user, big_model, "--split", f"worker1/CPU=11,{GPU}=2")
    assert layers(found) == {"worker1/CPU": 11, GPU: 2}
    share = model_bytes(found)
    assert share["worker1/CPU"] > 4 * share[GPU]
    whole = share["worker1/CPU"] + share[GPU]
    planned = gpu_user.json(
        "plan", "--model", big_model, "--split", f"worker1/CPU=11,{GPU}=2"
    )
    head = sum(_total(m) for m in planned["memory"] if m["device"].startswith("local/"))
    buffers = [
        b for b in found["measured"]["buffers"] if b["device"].startswith("local/")
    ]
    # A GPU's buffers for computing are as large for a small model.
    assert sum(b["model_bytes"] + b["kv_bytes"] for b in buffers) < whole / 2
    assert abs(sum(map(_total, buffers)) - head) < max(0.05 * head, 32 << 20)


def test_configuration_c_head_without_a_device(gpu_user: User, big_model: str) -> None:
    """Possible; what it costs on the wire is what was said before the launch."""
    gpu = ("--exclude", GPU, "--workers", "2")
    found = up(gpu_user, big_model, *gpu)
    assert set(layers(found)) == {"worker1/CPU", "worker2/CPU"}
    assert measured(found)[-1][0] == "worker2/CPU"
    hidden, logits = sizes(gpu_user, big_model)
    assert down_per_token(gpu_user) >= hidden + logits


def sizes(user: User, model: str) -> tuple[int, int]:
    info = user.json("inspect", model)
    return 4 * info["n_embd"], 4 * info["n_vocab"]


def down_per_token(user: User) -> float:
    """Bytes the workers send for a token, as the relays count them."""
    user.ask(ASK, max_tokens=24)
    links = wait_for(
        lambda: [k for k in user.status()["links"] if k["bytes_down_per_token"]],
        "the relays have counted tokens",
    )
    return float(sum(link["bytes_down_per_token"] for link in links))


def _total(memory: dict[str, Any]) -> int:
    return int(memory["model_bytes"] + memory["kv_bytes"] + memory["compute_bytes"])
