"""Run a command on a machine that stands still now and then, as shared ones do.

``python -m tools.trials.stalled -- pytest tests/unit``: everything that the command
starts is frozen at random moments, clocks go on. A test that then fails, or passes
wrongly, has a race, or its subject has one. Needs root, and Linux's
cgroups.

A login at a real sshd is lost now and then, which is no fault of ours: the kernel
goes on with a frozen call by ``restart_syscall``, for which sshd's sandbox kills it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


class Freezer:
    """A group of processes that can be frozen, by cgroups of either version.

    Raises:
        OSError: we may not, or there are no such groups here.
    """

    def __init__(self) -> None:
        found = [CGROUPS, CGROUPS / "unified"]
        second = next(filter(_is_second, found), None)
        self._folder = (second or CGROUPS / "freezer") / f"dllm-stalled-{os.getpid()}"
        self._folder.mkdir()
        self._file = "cgroup.freeze" if second else "freezer.state"
        self._words = ("0", "1") if second else ("THAWED", "FROZEN")

    def enter(self) -> None:
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def freeze(self, *, on: bool) -> None:
        (self._folder / self._file).write_text(self._words[on])

    def close(self) -> None:
        self.freeze(on=False)
        # It stays while something of the command runs.
        with contextlib.suppress(OSError):
            self._folder.rmdir()


def _is_second(folder: Path) -> bool:
    return (folder / "cgroup.controllers").exists()


def run(command: list[str], still_s: tuple[float, float], every_s: float) -> int:
    """The exit code of a command that is frozen about so often, for such a time."""
    stalls = 0
    with contextlib.closing(Freezer()) as group:
        process = subprocess.Popen(command, preexec_fn=group.enter)
        while process.poll() is None:
            time.sleep(random.expovariate(1 / every_s))
            group.freeze(on=True)
            time.sleep(random.uniform(*still_s))
            group.freeze(on=False)
            stalls += 1
    sys.stderr.write(f"stood still {stalls} times\n")
    return process.returncode


def main() -> int:
    """Run what is behind ``--``."""
    parser = argparse.ArgumentParser(prog="tools.trials.stalled", description=__doc__)
    parser.add_argument("--least-s", type=float, default=0.3)
    parser.add_argument("--most-s", type=float, default=1.8)
    parser.add_argument("--every-s", type=float, default=6.0)
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        # What is frozen must go on, also after us.
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        return run(asked.command, (asked.least_s, asked.most_s), asked.every_s)
    except (OSError, subprocess.SubprocessError) as error:
        parser.exit(1, f"Nothing can be frozen here, which needs root: {error}\n")


if __name__ == "__main__":
    sys.exit(main())
