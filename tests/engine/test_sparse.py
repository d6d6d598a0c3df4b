"""A head with a sparse file and workers with theirs answer as the whole model does.

``DLLM_TEST_ANSWERS=all`` tries both engines; else the newer one.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from backends.models.header import read_header
from backends.models.sparse_copy import plan_sparse, write_sparse
from backends.paths import relay_binary
from tests.engine.conftest import User, wait_for
from tests.kit.models import write_llama
from tests.native.pairing import FarEnd
from tests.native.relaying import Relay, running
from tests.native.stock import (
    SHORT_PROMPT,
    Cluster,
    engine,
    free_port,
    server,
    start,
    start_worker,
)

pytestmark = pytest.mark.engine

EVERYTHING = os.environ.get("DLLM_TEST_ANSWERS") == "all"
VERSIONS = ["7.0.0", "8.0.0"] if EVERYTHING else ["8.0.0"]
N_LAYER = 6
N_TOKENS = 24
SPLIT = ("-ngl", "5", "-ts", "3,2")
"""Two layers of the head, then three, then the last and the output."""
KEPT = {"head": "0-1", "w0": "2-4", "w1": "5,output"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "whole.gguf"
    write_llama(file, n_layer=N_LAYER, n_embd=256, n_ff=512, n_vocab=24_000)
    return file


def sparse(model: Path, keep: str, out: Path) -> Path:
    asyncio.run(write_sparse(plan_sparse(model, keep, out)))
    return out


@pytest.mark.parametrize("version", VERSIONS)
def test_no_machine_needs_whole_file(model: Path, tmp_path: Path, version: str) -> None:
    files = {name: sparse(model, kept, tmp_path / name) for name, kept in KEPT.items()}
    with ExitStack() as stack:
        ports = [
            start_worker(stack, engine(version), tmp_path / f"rpc{i}.log")
            for i in (0, 1)
        ]
        with server(version, model, ports, tmp_path / "direct.log", *SPLIT) as url:
            direct = Cluster(url).complete(SHORT_PROMPT, N_TOKENS)
        relays = []
        for i, port in enumerate(ports):
            beside = ("--model", str(files[f"w{i}"]))
            far = FarEnd(relay_binary(), port, tmp_path / f"far{i}.log", *beside)
            stack.enter_context(far)
            near = running(
                *(relay_binary(), far.endpoint, tmp_path / f"w{i}.sock"),
                *("--sparse", str(files["head"])),
                way="--pair-dial",
            )
            relays.append(stack.enter_context(near))
        near_ports = [relay.port for relay in relays]
        log = tmp_path / "sparse.log"
        with server(version, files["head"], near_ports, log, *SPLIT) as url:
            assert Cluster(url).complete(SHORT_PROMPT, N_TOKENS) == direct
        # The other way round nobody has what is asked for: the load ends, and says why.
        argv = [str(engine(version) / "llama-server"), "-m", str(files["head"])]
        ends = [f"127.0.0.1:{port}" for port in reversed(near_ports)]
        argv += ["--rpc", ",".join(ends), "--device", "RPC0,RPC1", "-fit", "off"]
        argv += [*SPLIT, "-c", "256", "--port", str(free_port())]
        ended = start(stack, argv, tmp_path / "refused.log")
        assert ended.wait(60) != 0
        assert wait_for(lambda: refusals(relays), "why")


def refusals(relays: list[Relay]) -> list[str]:
    lines = [line for relay in relays for line in relay.log.read_text().splitlines()]
    return [line for line in lines if "is a hole in the sparse model file here" in line]


SPOILT = "blk.3.attn_q.weight"


def test_a_sparse_head_is_refused_before_the_start_or_ended_with_why_or_serves(
    user: User, model: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source.gguf"
    source.write_bytes(model.read_bytes())
    head = sparse(source, "0-1", tmp_path / "head.gguf")
    split = "local/CPU=2,worker1/CPU=3,worker2/CPU=2"
    up = ("up", "--model", str(head), "--workers", "2", "--split", split, "--detach")
    said = user.run(*up, code=1).stderr
    assert "head.gguf is sparse: it lacks layers 2–4, and worker1 cannot have" in said
    assert "no network" in said
    assert user.status()["processes"] == []
    flip_a_bit(source)
    said = user.run(*up, "--relay", "pair", code=1).stderr
    assert f"worker1: {SPOILT} holds other bytes on the worker's machine" in said
    flip_a_bit(source)
    status = user.json(*up, "--relay", "pair")
    assert status["measured"]["mismatches"] == []
    assert [link["weight_bytes_sent"] for link in user.status()["links"]] == [0, 0]


def flip_a_bit(file: Path) -> None:
    """Of one tensor; the second time it is as it was."""
    header = read_header(file)
    (tensor,) = (each for each in header.tensors if each.name == SPOILT)
    at = header.data_offset + tensor.offset
    with file.open("r+b") as changed:
        changed.seek(at)
        byte = changed.read(1)
        changed.seek(at)
        changed.write(bytes([byte[0] ^ 1]))
