"""The service in the words of systemd and of launchd; pure text."""

from __future__ import annotations

import os
import plistlib
import sys
from collections.abc import Mapping, Sequence

from backends.errors import DllmError
from backends.paths import ENGINE_DIR_VARIABLE, Paths
from backends.state.base import Value

CONTROLLER = "controller"
PASSED_ON = (
    *("PATH", "PYTHONPATH", ENGINE_DIR_VARIABLE, "DLLM_RELAY"),
    *("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"),
)
"""Of the environment it is installed from: where programs and files are. No more, for a
key might be in it."""
AGAIN_S = 5
PRIVATE_TMP = "PrivateTmp=yes\n"
_COMMAND = "from tui.entry import main; main()"
_ODD = frozenset("$\"'\\")


class Service(Value, frozen=True, kw_only=True):
    """The process that is to be kept up."""

    name: str = CONTROLLER
    title: str = "keeps the clusters of this user running"
    argv: tuple[str, ...]
    environment: dict[str, str] = {}
    log: str = ""
    """The log with the reason if it cannot start."""
    shut_in: bool = False
    """True for one that starts nothing and changes no file."""


def controller_service(paths: Paths, environment: Mapping[str, str]) -> Service:
    """The controller that stays, with the programs and files of this user."""
    return Service(
        argv=(sys.executable, "-P", "-m", "backends.controller", "--stay"),
        environment=_passed_on(environment),
        log=str(paths.state_dir / "controller.err"),
    )


def command_service(
    name: str,
    title: str,
    paths: Paths,
    environment: Mapping[str, str],
    args: Sequence[str],
    *,
    shut_in: bool = False,
) -> Service:
    """``dllm-tui NAME run``, with the options it was given."""
    return Service(
        name=name,
        title=title,
        argv=(sys.executable, "-P", "-c", _COMMAND, name, "run", *args),
        environment=_passed_on(environment),
        log=str(paths.state_dir / f"{name}.err"),
        shut_in=shut_in,
    )


def _passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    passed = {name: environment[name] for name in PASSED_ON if environment.get(name)}
    for name, value in passed.items():
        if not value.isprintable():
            raise DllmError(
                f"{name} is {value!a}, which no service can be given",
                f"Set {name} without the signs behind the backslashes, then try again.",
            )
    if "PYTHONPATH" in passed:
        parts = passed["PYTHONPATH"].split(os.pathsep)
        passed["PYTHONPATH"] = os.pathsep.join(os.path.abspath(p) for p in parts if p)
    return passed


def unit_of(name: str) -> str:
    """The file of a service's unit: ``dllm-tui-worker.service``."""
    return f"dllm-tui-{name}.service" if name != CONTROLLER else "dllm-tui.service"


def label_of(name: str) -> str:
    return f"dllm-tui.{name}"


def systemd_unit(service: Service) -> str:
    """A unit of systemd's user manager.

    What the controller starts outlives it: it must neither be stopped with it
    (``KillMode``), nor take it along when it runs out of memory (``OOMPolicy``). A
    service that is shut in starts nothing, and changes nothing.
    """
    variables = "".join(
        f"Environment={_quoted(f'{name}={value}')}\n"
        for name, value in service.environment.items()
    )
    argv = service.argv
    if not _ODD.isdisjoint(argv[0]):
        # It refuses such signs in the path of a program, but not in arguments.
        argv = ("/usr/bin/env", *argv)
    command = " ".join(_quoted(part).replace("$", "$$") for part in argv)
    return (
        "[Unit]\n"
        f"Description=dllm-tui: {service.title}\n"
        "StartLimitIntervalSec=0\n"
        "\n"
        "[Service]\n"
        f"ExecStart={command}\n"
        f"{variables}"
        "Restart=always\n"
        f"RestartSec={AGAIN_S}\n"
        f"{_bounds(service)}"
        "\n"
        "[Install]\n"
        "WantedBy=default.target\n"
    )


def _bounds(service: Service) -> str:
    if not service.shut_in:
        return "KillMode=process\nOOMPolicy=continue\n"
    told = (service.argv[0], service.log, *service.environment.values())
    needed = [path for text in told for path in text.split(os.pathsep)]
    # A program or file below it would be hidden.
    hidden = any(path.startswith(("/tmp/", "/var/tmp/")) for path in needed)
    bounds = "NoNewPrivileges=yes\nProtectSystem=strict\n"
    return bounds if hidden else bounds + PRIVATE_TMP


def _quoted(text: str) -> str:
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + text.replace("\n", "\\n") + '"'


def launchd_agent(service: Service) -> str:
    """An agent of launchd; what the controller starts outlives it."""
    described = {
        "Label": label_of(service.name),
        "ProgramArguments": list(service.argv),
        "EnvironmentVariables": dict(service.environment),
        "RunAtLoad": True,
        "KeepAlive": True,
        "ThrottleInterval": AGAIN_S,
        "AbandonProcessGroup": True,
        "StandardErrorPath": service.log,
    }
    return plistlib.dumps(described, sort_keys=False).decode()
