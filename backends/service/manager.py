"""Asking systemd, or launchd, to look after the service."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from backends.client.start import dismiss
from backends.controller.lock import lock_holder
from backends.errors import DllmError, disk_errors
from backends.paths import Paths
from backends.printable import last_line
from backends.service.unit import (
    CONTROLLER,
    Service,
    label_of,
    launchd_agent,
    systemd_unit,
    unit_of,
)
from backends.state.base import Value
from backends.writing import write_private

ANSWER_S = 30.0
LINGER = "loginctl enable-linger"


class ServiceState(Value, frozen=True, kw_only=True):
    manager: str
    file: str
    installed: bool
    running: bool = False
    pid: int | None = None
    lingers: bool | None = None
    """True if it outlives logouts and begins at boot; None where nobody can tell."""


class Systemd:
    """The user's services; installing and removing are fine where that is so already.

    A ``DllmError`` says why the manager refuses.
    """

    name = "systemd"

    def __init__(self, name: str = CONTROLLER) -> None:
        self._unit = unit_of(name)

    @property
    def file(self) -> Path:
        """Below ``$XDG_CONFIG_HOME``, where the manager looks too."""
        named = os.environ.get("XDG_CONFIG_HOME", "")
        base = Path(named) if named.startswith("/") else Path.home() / ".config"
        return base / "systemd" / "user" / self._unit

    text = staticmethod(systemd_unit)

    def install(self, service: Service) -> None:
        """Write the unit, and have it started now and with the user's manager."""
        done = _run("systemctl", "--user", "show", "--property=Version")
        if done.returncode:
            raise DllmError(
                "There is no systemd user session here "
                f"({_said(done) or 'systemctl does not answer'})",
                "Log in as this user (su and sudo give no session of one's own), or "
                "have what starts programs here run the command of --dry-run.",
            )
        changed = _write(self.file, self.text(service))
        _ask("systemctl", "--user", "daemon-reload")
        _ask("systemctl", "--user", "enable", "--now", self._unit)
        if changed:
            # The clusters go on meanwhile.
            _ask("systemctl", "--user", "restart", self._unit)

    def remove(self) -> None:
        """End and disable it; the unit is removed also where nobody answers."""
        with contextlib.suppress(DllmError):
            _ask("systemctl", "--user", "disable", "--now", self._unit)
        _remove(self.file)
        with contextlib.suppress(DllmError):
            _ask("systemctl", "--user", "daemon-reload")

    def state(self) -> ServiceState:
        shown = _properties("systemctl", "--user", "show", self._unit)
        pid = int(shown.get("MainPID") or 0)
        return ServiceState(
            manager=self.name,
            file=str(self.file),
            installed=self.file.exists(),
            running=shown.get("ActiveState") == "active",
            pid=pid or None,
            lingers=_lingers(),
        )


class Launchd:
    name = "launchd"

    def __init__(self, name: str = CONTROLLER) -> None:
        self._label = label_of(name)

    @property
    def file(self) -> Path:
        return Path.home() / "Library" / "LaunchAgents" / f"{self._label}.plist"

    text = staticmethod(launchd_agent)

    def install(self, service: Service) -> None:
        """Write the agent, and have it started now and at every login."""
        if _write(self.file, self.text(service)):
            with contextlib.suppress(DllmError):
                _ask("launchctl", "bootout", self._target)
        if not self.state().running:
            _ask("launchctl", "bootstrap", self._domain, str(self.file))

    def remove(self) -> None:
        with contextlib.suppress(DllmError):
            _ask("launchctl", "bootout", self._target)
        _remove(self.file)

    def state(self) -> ServiceState:
        done = _run("launchctl", "print", self._target)
        words = dict(
            line.strip().split(" = ", 1)
            for line in done.stdout.splitlines()
            if " = " in line
        )
        pid = words.get("pid", "")
        return ServiceState(
            manager=self.name,
            file=str(self.file),
            installed=self.file.exists(),
            running=pid.isdecimal(),
            pid=int(pid) if pid.isdecimal() else None,
        )

    @property
    def _domain(self) -> str:
        return f"gui/{os.getuid()}"

    @property
    def _target(self) -> str:
        return f"{self._domain}/{self._label}"


Manager = Systemd | Launchd


def manager(name: str = CONTROLLER) -> Manager:
    return Launchd(name) if sys.platform == "darwin" else Systemd(name)


def _lingers() -> bool | None:
    shown = _properties("loginctl", "show-user", getpass.getuser())
    return {"yes": True, "no": False}.get(shown.get("Linger", ""))


def _properties(*argv: str) -> dict[str, str]:
    done = _run(*argv)
    pairs = (line.partition("=") for line in done.stdout.splitlines())
    return {name: value for name, _, value in pairs}


def _ask(*argv: str) -> None:
    done = _run(*argv)
    if done.returncode:
        why = _said(done) or f"exit code {done.returncode}"
        raise DllmError(f"{' '.join(argv)} failed: {why}")


def _run(*argv: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_S,
            check=False,
        )
    except FileNotFoundError:
        return _failed(argv, f"{argv[0]} is not installed")
    except (OSError, subprocess.TimeoutExpired) as error:
        return _failed(argv, str(error))


def _failed(argv: Sequence[str], why: str) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(argv, 1, "", why)


def _said(done: subprocess.CompletedProcess[str]) -> str:
    return last_line(done.stderr).rstrip(".")


def _write(file: Path, text: str) -> bool:
    with disk_errors("write", file):
        changed = not file.exists() or file.read_bytes() != text.encode()
        if changed:
            write_private(file, text.encode())
    return changed


def _remove(file: Path) -> None:
    with disk_errors("remove", file):
        file.unlink(missing_ok=True)


RUNS_WITHIN_S = 30.0
LOOK_S = 0.2


async def hand_over(paths: Paths, manager: Manager) -> ServiceState:
    """See that the service's controller is the one that runs; how it stands then."""
    deadline = time.monotonic() + RUNS_WITHIN_S
    while not (state := await asyncio.to_thread(manager.state)).running:
        await _look_again(manager, deadline)
    holder = lock_holder(paths.lock)
    if holder is not None and holder.pid != state.pid:
        # The service, which waits for its place, adopts what it leaves.
        await dismiss(paths, holder.pid)
        deadline = time.monotonic() + RUNS_WITHIN_S
    # A command that comes before it has its place would start a controller, too.
    while lock_holder(paths.lock) is None:
        await _look_again(manager, deadline)
    return state


async def _look_again(manager: Manager, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise DllmError(
            f"{manager.name} was told to start the service, and it does not run",
            f"See what {manager.file} starts, and its log.",
        )
    await asyncio.sleep(LOOK_S)
