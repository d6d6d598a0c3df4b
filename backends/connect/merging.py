"""Putting our part into a client's file: whole or not at all, after a backup."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from itertools import count
from typing import TYPE_CHECKING

from backends.errors import DllmError
from backends.state import Value
from backends.writing import become, set_aside

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from backends.connect.recipes import Recipe

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
    file = _real(file)
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
        _require_writable(file)
        backup = "" if before is None else _back_up(file, before)
        _replace(file, after)
    except OSError as error:
        raise DllmError(f"Cannot write {file} ({error.strerror})") from error
    return Merged(file=str(file), changed=True, backup=backup)


def _real(file: Path) -> Path:
    """Where it is kept: a link to a file elsewhere stays one.

    Raises:
        DllmError: it is a link to itself.
    """
    try:
        return file.resolve()
    except (RuntimeError, OSError) as error:
        raise DllmError(f"Cannot read {file} (it is a link to itself)") from error


def _require_writable(file: Path) -> None:
    """See that nobody keeps it from being written, though it could be replaced.

    Raises:
        OSError: somebody does.
    """
    if file.exists() and not file.stat().st_mode & stat.S_IWUSR:
        raise PermissionError(errno.EACCES, "it is read-only")


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
    with _aside(file, text) as aside:
        for backup in map(file.with_name, names):
            with contextlib.suppress(FileExistsError):
                become(aside, backup)
                break
    return str(backup)


def _replace(file: Path, text: str) -> None:
    """Give a file this text.

    Raises:
        OSError: it cannot be written; it is as it was.
    """
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _aside(file, text) as aside:
        aside.replace(file)


@contextlib.contextmanager
def _aside(file: Path, text: str) -> Iterator[Path]:
    """This text beside a file, with the rights that has.

    Raises:
        OSError: it cannot be written.
    """
    mode = file.stat().st_mode & 0o777 if file.exists() else FOR_THE_OWNER
    with set_aside(file.parent) as (aside, stream):
        stream.write(text.encode())
        stream.flush()
        os.fsync(stream.fileno())
        os.fchmod(stream.fileno(), mode)
        yield aside
