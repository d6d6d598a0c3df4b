"""The MODEL of a command line: a path, a name of the catalogue, or ``peer:/path``."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from backends.client.client import ControllerClient
from backends.errors import DllmError, ModelError
from backends.machine_names import at_peer, beside_a_peer
from backends.state import ModelCatalogue
from tui.cli.command import Name
from tui.widgets.safe_text import safe_line

POLL_S = 0.1
SEARCH_MAX_S = 30.0
_PATH_STARTS = ("/", "./", "../", "~")

model_argument = click.argument("model", type=Name("models"))


async def resolve(model: str) -> Path:
    if path := _path_meant(model):
        return path
    from backends.config import load_config
    from backends.machines.local import local_agent_for_now
    from backends.models.search import find_model, user_folders
    from backends.paths import user_paths

    paths = user_paths()
    folders = user_folders(load_config(paths).model_dirs)
    async with local_agent_for_now(paths.run_dir) as agent:
        return await find_model(model, agent, folders)


def _path_meant(model: str) -> Path | None:
    """The path, unless it can only be a name of the catalogue."""
    try:
        model.encode()
    except UnicodeEncodeError:
        raise ModelError(
            f"The name {safe_line(model)} is not valid UTF-8",
            "Rename the file, or give a link to it another name.",
        ) from None
    path = Path(os.path.expanduser(model))
    return path if os.path.exists(path) or model.startswith(_PATH_STARTS) else None


async def require_model(path: str) -> str:
    """The absolute path of a model given by its path or its catalogue name.

    ``peer:/path`` is a model that a peer holds, and stays as it is.
    """
    if at_peer(path):
        return path
    if (there := beside_a_peer(path)) and not os.path.isfile(path):  # noqa: ASYNC240
        raise DllmError(
            f"{path} is not an absolute path: where on {there[0]} is {there[1]}?",
            f"Give it from the root: {there[0]}:/…/{there[1]}.",
        )
    found = await resolve(path)
    if not found.is_file():
        raise DllmError(f"There is no model file {found}", "Check the path.")
    return str(found.absolute())


async def searched(client: ControllerClient) -> ModelCatalogue:
    """Search for models anew; after the time limit, return those found so far."""
    catalogue = await client.catalogue(refresh=True)
    deadline = asyncio.get_running_loop().time() + SEARCH_MAX_S
    while catalogue.scanning and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(POLL_S)
        catalogue = await client.catalogue()
    return catalogue
