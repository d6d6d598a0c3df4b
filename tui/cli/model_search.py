"""A search for models, waited for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backends.client.client import ControllerClient
    from backends.state import ModelCatalogue

POLL_S = 0.1
SEARCH_MAX_S = 30.0


async def searched(client: ControllerClient) -> ModelCatalogue:
    """What a search of now finds; what is found so far where it takes too long."""
    catalogue = await client.catalogue(refresh=True)
    deadline = asyncio.get_running_loop().time() + SEARCH_MAX_S
    while catalogue.scanning and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(POLL_S)
        catalogue = await client.catalogue()
    return catalogue
