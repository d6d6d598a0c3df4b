"""Asking for models: the catalogue while it grows, and any file by its path."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from backends.state import ModelCatalogue
    from tui.api.cluster import Cluster

POLL_S = 0.4
NAMES_SHOWN = 12


async def watch_catalogue(
    cluster: Cluster, *, refresh: bool = False, poll_s: float = POLL_S
) -> AsyncIterator[ModelCatalogue]:
    catalogue = await cluster.catalogue(refresh=refresh)
    yield catalogue
    while catalogue.scanning:
        await asyncio.sleep(poll_s)
        catalogue = await cluster.catalogue()
        yield catalogue


def full_path(text: str) -> str:
    """An absolute path from what was typed."""
    return os.path.abspath(os.path.expanduser(text.strip()))


async def check_path(cluster: Cluster, text: str) -> str:
    """The absolute path of a model that can be read.

    Raises:
        DllmError: it cannot; the text says why.
    """
    path = full_path(text)
    await cluster.inspect(path)
    return path


async def complete_path(cluster: Cluster, typed: str) -> tuple[str, tuple[str, ...]]:
    """Extend a typed path as far as it is unique; also the names that may follow.

    Raises:
        DllmError: nobody could be asked.
    """
    folder, slash, part = typed.rpartition("/") if typed != "~" else ("~", "/", "")
    whole = full_path(f"{folder}{slash}" or ".").rstrip("/")
    names = await cluster.names_after(f"{whole}/{part}")
    # Of names, letter by letter, as wanted here.
    common = os.path.commonprefix(names)  # noqa: RUF071
    return f"{folder}{slash}{common or part}", names


def names_text(names: Sequence[str]) -> str:
    """The names that may follow, as a row."""
    if not names:
        return "nothing there begins like that"
    more = "  …" if len(names) > NAMES_SHOWN else ""
    return "  ".join(names[:NAMES_SHOWN]) + more
