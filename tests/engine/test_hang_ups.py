"""A terminal that is closed: what lives by it ends, what does not stays."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.engine.conftest import User, wait_for
from tests.engine.test_kills import engine_processes, serve

pytestmark = pytest.mark.engine


def test_hang_up_ends_a_foreground_cluster(user: User, demo_model: str) -> None:
    """The terminal of ``up`` is closed: what it held ends with it."""
    master, slave = pty.openpty()
    subprocess.Popen(
        ["dllm-tui", "up", "--model", demo_model, "--workers", "2"],
        env=user.env,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(slave)
    wait_for(lambda: engine_processes(user), "the engine started")
    os.close(master)
    user.assert_nothing_left()


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _take_terminal_ignoring_hang_ups() -> None:
    _take_terminal()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@pytest.mark.parametrize("prepare", [_take_terminal, _take_terminal_ignoring_hang_ups])
def test_hang_up_of_the_console_closes_nothing(
    user: User, demo_model: str, prepare: Callable[[], None]
) -> None:
    """Closing the terminal of the console ends it, and leaves the cluster serving."""
    serve(user, demo_model)
    server = user.pid("llama-server")
    master, slave = pty.openpty()
    console = subprocess.Popen(
        ["dllm-tui"],
        env={**user.env, "TERM": "xterm-256color"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=prepare,
    )
    os.close(slave)
    drawn = b""
    while b"serving" not in drawn:
        drawn += os.read(master, 65536)
    os.close(master)
    console.wait(timeout=30)
    assert user.pid("llama-server") == server
    assert user.status()["state"] == "serving"
