"""How a path being typed may go on: the folders and models there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES_MAX = 500


def names_after(typed: str) -> tuple[str, ...]:
    """What the last part of a whole path may become: folders end in ``/``.

    Names that begin with a dot only where one was typed. A folder that is not there,
    or may not be read, has none. Of very many some in the middle are left out: what all
    begin with is what the first and the last begin with.
    """
    folder, _, part = typed.rpartition("/")
    if not typed.startswith("/"):
        return ()
    try:
        with os.scandir(f"{folder}/") as entries:
            names = sorted(_fitting(entries, part))
    except (OSError, ValueError):
        return ()
    del names[NAMES_MAX - 1 : -1]
    return tuple(names)


def _fitting(entries: Iterator[os.DirEntry[str]], part: str) -> Iterator[str]:
    for entry in entries:
        name = entry.name
        hidden = name.startswith(".") and not part.startswith(".")
        if hidden or not name.startswith(part) or not name.isprintable():
            continue
        if _is_folder(entry):
            yield f"{name}/"
        elif name.lower().endswith(".gguf"):
            yield name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is one, as far as we may know: a link may lead to itself."""
    try:
        return entry.is_dir()
    except OSError:
        return False
