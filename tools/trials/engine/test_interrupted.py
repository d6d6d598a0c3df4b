"""A launch that is interrupted or killed at any moment leaves nothing running."""

from __future__ import annotations

import os
import random
import signal
import time

import psutil
import pytest

from tests.engine.conftest import User, somebody, wait_for
from tests.kit.processes import is_agent, words_of
from tests.native.stock import free_port

TRIES = int(os.environ.get("DLLM_TEST_INTERRUPTS", "10"))
pytestmark = [
    pytest.mark.trial,
    pytest.mark.engine,
    pytest.mark.timeout(300 + 60 * TRIES),
]

SEED = int(os.environ.get("DLLM_TEST_SEED", random.randrange(1 << 32)))
POLITE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOMENTS_S = (0.2, 1.6)
"""From before a controller runs until after the first answer."""
AGAIN_S = 0.2
"""A second signal comes within this time, if one comes."""


def is_looked_after(process: psutil.Process) -> bool:
    return not is_agent(process) and "backends.controller" not in words_of(process)


def hears() -> None:
    for number in POLITE:
        signal.signal(number, signal.SIG_DFL)


def has_a_port_of_its_own(user: User) -> None:
    folder = user.home / "config/dllm-tui"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f"api_port = {free_port()}\n")


def interrupted(user: User, chance: random.Random, command: tuple[str, ...]) -> None:
    """One command that is broken off at some moment leaves nothing."""
    detached = "--detach" in command
    number = chance.choice(POLITE if detached else (*POLITE, signal.SIGKILL))
    moment_s, again = chance.uniform(*MOMENTS_S), chance.random() < 0.25
    told = f"{' '.join(command)} {number.name} after {moment_s:.2f} s, seed {SEED}"
    print(told, again)
    process = user.start(*command, preexec_fn=hears)
    time.sleep(moment_s)
    process.send_signal(number)
    if again:
        time.sleep(chance.uniform(0, AGAIN_S))
        process.send_signal(chance.choice(POLITE))
    out, err = process.communicate(timeout=120)
    print(process.returncode, out, err, sep="\n")
    # Of what comes before its own first line Python tells in its own way.
    assert "Traceback" not in err or not (user.home / "state").exists()
    if detached and "Serving" in out + err:
        return
    # A controller that is asked nothing any more ends by itself, much later.
    killed = number is signal.SIGKILL

    def left() -> list[psutil.Process]:
        return [p for p in user.processes() if is_looked_after(p) or not killed]

    try:
        wait_for(lambda: not left(), f"nothing is left of {told}")
    except pytest.fail.Exception:
        print("left:", *left(), sep="\n")
        raise


def test_nothing_is_left_at_whatever_moment(demo_model: str) -> None:
    chance = random.Random(SEED)
    up = ("up", "--model", demo_model, "--workers", "2")
    demo = ("demo", "--bundled", "--headless", "--prompt", "hello")
    for _ in range(TRIES):
        with somebody() as user:
            has_a_port_of_its_own(user)
            try:
                interrupted(user, chance, chance.choice([up, demo, (*up, "--detach")]))
            finally:
                user.tell_log()
