"""A process that something holds is told at once, and again when it goes on."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from tests.engine.conftest import User

pytestmark = pytest.mark.engine

TOLD_S = 2.0
IDLE_S = 10.0
IDLE_PART_MAX = 0.02


def state(user: User, name: str) -> str:
    (process,) = [p for p in user.status()["processes"] if p["name"] == name]
    return str(process["state"])


@pytest.mark.parametrize(
    "name", ["worker1", "relay-worker1", "llama-server", "api-gateway"]
)
def test_each_is_told_within_two_seconds(
    user: User, demo_model: str, name: str
) -> None:
    user.run("up", "--model", demo_model, "--workers", "1", "--detach")
    pid = user.pid(name) or 0
    for number, told in (
        (signal.SIGSTOP, "not responding"),
        (signal.SIGCONT, "running"),
    ):
        os.kill(pid, number)
        began = time.monotonic()
        while state(user, name) != told:
            assert time.monotonic() - began < TOLD_S, told
            time.sleep(0.05)
    events = user.run("events").stdout
    assert f"{name} does not respond" in events
    assert f"{name} responds again" in events
    user.stop()


def test_looking_costs_an_idle_controller_next_to_nothing(
    user: User, demo_model: str
) -> None:
    user.run("up", "--model", demo_model, "--workers", "2", "--detach")
    controller = psutil.Process(user.status()["controller_pid"])
    busy = [controller, *controller.children(recursive=True)]
    time.sleep(3)
    before = [sum(p.cpu_times()[:2]) for p in busy]
    time.sleep(IDLE_S)
    used_s = sum(sum(p.cpu_times()[:2]) for p in busy) - sum(before)
    print("part of a processor", used_s / IDLE_S)
    assert used_s / IDLE_S < IDLE_PART_MAX
