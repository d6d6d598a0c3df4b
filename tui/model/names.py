"""The names of screens, machines, devices, models and processes, and their order."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import PurePath

from backends.state import ProcessInfo, ProcessRole

SCREENS = ("cluster", "layers", "traffic", "lab", "logs", "models", "machines")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_ROLES = (
    *(ProcessRole.SERVER, ProcessRole.WORKER, ProcessRole.OTHER),
    *(ProcessRole.RELAY, ProcessRole.WORKER_RELAY, ProcessRole.GATEWAY),
    *(ProcessRole.AGENT, ProcessRole.CONTROLLER),
)


def letter(mark: int) -> str:
    """The letter of a mark; after Z they begin again, in lower case."""
    text = LETTERS[mark % len(LETTERS)]
    return text if mark < len(LETTERS) else text.lower()


def device_label(device: str) -> str:
    """``worker1 CPU`` from ``worker1/CPU``."""
    return device.replace("/", " ", 1)


def model_name(path: str) -> str:
    name = PurePath(path).name
    return name.removesuffix(".gguf")


def whole_path(typed: str) -> str:
    """An absolute path from a typed one, which may begin with ``~``."""
    return os.path.abspath(os.path.expanduser(typed.strip()))


def by_role(processes: Iterable[ProcessInfo]) -> list[ProcessInfo]:
    """Processes, the ones people ask for first: llama-server, then the workers."""
    return sorted(processes, key=lambda process: _ROLES.index(process.role))
