"""The command line of the service, run as systemd and launchd run it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from backends.controller.lock import lock_holder
from tests.engine.conftest import User, wait_for
from tests.kit.processes import kill_until_none
from tests.native.stock import free_port

pytestmark = pytest.mark.engine


@contextmanager
def service(user: User) -> Iterator[subprocess.Popen[bytes]]:
    """A process of what the unit says, with no more than it says."""
    unit = user.json("service", "install", "--dry-run")["text"]
    lines = [line.partition("=") for line in unit.splitlines()]
    (command,) = [shlex.split(value) for name, _, value in lines if name == "ExecStart"]
    told = [shlex.split(value)[0] for name, _, value in lines if name == "Environment"]
    # The manager gives a service these.
    own = {"HOME": os.environ["HOME"], "XDG_RUNTIME_DIR": str(user.home / "run")}
    process = subprocess.Popen(
        command,
        env=own | dict(one.split("=", 1) for one in told),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def is_the_controller(user: User, process: subprocess.Popen[bytes]) -> bool:
    holder = lock_holder(user.home / "state" / "dllm-tui" / "controller.lock")
    return holder is not None and holder.pid == process.pid


@pytest.mark.trial
def test_goal_outlives_controller_and_the_machine(user: User, demo_model: str) -> None:
    port = str(free_port())
    user.run("up", "--model", demo_model, "--workers", "1", "--port", port, "--detach")
    before = user.status()
    with service(user) as first:
        # It waits for its turn, and goes on with what it finds.
        os.kill(before["controller_pid"], signal.SIGTERM)
        wait_for(lambda: is_the_controller(user, first), "taken over")
        user.wait_serving()
        (server,) = [p for p in before["processes"] if p["name"] == "llama-server"]
        assert user.pid("llama-server") == server["pid"]
        # As if the power had gone.
        kill_until_none(user.processes)
        first.wait()
    with service(user) as second:
        wait_for(lambda: is_the_controller(user, second), "begun again")
        user.wait_serving()
        assert user.run("chat", "What is a split?").stdout.startswith("A split")
        assert user.status()["api_url"] == before["api_url"]
        # The end of the cluster ends this controller too: the manager starts another.
        user.run("stop")
        second.wait(60)
    with service(user) as third:
        wait_for(lambda: is_the_controller(user, third), "there for the next goal")
        assert user.status()["state"] == "idle"
    user.assert_nothing_left()
