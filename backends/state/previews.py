"""What a plan would do, shown before anything is started."""

from __future__ import annotations

from backends.state.base import Value
from backends.state.memory import DeviceMemory
from backends.state.plans import LayerRange, Plan
from backends.state.snapshots import Failure, ProcessRole


class Command(Value, frozen=True, kw_only=True):
    """One process a launch starts, and where."""

    machine: str
    name: str
    role: ProcessRole
    argv: tuple[str, ...]


class Preview(Value, frozen=True, kw_only=True):
    """What a launch of a plan would do; nothing of it has been started."""

    plan: Plan
    layers: tuple[LayerRange, ...]
    memory: tuple[DeviceMemory, ...]
    """Per device of the split, in its order."""
    available_bytes: dict[str, int]
    """What each of them has; those of which nothing is known are missing."""
    commands: tuple[Command, ...]
    """In the order in which they start; a port not yet chosen is ``<port>``."""
    notes: tuple[str, ...] = ()
    """What is worth knowing before: one sentence each."""
    refusal: Failure | None = None
    """Why it would not be launched: a device is too small for its share."""
