"""A controller is replaced, lost and found again; what serves does not notice."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys

import psutil
import pytest

from backends.state import API_VERSION
from tests.engine.conftest import User, wait_for

pytestmark = pytest.mark.engine

EARLIER_RELEASE = """
import sys
import backends.controller.__main__ as controller
controller.API_VERSION = int(sys.argv[1])
sys.exit(controller.main())
"""


def serving_pids(user: User) -> dict[str, int]:
    return {p["name"]: p["pid"] for p in user.status()["processes"]}


def test_an_upgrade_replaces_the_controller_and_nothing_else(
    user: User, demo_model: str
) -> None:
    user.run("up", "--model", demo_model, "--workers", "2", "--detach")
    before = serving_pids(user)
    first = psutil.Process(user.status()["controller_pid"])
    first.send_signal(signal.SIGTERM)
    wait_for(lambda: not first.is_running(), "the first controller gone")
    earlier = subprocess.Popen(
        [sys.executable, "-c", EARLIER_RELEASE, str(API_VERSION - 1)], env=user.env
    )
    listening = user.home / "run" / "dllm-tui" / "controller.sock"
    wait_for(listening.exists, "the earlier release listening")
    # A command replaces it; who only asks it does not.
    status = user.json("status")
    assert earlier.wait(10) == 0
    assert status["controller_pid"] not in (first.pid, earlier.pid)
    user.wait_serving()
    assert serving_pids(user) == before
    user.stop()


def test_stop_ends_processes_whose_directories_are_lost(
    user: User, demo_model: str
) -> None:
    user.run("up", "--model", demo_model, "--workers", "1", "--detach")
    controller = psutil.Process(user.status()["controller_pid"])
    controller.kill()
    wait_for(lambda: not controller.is_running(), "the controller gone")
    shutil.rmtree(user.home / "state" / "dllm-tui" / "run")
    doctor = user.start("doctor")
    out, _ = doctor.communicate(timeout=60)
    assert "nobody looks after these" in out
    assert "Orphan(" not in out
    assert "worker1" in user.run("stop").stderr
    user.assert_nothing_left()


def test_of_two_launches_at_once_one_is_told(user: User, demo_model: str) -> None:
    splits = ("6,7", "5,8")
    ups = [
        user.start("up", "--model", demo_model, "--split", split, "--detach")
        for split in splits
    ]
    ends = [(up.communicate(timeout=120)[1], up.returncode) for up in ups]
    assert sorted(code for _, code in ends) == [0, 1], ends
    (lost,) = [said for said, code in ends if code]
    assert "Serving" not in lost
    assert demo_model in lost
    won = next(s for s, (_, code) in zip(splits, ends, strict=True) if not code)
    layers = user.status()["measured"]["layers"]
    assert ",".join(str(last - first + 1) for _, first, last in layers) == won
    user.stop()


def test_doctor_counts_a_taken_port_of_ones_own_choice(user: User) -> None:
    """The exit code says so too."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = user.home / "config" / "dllm-tui"
        config.mkdir(parents=True)
        port = taken.getsockname()[1]
        (config / "config.toml").write_text(f"api_port = {port}\n")
        said = user.run("doctor", code=1).stdout
    assert f"✗ api port     {port} is taken by" in said
