"""``dllm-relay head`` between stock llama-server and rpc-servers, both protocols."""

from __future__ import annotations

import itertools
import json
import os
import socket
import statistics
import subprocess
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.engine.synthetic import write_llama
from tests.native.relaying import Relay, Stats, running

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.engine

START_S = 60.0
ATTEMPTS = 6
N_EMBD, N_VOCAB = 128, 512
KV_STEP = 256
SHORT_PROMPT = [1, *range(10, 49)]
LONG_PROMPT = [1, *(5 + i % 200 for i in range(1499))]
# Fixed bytes of protocol 7.0 per token and stage; see the protocol page, §3.
SETS_BYTES, GET_BYTES, OUT_IDS_BYTES = 1570 + 20, 321, 318
RECOMPUTE_BYTES = {"7.0.0": 13, "8.0.0": 21}
# The 8.0.0 engine feeds its first stage three tensors more: inp_mixed_embd,
# inp_mixed_slots and the embedding mixed from them.
FIRST_STAGE_BYTES = {"7.0.0": 0, "8.0.0": 2 * (314 + 4 * N_EMBD) + 322}
PARTS = ("head_ns", "up_ns", "compute_ns", "down_ns", "wait_ns")


def engine(version: str) -> Path:
    """The directory of an engine in the cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    found = sorted((cache / "dllm-tui" / "engines").glob(f"{version}-*/llama-server"))
    if not found:
        pytest.skip(f"no engine of protocol {version}: make engines")
    return found[-1].parent


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 12 layers that takes prompts of 1500 tokens."""
    file = tmp_path_factory.mktemp("model") / "small.gguf"
    write_llama(file, n_layer=12, n_embd=N_EMBD, n_ff=256)
    return file


def free_port() -> int:
    """A port nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass
class Cluster:
    """A llama-server with its workers."""

    url: str
    relays: list[Relay] = field(default_factory=list)

    def complete(self, prompt: list[int], count: int) -> list[int]:
        """Greedy tokens."""
        body = {
            "prompt": prompt,
            "n_predict": count,
            "temperature": 0,
            "ignore_eos": True,
            "return_tokens": True,
            "cache_prompt": False,
        }
        asked = urllib.request.Request(
            self.url + "/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return list(json.load(answer)["tokens"])


def start(stack: ExitStack, argv: list[str], log: Path) -> subprocess.Popen[bytes]:
    """A process that is gone when the stack is; SIGPIPE stays ignored in it."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            restore_signals=False,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        )
    stack.callback(process.wait, 30)
    stack.callback(process.terminate)
    return process


def wait_until_up(url: str, process: subprocess.Popen[bytes]) -> None:
    """Until the server answers."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        assert process.poll() is None, "llama-server ended"
        try:
            with urllib.request.urlopen(url + "/health", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    pytest.fail("llama-server did not start")


def start_worker(stack: ExitStack, directory: Path, log: Path) -> int:
    """An rpc-server; its port."""
    port = free_port()
    program = str(directory / "ggml-rpc-server")
    start(stack, [program, "-H", "127.0.0.1", "-p", str(port), "-t", "1"], log)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return port
        except OSError:
            time.sleep(0.02)
    pytest.fail("rpc-server did not start")


@contextmanager
def cluster(
    version: str, model: Path, workers: int, work: Path, relay: Path | None
) -> Iterator[Cluster]:
    """A running cluster, with relays when given the program."""
    directory = engine(version)
    with ExitStack() as stack:
        made = Cluster(f"http://127.0.0.1:{free_port()}")
        ports = []
        for index in range(workers):
            port = start_worker(stack, directory, work / f"worker{index}.log")
            if relay:
                stats = work / f"w{index}.sock"
                made.relays.append(stack.enter_context(running(relay, port, stats)))
                port = made.relays[-1].port
            ports.append(port)
        argv = [str(directory / "llama-server"), "-m", str(model), "-c", "2048"]
        argv += ["--rpc", ",".join(f"127.0.0.1:{port}" for port in ports)]
        argv += ["--device", ",".join(f"RPC{i}" for i in range(workers))]
        argv += ["-ngl", "99", "-fit", "off", "-np", "1", "-t", "1", "--no-repack"]
        argv += ["--port", made.url.rsplit(":", 1)[1]]
        server = start(stack, argv, work / "server.log")
        wait_until_up(made.url, server)
        yield made


def passes_of(stats: Stats, wanted: int) -> list[dict[str, Any]]:
    """At least so many generated passes."""
    passes: list[dict[str, Any]] = []
    while sum(each["generated"] for each in passes) < wanted:
        passes += stats.until(lambda line: line["type"] == "passes")["passes"]
    return passes


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("version", ["7.0.0", "8.0.0"])
def test_the_same_tokens_with_and_without(
    relay: Path, model: Path, tmp_path: Path, version: str, workers: int
) -> None:
    answers = []
    for program in (None, relay):
        with cluster(version, model, workers, tmp_path, program) as running_cluster:
            answers.append(
                [
                    running_cluster.complete(SHORT_PROMPT, 40),
                    running_cluster.complete(LONG_PROMPT, 40),
                ]
            )
            for each in running_cluster.relays:
                with each.stats() as stats:
                    seen = stats.snapshot(connected=True)
                assert seen["mode"] == "metered"
                assert seen["protocol"] == version
                assert seen["plain_connections"] == seen["refused"] == 0
    assert len(answers[0][0]) == len(answers[0][1]) == 40
    assert answers[0] == answers[1]


@pytest.mark.parametrize("version", ["7.0.0", "8.0.0"])
def test_what_a_token_costs(
    relay: Path, model: Path, tmp_path: Path, version: str
) -> None:
    """One trip per worker, the bytes of the formula, parts that add up."""
    with cluster(version, model, 2, tmp_path, relay) as running_cluster:
        readers = [each.stats() for each in running_cluster.relays]
        running_cluster.complete(SHORT_PROMPT, 64)
        passes = [passes_of(reader, 60) for reader in readers]
        snapshots = []
        for each in running_cluster.relays:
            with each.stats() as stats:
                snapshots.append(stats.snapshot(connected=True))
    up = SETS_BYTES + RECOMPUTE_BYTES[version] + GET_BYTES + 4 * N_EMBD + 2 * KV_STEP
    formula = [
        (up + FIRST_STAGE_BYTES[version], 8 + 4 * N_EMBD),
        (up + OUT_IDS_BYTES, 8 + 4 * N_VOCAB),
    ]
    for wanted, seen, snapshot in zip(formula, passes, snapshots, strict=True):
        generated = [each for each in seen if each["generated"]]
        assert {each["tokens"] for each in generated} == {1}
        assert {each["round_trips"] for each in generated} == {1}
        # The first one carries its graph.
        steady = {(each["bytes_up"], each["bytes_down"]) for each in generated[1:]}
        assert steady == {wanted}
        assert snapshot["generated"]["round_trips_per_token"] == 1
        for before, after in itertools.pairwise(seen):
            wall = after["last_reply_ns"] - before["last_reply_ns"]
            assert sum(after[part] for part in PARTS) == wall
    for reader in readers:
        reader.socket.close()


def set_lab(target: Cluster, lab: dict[str, float] | None) -> None:
    """The same lab on every link, in force when this returns."""
    for each in target.relays:
        with each.stats() as stats:
            stats.send({"lab": lab})
            stats.until(
                lambda line: (
                    line["type"] == "snapshot" and bool(line["lab"]) == bool(lab)
                )
            )


def medians_ms(target: Cluster) -> tuple[float, list[float]]:
    """Of a token: its wall time, and the link's part at each worker."""
    readers = [each.stats() for each in target.relays]
    target.complete(SHORT_PROMPT, 40)
    walls, links = [], []
    for reader in readers:
        passes = [each for each in passes_of(reader, 38) if each["generated"]][1:]
        walls += [sum(each[part] for part in PARTS) / 1e6 for each in passes]
        link = [(each["up_ns"] + each["down_ns"]) / 1e6 for each in passes]
        links.append(statistics.median(link))
        reader.socket.close()
    return statistics.median(walls), links


def test_the_lab_adds_what_it_says(relay: Path, model: Path, tmp_path: Path) -> None:
    """10 ms each way on two links: 40 ms a token."""
    added: list[float] = []
    with cluster("7.0.0", model, 2, tmp_path, relay) as running_cluster:
        medians_ms(running_cluster)
        while len(added) < ATTEMPTS and min(added, default=99) > 42:
            without, _ = medians_ms(running_cluster)
            set_lab(running_cluster, {"latency_ms": 10})
            with_lab, links = medians_ms(running_cluster)
            set_lab(running_cluster, None)
            assert links == pytest.approx([20, 20], abs=0.5)
            added.append(with_lab - without)
    # A busy machine adds to the sleeping engine's own time, never takes away; delaying
    # each of the seven messages of a token would make it 280 ms.
    assert 38 <= min(added) < 140
