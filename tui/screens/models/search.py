"""Asking for models: the catalogue while it grows, and any file by its path."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from backends.state import ModelCatalogue
    from tui.seam.cluster import Cluster

POLL_S = 0.4


async def watch_catalogue(
    cluster: Cluster, *, refresh: bool = False, poll_s: float = POLL_S
) -> AsyncIterator[ModelCatalogue]:
    """The catalogue now, and again while the search for files goes on."""
    catalogue = await cluster.catalogue(refresh=refresh)
    yield catalogue
    while catalogue.scanning:
        await asyncio.sleep(poll_s)
        catalogue = await cluster.catalogue()
        yield catalogue


def full_path(text: str) -> str:
    """An absolute path from what was typed."""
    return str(Path(text.strip()).expanduser().absolute())


async def check_path(cluster: Cluster, text: str) -> str:
    """The absolute path of a model that can be read.

    Raises:
        DllmError: it cannot; the text says why.
    """
    path = full_path(text)
    await cluster.inspect(path)
    return path
