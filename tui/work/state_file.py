"""What the console remembers between two runs: layout, theme, plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from backends.errors import DllmError
from backends.state import NOT_JSON, Plan
from backends.writing import write_private

if TYPE_CHECKING:
    from pathlib import Path


class Remembered(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state file; every field may be missing."""

    theme: str = ""
    zoomed: str = ""
    """Id of the pane that had the whole screen."""
    mode: str = "cluster"
    plan: Plan | None = None
    """The last plan shown, launched or not."""


def recall(path: Path) -> Remembered:
    """Read the state file; a missing one is an empty memory.

    Raises:
        DllmError: it is there but cannot be read or understood.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Remembered)
    except FileNotFoundError:
        return Remembered()
    except (OSError, *NOT_JSON) as error:
        raise DllmError(
            f"What the console remembered in {path} cannot be read ({error})",
            "It starts afresh and will be written anew.",
        ) from error


def recall_if_whole(path: Path) -> tuple[Remembered, DllmError | None]:
    """What was remembered, or nothing and why."""
    try:
        return recall(path), None
    except DllmError as error:
        return Remembered(), error


def remember(path: Path, memory: Remembered) -> None:
    """Write the state file in one step, readable by this user only.

    Raises:
        DllmError: the disk refuses.
    """
    try:
        write_private(path, msgspec.json.encode(memory), durable=False)
    except OSError as error:
        raise DllmError(
            f"Cannot write {path} ({error.strerror})",
            "The console forgets its layout.",
        ) from error
