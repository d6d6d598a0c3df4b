"""The command line of ``dllm-relay`` itself."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.native.relaying import (
    DEVICE_COUNT,
    HEAD,
    HELLO_REPLY,
    HELLO_REQUEST,
    WORKER,
    receive,
    reply,
    request,
    run,
)

ROOT = Path(__file__).resolve().parents[2]


def test_version_is_the_project_s(relay: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    done = run(relay, "--version")
    assert (done.returncode, done.stdout) == (0, f"dllm-relay {project['version']}\n")


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (("--help",), "usage: dllm-relay COMMAND"),
        (("-h",), "usage: dllm-relay COMMAND"),
        (("probe", "--help"), "usage: dllm-relay probe"),
    ],
)
def test_help(relay: Path, args: tuple[str, ...], part: str) -> None:
    done = run(relay, *args)
    assert done.returncode == 0
    assert part in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ((), "a command is missing"),
        (("dance",), "unknown command 'dance'"),
        (("agent", "--dance", "1"), "'--dance'"),
        (("head", "--worker", "unix:"), "needs ADDRESS:PORT or unix:PATH, not"),
        (("head", "--worker", "::1:80"), "needs ADDRESS:PORT or unix:PATH, not"),
        (("head", "--listen", "unix:/x"), "--listen needs ADDRESS:PORT"),
        (("head", "--gone-after", "0"), "--gone-after needs 1 to 3600 seconds"),
        (HEAD, "head needs --worker"),
        (WORKER, "worker needs --listen"),
        (("worker", "--listen", "unix:/x", "--name", "w"), "worker needs --worker"),
        ((*HEAD, "--worker", "unix:/x", "--pair-dial", "unix:/y"), "exclude each"),
        (
            (*HEAD[:2], "0.0.0.0:0", "--name", "w", "--worker", "unix:/x"),
            "whoever reaches it has the worker, without a key; listen at 127.0.0.1",
        ),
        ((*HEAD, "--pair-dial", "here"), "needs ADDRESS:PORT or unix:PATH"),
        ((*HEAD, "--pair-dial", "unix:/x", "--id", "5"), "--id needs 32 hexadecimal"),
        (("stub", "--device", "CUDA0"), "NAME:TOTAL[:FREE]"),
    ],
)
def test_wrong_usage_is_told(relay: Path, args: tuple[str, ...], part: str) -> None:
    done = run(relay, *args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("dllm-relay: ")
    assert part in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_output_that_cannot_be_written_is_a_failure(relay: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [str(relay), "--version"], stdout=full, timeout=20, check=False
        )
    assert done.returncode == 1


# --- ``dllm-relay stub`` as a process: what it answers, and when it ends ---

GIB = 1 << 30
ALLOC_BUFFER, GET_DEVICE_MEMORY = 0, 11


@contextmanager
def stub(relay: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A running stub worker and its port."""
    child = subprocess.Popen(
        [relay, "stub", "--device", "CUDA0:24GiB:20GiB", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        told = json.loads(child.stdout.readline())
        assert told["pid"] == child.pid
        yield child, told["port"]
    finally:
        child.kill()
        child.communicate()


@contextmanager
def greeted(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        client.sendall(HELLO_REQUEST)
        assert receive(client, len(HELLO_REPLY)) == HELLO_REPLY
        yield client


def test_it_answers_several_clients_at_once(relay: Path) -> None:
    with (
        stub(relay, "--device", "CPU:1GiB") as (_, port),
        greeted(port) as one,
        greeted(port) as other,
    ):
        for client in (other, one):
            client.sendall(request(DEVICE_COUNT))
            assert receive(client, 12) == reply(struct.pack("<I", 2))
        one.sendall(request(GET_DEVICE_MEMORY, struct.pack("<I", 0)))
        assert receive(one, 24) == reply(struct.pack("<QQ", 20 * GIB, 24 * GIB))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(relay: Path, number: signal.Signals) -> None:
    with stub(relay) as (child, port), greeted(port):
        child.send_signal(number)
        assert child.wait(10) == 0


def test_it_ends_with_its_parents_pipe(relay: Path) -> None:
    with stub(relay) as (child, port), greeted(port):
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(10) == 0
        child.stdin = None


def test_it_lives_without_a_pipe(relay: Path) -> None:
    child = subprocess.Popen(
        [relay, "stub", "--device", "CPU:1GiB"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        with greeted(json.loads(child.stdout.readline())["port"]):
            assert child.poll() is None
    finally:
        child.kill()
        child.communicate()
