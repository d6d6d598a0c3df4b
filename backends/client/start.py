"""Finding the user's controller, or starting one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from backends.client.http import request
from backends.controller.lock import lock_holder
from backends.errors import ControllerError
from backends.paths import Paths, checked_socket, make_private
from backends.state import ControllerInfo

START_TIMEOUT_S = 60.0
PRESENT_TIMEOUT_S = 20.0
"""For a controller that is there already: to listen, or to end."""
POLL_S = 0.02
IF_IDLE = "/v1/shutdown?only_if_idle=1&streams=0"


class RunningController(NamedTuple):
    socket: Path
    started: bool
    """True if it was started for us."""


async def answers(socket: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(str(socket))
    except OSError:
        return False
    writer.close()
    return True


async def find_running(paths: Paths) -> Path | None:
    """The socket of the running controller, even if it is elsewhere.

    One that has lost its socket makes another within a second; that is waited for.
    """
    socket = checked_socket(paths)
    if await answers(socket):
        return socket
    holder = lock_holder(paths.lock)
    return None if holder is None else await _listening(paths, socket, holder)


async def ensure_running(paths: Paths) -> RunningController:
    """See that a controller listens, starting one if none runs."""
    if socket := await find_running(paths):
        return RunningController(socket, started=False)
    make_private(paths.runtime_dir)
    make_private(paths.state_dir)
    socket = checked_socket(paths)
    try:
        process = _spawn(paths)
    except OSError as error:
        raise ControllerError(
            f"The controller cannot start: {error.filename} ({error.strerror})",
            f"Let {paths.state_dir} be written, and give it room.",
        ) from error
    try:
        return await _up(paths, socket, process)
    except asyncio.CancelledError:
        await _given_up(socket, process)
        raise


async def _given_up(socket: Path, process: subprocess.Popen[bytes]) -> None:
    try:
        async with request(socket, "POST", IF_IDLE) as response:
            await response.read()
    except OSError:
        process.terminate()
    except asyncio.CancelledError:
        # A second signal: nothing else would end it.
        process.terminate()
        raise


async def _up(
    paths: Paths, socket: Path, process: subprocess.Popen[bytes]
) -> RunningController:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not await answers(socket):
        # Losing the race for the lock is fine: the winner answers soon.
        if process.poll() not in (None, 0, 1) or time.monotonic() > deadline:
            raise _not_started(paths, process)
        if process.poll() == 1:
            for _ in range(50):
                if winner := await find_running(paths):
                    return RunningController(winner, started=False)
                await asyncio.sleep(POLL_S)
            raise _not_started(paths, process)
        await asyncio.sleep(POLL_S)
    return RunningController(socket, started=not await _ended_as_late(paths, process))


async def _ended_as_late(paths: Paths, process: subprocess.Popen[bytes]) -> bool:
    """True if another was quicker: ours ends, lest it takes over when that one dies."""
    holder = lock_holder(paths.lock)
    if holder is None or holder.pid == process.pid:
        return False
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(process.wait, PRESENT_TIMEOUT_S)
    return True


async def _listening(paths: Paths, socket: Path, holder: ControllerInfo) -> Path | None:
    """The socket of the lock's holder, as soon as it listens; None once it is gone.

    Its runtime directory may be another than ours: a session's of its own.
    """
    places = [socket, *([Path(holder.socket)] if holder.socket else [])]
    deadline = time.monotonic() + PRESENT_TIMEOUT_S
    while lock_holder(paths.lock) is not None:
        for place in places:
            if await answers(place):
                return place
        if time.monotonic() > deadline:
            raise ControllerError(
                f"The controller (pid {holder.pid}) runs, but does not listen on "
                f"{places[-1]}",
                wake_or_end(holder.pid),
            )
        await asyncio.sleep(POLL_S)
    return None


def is_busy(paths: Paths) -> bool:
    """True if the controller runs; one that is silent then has no turn to speak."""
    import psutil

    halted = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE)
    holder = lock_holder(paths.lock)
    try:
        return holder is not None and psutil.Process(holder.pid).status() not in halted
    except psutil.Error:
        return False


def wake_or_end(pid: int | None) -> str:
    if pid is None:
        return "Try again; if it stays silent, end the process dllm-tui started."
    return (
        f"kill -CONT {pid} wakes it if it was stopped; kill -9 {pid} ends it, and the "
        "next command starts another: what serves goes on."
    )


def _spawn(paths: Paths) -> subprocess.Popen[bytes]:
    with (paths.state_dir / "controller.err").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "backends.controller"],
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            cwd="/",
            start_new_session=True,
            env=_environment(),
        )


def _environment() -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k != "DLLM_PROCESS_DIR"}
    if "PYTHONPATH" in env:
        parts = env["PYTHONPATH"].split(os.pathsep)
        env["PYTHONPATH"] = os.pathsep.join(os.path.abspath(p) for p in parts if p)
    return env


async def dismiss(paths: Paths, pid: int) -> None:
    """Tell that controller to leave, which leaves running what it runs; wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    await wait_gone(paths, pid)


async def wait_gone(paths: Paths, pid: int) -> None:
    """Until that controller process has ended; bounded.

    Its lock goes with its last breath; its process number may stay in the process
    table until somebody reaps it.
    """
    deadline = time.monotonic() + PRESENT_TIMEOUT_S
    while (holder := lock_holder(paths.lock)) and holder.pid == pid:
        if time.monotonic() > deadline:
            raise ControllerError(
                f"The controller (pid {pid}) does not end",
                f"See {paths.controller_log}; kill -9 {pid} if it hangs.",
            )
        await asyncio.sleep(POLL_S)


def _not_started(paths: Paths, process: subprocess.Popen[bytes]) -> ControllerError:
    """With what it said before it ended, else where to look."""
    what = "The controller did not start"
    if process.poll() is None:
        process.kill()
        hint = f"It was silent for {START_TIMEOUT_S:g} s; see {paths.controller_log}."
        return ControllerError(what, hint)
    text = (paths.state_dir / "controller.err").read_text(errors="replace").strip()
    last = text.splitlines()[-1] if text else f"See {paths.controller_log}."
    return ControllerError(what, last)
