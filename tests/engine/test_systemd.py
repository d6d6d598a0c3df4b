"""The service under a real systemd: the manager of one user, with /run of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import User, wait_for
from tests.kit.processes import kill_until_none
from tests.native.stock import free_port

SYSTEMD = Path("/lib/systemd/systemd")
BOOTED = "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system"
"""It runs only where it is told that the system was booted with systemd."""
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        os.geteuid() != 0 or not SYSTEMD.exists() or not shutil.which("systemctl"),
        reason="needs root and systemd",
    ),
]


@contextmanager
def session(user: User) -> Iterator[None]:
    """A login of this user, until the machine loses its power."""
    command = f"{BOOTED} && exec {SYSTEMD} --user"
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", command],
        env=user.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(lambda: process.poll() is not None or version(user), "systemd answers")
        if process.poll() is not None:
            pytest.skip("no systemd can be started here")
        yield
    finally:
        kill_until_none(user.processes)
        process.wait()


def version(user: User) -> str:
    return systemctl(user, "show", "--property=Version")


def systemctl(user: User, *words: str) -> str:
    done = subprocess.run(
        ["systemctl", "--user", *words],
        env=user.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def main_pid(user: User) -> int:
    return int(
        systemctl(user, "show", "dllm-tui", "--property=MainPID", "--value") or 0
    )


def other_pid(user: User, earlier: int = 0) -> int:
    wait_for(lambda: main_pid(user) not in (0, earlier), "the service runs")
    return main_pid(user)


def pids(status: Any) -> set[int]:
    return {process["pid"] for process in status["processes"]}


def test_a_service_keeps_the_goal_through_kills_and_a_loss_of_power(
    user: User, demo_model: str
) -> None:
    with session(user):
        # It waits for its turn, and goes on with what it finds.
        port = ("--port", str(free_port()))
        user.up(demo_model, "--workers", "1", *port)
        begun = user.status()
        user.run("service", "install")
        first = other_pid(user)
        os.kill(begun["controller_pid"], signal.SIGTERM)
        wait_for(lambda: user.look()["controller_pid"] == first, "its turn")
        wait_for(lambda: user.look()["state"] == "serving", "adopted")
        assert pids(user.look()) == pids(begun)
        told = user.json("service", "status")
        assert (told["running"], told["pid"]) == (True, first)
        before = user.status()
        os.kill(first, signal.SIGKILL)
        second = other_pid(user, first)
        wait_for(lambda: user.look()["controller_pid"] == second, "taken over")
        wait_for(lambda: user.look()["state"] == "serving", "adopted")
        assert pids(user.look()) == pids(before)
    with session(user):
        third = other_pid(user)
        wait_for(lambda: user.look()["state"] == "serving", "serving after the boot")
        assert user.look()["controller_pid"] == third
        assert user.status()["api_url"] == before["api_url"]
        assert user.ask("What is a split?").startswith("A split")
        # The end of the cluster ends this controller too: the manager starts another.
        user.run("stop")
        other_pid(user, third)
        assert user.status()["state"] == "idle"
        user.run("service", "remove")
        assert user.json("service", "status")["installed"] is False
        assert main_pid(user) == 0
