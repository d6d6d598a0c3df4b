"""Terminal, console and controller killed at any moment: plan and split stay."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import random
import select
import signal
import struct
import subprocess
import termios
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from tests.engine.conftest import User, wait_for
from tests.kit.processes import with_word

pytestmark = [pytest.mark.trial, pytest.mark.engine, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("DLLM_TEST_KILLS", "4"))
KINDS = ("terminal", "SIGTERM", "SIGKILL", "controller")
BURST_MAX = 3
DELAY_MAX_S = 0.3
LAYERS = 13
"""Of the demo model, the output counted."""


class Console:
    """The console in a terminal of its own, whose output is read and thrown away."""

    def __init__(self, user: User, *args: str) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        env = user.env | {"TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            ["dllm-tui", *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            cwd=user.home,
            # The terminal is its controlling one: it hears when that goes.
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(slave)
        self._drawn = bytearray()
        self._closed = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_for(lambda: b"12+1 layers" in self._drawn, "the split is drawn")

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def end(self, kind: str) -> None:
        """Be killed that way."""
        if kind == "terminal":
            self._close()
        else:
            self.process.send_signal(getattr(signal, kind))
        self.process.wait(20)
        self._close()

    def _close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self._reader.join()
            os.close(self.master)

    def _read(self) -> None:
        with suppress(OSError, ValueError):
            while not self._closed.is_set():
                if select.select([self.master], [], [], 0.05)[0]:
                    self._drawn += os.read(self.master, 65536)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


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
    console = Console(user, "--model", demo_model)
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
    console.end("SIGTERM")


def strike(user: User, console: Console, kind: str) -> Console:
    """Kill something; the console that is there afterwards."""
    if kind == "controller":
        pid = controller_pid(user)
        assert pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: controller_pid(user) not in {pid, None}, "another controller")
        return console
    console.end(kind)
    return Console(user)
