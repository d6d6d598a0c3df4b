"""The program under test: ``$DLLM_RELAY``, else the installed one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.paths import relay_binary
from tests.native.relaying import Relay, Worker, running


@pytest.fixture(scope="session")
def relay() -> Path:
    return relay_binary()


@pytest.fixture(scope="session")
def with_tls(relay: Path) -> None:
    """Skip what needs TLS where the program was built without it."""
    argv = [str(relay), "worker", "--worker", "127.0.0.1:1", "--name", "w"]
    # Nobody may listen there without a key, and without TLS no key helps.
    argv += ["--listen", "0.0.0.0:0"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    if "built without TLS" in done.stderr:
        pytest.skip("dllm-relay was built without OpenSSL's headers")


@pytest.fixture
def worker() -> Iterator[Worker]:
    with Worker() as listening:
        yield listening


@pytest.fixture
def head(relay: Path, worker: Worker, tmp_path: Path) -> Iterator[Relay]:
    with running(relay, worker.port, tmp_path / "w.sock") as started:
        yield started
