"""Terminal, console and controller killed at any moment: plan and split stay."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tests.engine.conftest import User, wait_for
from tests.engine.terminal import Terminal
from tests.kit.processes import with_word

pytestmark = [pytest.mark.trial, pytest.mark.engine, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("DLLM_TEST_KILLS", "4"))
KINDS = ("terminal", "SIGTERM", "SIGKILL", "controller")
BURST_MAX = 3
DELAY_MAX_S = 0.3
LAYERS = 13
"""Of the demo model, the output counted."""


def console_of(user: User, *args: str) -> Terminal:
    console = Terminal(user, *args)
    console.wait_for(b"12+1 layers")
    return console


def end(console: Terminal, kind: str) -> None:
    """Kill a console that way."""
    if kind == "terminal":
        console.close()
    else:
        console.process.send_signal(getattr(signal, kind))
    console.process.wait(20)
    console.close()


class Memory:
    def __init__(self, user: User) -> None:
        self._file = user.home / "state/dllm-tui/console.json"

    def plan(self) -> dict[str, Any] | None:
        with suppress(FileNotFoundError):
            memory = json.loads(self._file.read_bytes())
            plan: dict[str, Any] | None = memory.get("plans", {}).get("default")
            return plan
        return None

    def counts(self) -> tuple[int, ...]:
        plan = self.plan()
        shares = plan["split"]["shares"] if plan else ()
        return tuple(share["layers"] for share in shares)

    def worker1(self) -> int:
        return self.counts()[-2]

    def is_at(self, layers: int) -> bool:
        return self.worker1() == layers


def controller_pid(user: User) -> int | None:
    found = with_word(user.processes(), "backends.controller")
    return found[0].pid if found else None


def moves(rng: random.Random, at: int) -> tuple[str, int]:
    count = rng.randint(1, BURST_MAX)
    right = at + count < LAYERS and (at - count < 1 or rng.random() < 0.5)
    return ("+" if right else "-") * count, at + (count if right else -count)


@pytest.fixture
def memory(user: User) -> Memory:
    return Memory(user)


def test_a_killed_console_leaves_plan_and_split(
    user: User, memory: Memory, demo_model: str
) -> None:
    """After each kill the split is as it was left, or some keys of the burst further.

    The next burst begins there, so what the file says is what the console takes up.
    """
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    console = console_of(user, "--model", demo_model)
    wait_for(memory.counts, "a plan was written")
    for number in range(KILLS):
        keys, low = moves(rng, memory.worker1())
        console.type(keys)
        wait_for(partial(memory.is_at, low), f"the split after {keys}")
        keys, high = moves(rng, low)
        console.type(keys)
        time.sleep(rng.uniform(0, DELAY_MAX_S))
        kind = KINDS[number % len(KINDS)]
        console = strike(user, console, kind)
        plan, (head, one, two) = memory.plan(), memory.counts()
        assert min(low, high) <= one <= max(low, high), (number, kind, low, high, one)
        assert (head, one + two) == (0, LAYERS)
        assert plan is not None
        assert plan["model"] == demo_model
    end(console, "SIGTERM")


def strike(user: User, console: Terminal, kind: str) -> Terminal:
    """Kill something; the console that is there afterwards."""
    if kind == "controller":
        pid = controller_pid(user)
        assert pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: controller_pid(user) not in {pid, None}, "another controller")
        return console
    end(console, kind)
    return console_of(user)
