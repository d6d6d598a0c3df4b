"""Finding the user's controller, or starting one."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from backends.errors import ControllerError
from backends.paths import checked_socket, make_private

if TYPE_CHECKING:
    from pathlib import Path

    from backends.paths import Paths

START_TIMEOUT_S = 20.0
POLL_S = 0.02


async def answers(socket: Path) -> bool:
    """Whether somebody listens on the socket."""
    try:
        _, writer = await asyncio.open_unix_connection(str(socket))
    except OSError:
        return False
    writer.close()
    return True


async def ensure_running(paths: Paths) -> None:
    """See that a controller listens, starting one if none does.

    Raises:
        ControllerError: it does not come up; the text says why.
    """
    socket = checked_socket(paths)
    if await answers(socket):
        return
    make_private(paths.runtime_dir)
    make_private(paths.state_dir)
    process = _spawn(paths)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not await answers(socket):
        # Losing the race for the lock is fine: the winner answers soon.
        if process.poll() not in (None, 0, 1) or time.monotonic() > deadline:
            raise ControllerError(
                "The controller did not start", _last_words(paths, process)
            )
        if process.poll() == 1 and not await _answers_soon(socket):
            raise ControllerError(
                "The controller did not start", _last_words(paths, process)
            )
        await asyncio.sleep(POLL_S)


async def _answers_soon(socket: Path) -> bool:
    for _ in range(50):
        if await answers(socket):
            return True
        await asyncio.sleep(POLL_S)
    return False


def _spawn(paths: Paths) -> subprocess.Popen[bytes]:
    """Start a controller in a session of its own, its words going to a file."""
    with (paths.state_dir / "controller.err").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "backends.controller"],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            cwd="/",
            start_new_session=True,
            env=_absolute_python_path(),
        )


def _absolute_python_path() -> dict[str, str]:
    """The environment, with ``PYTHONPATH`` still true in another directory."""
    env = dict(os.environ)
    if "PYTHONPATH" in env:
        parts = env["PYTHONPATH"].split(os.pathsep)
        env["PYTHONPATH"] = os.pathsep.join(os.path.abspath(p) for p in parts if p)
    return env


async def wait_gone(paths: Paths, pid: int) -> None:
    """Until that controller process has ended; bounded.

    Raises:
        ControllerError: it is still there.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while _holds_lock(paths, pid):
        if time.monotonic() > deadline:
            raise ControllerError(
                f"The controller (pid {pid}) does not end",
                f"See {paths.controller_log}; kill it if it hangs.",
            )
        await asyncio.sleep(POLL_S)


def _holds_lock(paths: Paths, pid: int) -> bool:
    """Whether that controller still holds the lock, which goes with its last breath.

    Its process number may stay in the process table until somebody reaps it.
    """
    try:
        with paths.lock.open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return paths.lock.read_text().strip() == str(pid)


def _last_words(paths: Paths, process: subprocess.Popen[bytes]) -> str:
    """What it said before it ended, else where to look."""
    if process.poll() is None:
        process.kill()
        return (
            f"It did not answer in {START_TIMEOUT_S:.0f} s; see {paths.controller_log}."
        )
    text = (paths.state_dir / "controller.err").read_text(errors="replace").strip()
    return text.splitlines()[-1] if text else f"See {paths.controller_log}."
