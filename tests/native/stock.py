"""Stock llama-server and rpc-servers of the engines in the cache, for tests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.native.relaying import Relay, running

START_S = 60.0
SHORT_PROMPT = [1, *range(10, 49)]
ENGINES = ["7.0.0", pytest.param("8.0.0", marks=pytest.mark.trial)]
"""Where the first shows the same, `make test-all` alone tries the second."""
on_both_engines = pytest.mark.parametrize("version", ENGINES)


def engine(version: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    found = sorted((cache / "dllm-tui" / "engines").glob(f"{version}-*/llama-server"))
    if not found:
        pytest.skip(f"no engine of protocol {version}: make engines")
    return found[-1].parent


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass
class Cluster:
    url: str
    relays: list[Relay] = field(default_factory=list)

    def complete(self, prompt: list[int], count: int) -> list[int]:
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


def wait_until_up(
    url: str, process: subprocess.Popen[bytes], patience_s: float = START_S
) -> None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        assert process.poll() is None, "llama-server ended"
        try:
            with urllib.request.urlopen(url + "/health", timeout=5):
                return
        except OSError:
            time.sleep(0.05)
    pytest.fail("llama-server did not start")


def start_worker(stack: ExitStack, directory: Path, log: Path, *options: str) -> int:
    port = free_port()
    program = str(directory / "ggml-rpc-server")
    argv = [program, "-H", "127.0.0.1", "-p", str(port), "-t", "1", *options]
    start(stack, argv, log)
    wait_for_port(port)
    return port


def wait_for_port(port: int) -> None:
    """Until an rpc-server listens; it shrugs off a connection that says nothing."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    pytest.fail("rpc-server did not start")


@contextmanager
def server(
    version: str,
    model: Path,
    workers: Sequence[int | str],
    log: Path,
    *options: str,
    patience_s: float = START_S,
) -> Iterator[str]:
    """A llama-server over workers, ports of this machine or endpoints; its address."""
    with ExitStack() as stack:
        port = free_port()
        argv = [str(engine(version) / "llama-server"), "-m", str(model), "-c", "2048"]
        ends = [f"127.0.0.1:{w}" if isinstance(w, int) else w for w in workers]
        argv += ["--rpc", ",".join(ends)]
        argv += ["--device", ",".join(f"RPC{i}" for i in range(len(ends)))]
        argv += ["-ngl", "99", "-fit", "off", "-np", "1", "-t", "1", "--no-repack"]
        process = start(stack, [*argv, "--port", str(port), *options], log)
        url = f"http://127.0.0.1:{port}"
        wait_until_up(url, process, patience_s)
        yield url


@contextmanager
def cluster(
    version: str,
    model: Path,
    workers: int,
    work: Path,
    relay: Path | None,
    *options: str,
) -> Iterator[Cluster]:
    """A running cluster, with relays when given the program."""
    with ExitStack() as stack:
        relays: list[Relay] = []
        ports = []
        for index in range(workers):
            log = work / f"worker{index}.log"
            port = start_worker(stack, engine(version), log)
            if relay:
                stats = work / f"w{index}.sock"
                relays.append(stack.enter_context(running(relay, port, stats)))
                port = relays[-1].port
            ports.append(port)
        log = work / "server.log"
        url = stack.enter_context(server(version, model, ports, log, *options))
        yield Cluster(url, relays)
