"""``dllm-relay probe``: the direct way between two machines, measured by both."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.native.stock import free_port

TOKEN = "5" * 64


def start(relay: Path, *args: str, token: str = TOKEN) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(relay), "probe", *args],
        env={**os.environ, "DLLM_PROBE_TOKEN": token},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_both_sides_meet_in_any_order(relay: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    caller = start(relay, "--connect", address, "--rate-ms", "50")
    listener = start(relay, "--listen", address)
    out, err = caller.communicate(timeout=20)
    assert caller.returncode == 0, err
    told = json.loads(out)
    assert told["rtt_us"] >= 0
    assert told["bytes_per_s"] > 1 << 20
    assert listener.wait(20) == 0
    listener.communicate()


def test_without_a_rate_only_the_round_trip_is_told(relay: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    listener = start(relay, "--listen", address)
    caller = start(relay, "--connect", address)
    assert set(json.loads(caller.communicate(timeout=20)[0])) == {"rtt_us"}
    assert listener.wait(20) == 0
    listener.communicate()


def test_a_stranger_is_not_served(relay: Path) -> None:
    port = free_port()
    listener = start(relay, "--listen", f"127.0.0.1:{port}")
    stranger = start(relay, "--connect", f"127.0.0.1:{port}", token="x" * 64)
    _, err = stranger.communicate(timeout=20)
    assert stranger.returncode == 1
    assert "did not answer" in err
    friend = start(relay, "--connect", f"127.0.0.1:{port}")
    friend.communicate(timeout=20)
    assert friend.returncode == 0, "the next one is heard"
    assert listener.wait(20) == 0
    listener.communicate()


def test_nobody_there_is_told(relay: Path) -> None:
    port = free_port()
    caller = start(relay, "--connect", f"127.0.0.1:{port}")
    _, err = caller.communicate(timeout=20)
    assert caller.returncode == 1
    assert f"127.0.0.1:{port}" in err
    assert "refused" in err


def test_a_taken_port_is_told(relay: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        listener = start(relay, "--listen", address)
        _, err = listener.communicate(timeout=20)
    assert listener.returncode == 1
    assert f"cannot listen on {address}" in err


@pytest.mark.parametrize(
    ("args", "token", "part"),
    [
        ((), TOKEN, "needs --listen ADDRESS:PORT or --connect ADDRESS:PORT"),
        (("--connect", "127.0.0.1:1"), "short", "32 to 128 characters"),
        (("--connect", "127.0.0.1:1", "--rate-ms", "9999"), TOKEN, "0 to 2000"),
        (("--listen", "unix:/x"), TOKEN, "needs ADDRESS:PORT"),
    ],
)
def test_wrong_usage(relay: Path, args: tuple[str, ...], token: str, part: str) -> None:
    done = start(relay, *args, token=token)
    _, err = done.communicate(timeout=20)
    assert done.returncode == 2
    assert part in err
