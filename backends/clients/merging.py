"""Putting our part into a client's file: whole or not at all, after a backup."""

from __future__ import annotations

import os
import time
from itertools import count
from typing import TYPE_CHECKING

from backends.errors import DllmError
from backends.state import Value
from backends.writing import set_aside

if TYPE_CHECKING:
    from pathlib import Path

    from backends.clients.recipes import Recipe

FOR_THE_OWNER = 0o600


class Merged(Value, frozen=True, kw_only=True):
    """What became of a file."""

    file: str
    changed: bool
    backup: str = ""
    """The file as it was; empty where there was none, or nothing changed."""


def merge_into(file: Path, recipe: Recipe) -> Merged:
    """Put our part into a client's file; what else it says stays.

    Raises:
        DllmError: the file cannot be understood, read or written; it is as it was.
    """
    # A link to a file kept elsewhere stays one.
    file = file.resolve()
    before = _read(file)
    try:
        after = recipe.merge(before or "")
    except DllmError as error:
        raise DllmError(
            f"{file} cannot be added to: {error.what}",
            "It stays as it is; without --write the part to put in by hand is printed.",
        ) from error
    if after == before:
        return Merged(file=str(file), changed=False)
    try:
        backup = "" if before is None else _back_up(file, before)
        _replace(file, after)
    except OSError as error:
        raise DllmError(f"Cannot write {file} ({error.strerror})") from error
    return Merged(file=str(file), changed=True, backup=backup)


def _read(file: Path) -> str | None:
    try:
        return file.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise DllmError(f"{file} cannot be added to: it is not UTF-8") from error
    except OSError as error:
        raise DllmError(f"Cannot read {file} ({error.strerror})") from error


def _back_up(file: Path, text: str) -> str:
    """A copy beside it, as private as it is.

    Raises:
        OSError: it cannot be written.
    """
    at = time.strftime("%Y%m%d-%H%M%S")
    name = f"{file.name}.before-dllm-{at}"
    names = (f"{name}-{number}" if number else name for number in count())
    backup = next(b for b in map(file.with_name, names) if not b.exists())
    _replace(backup, text, like=file)
    return str(backup)


def _replace(file: Path, text: str, like: Path | None = None) -> None:
    """Give a file this text and the rights it, or another, had.

    Raises:
        OSError: it cannot be written; it is as it was.
    """
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    model = like or file
    mode = model.stat().st_mode & 0o777 if model.exists() else FOR_THE_OWNER
    with set_aside(file.parent) as (aside, stream):
        stream.write(text.encode())
        stream.flush()
        os.fsync(stream.fileno())
        os.fchmod(stream.fileno(), mode)
        aside.replace(file)
