"""``dllm-tui connect`` and ``keys``: what a client needs to use the API."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from backends.client_config import CLIENTS, Recipe, ServedApi, served
from backends.errors import UsageError, did_you_mean
from backends.gateway.keys import REQUESTS_AT_ONCE, REQUESTS_PER_MINUTE, Key, KeyFile
from backends.paths import user_paths
from tui.cli.command import (
    Command,
    Group,
    Name,
    cluster_option,
    options,
    refuse_without,
)
from tui.cli.output import Column, Table, emit_json, pairs_table, say, show
from tui.cli.status import current_snapshot
from tui.model.peer_words import age_text

EXAMPLES = """
dllm-tui connect                  list the clients
dllm-tui connect curl
dllm-tui connect pi               print the contents of its settings file
dllm-tui connect pi --write       write that file, if there is none yet
dllm-tui connect opencode --url http://studio:8090/v1
"""
CLIENT_LIST = pairs_table("CLIENT", "ABOUT")


@click.command(
    cls=Command,
    examples=EXAMPLES,
    notes="API keys are never written to a file: clients read DLLM_API_KEY.",
)
@click.argument(
    "client_name", metavar="[CLIENT]", required=False, type=Name("programs")
)
@options(
    ("--write", bool, "Write the client's settings file if there is none."),
    ("--url", "URL", "URL of the API as the client reaches it."),
)
@cluster_option
async def connect(
    client_name: str | None, write: bool, url: str | None, cluster: str, as_json: bool
) -> None:
    """Print the settings a client needs to use the API.

    Without CLIENT it lists the clients.
    """
    if client_name is None:
        refuse_without("a client", "--write", "--url")
        about = {name: client.about for name, client in CLIENTS.items()}
        return emit_json(about) if as_json else CLIENT_LIST.print(about)
    if client_name not in CLIENTS:
        guess = did_you_mean(client_name, CLIENTS)
        known = f"{guess}Clients: {', '.join(CLIENTS)}."
        raise UsageError(f"There is no client {client_name}", known)
    it = served(await current_snapshot(cluster), url)
    recipe = CLIENTS[client_name].recipe(it)
    written = recipe.write() if write else None
    if as_json:
        emit_json(_facts(client_name, it, recipe, written))
        return
    if written is None:
        show(recipe.text, end="")
    _tell(it, recipe, written)


def _tell(it: ServedApi, recipe: Recipe, written: Path | None) -> None:
    if written is not None:
        say(f"Wrote {written}.")
    elif recipe.file is not None:
        there = recipe.file.exists()
        also = "add it to what is there" if there else "--write writes it there"
        say(f"This goes into {recipe.file}: {also}.")
    for name, value in recipe.more.items():
        say(f"export {name}={value}")
    if it.needs_key and recipe.key:
        say(f"export {recipe.key}=…   # a key from: dllm-tui keys add NAME")
    for line in recipe.use:
        say(line)


def _facts(
    client: str, it: ServedApi, recipe: Recipe, written: Path | None
) -> dict[str, Any]:
    key = {recipe.key: None} if it.needs_key and recipe.key else {}
    return {
        "client": client,
        "url": it.url,
        "model": it.model,
        "file": str(recipe.file) if recipe.file else None,
        "text": recipe.text,
        "variables": {**recipe.more, **key},
        "use": recipe.use,
        "written": str(written) if written else None,
    }


# --- keys ----------------------------------------------------------------------------

KEYS_EXAMPLES = """
dllm-tui keys add laptop           print a new key, this once
dllm-tui keys add ci --per-minute 30 --at-once 2
dllm-tui keys list
dllm-tui keys remove laptop        takes effect immediately
"""
LIMIT = click.IntRange(0)


def _limit(most: int) -> str:
    return str(most) if most else "no limit"


KEYS = Table(
    columns=[
        Column("NAME", lambda key: key.name),
        Column("AGE", lambda key: age_text(time.time() - key.created_at)),
        Column("PER MINUTE", lambda key: _limit(key.requests_per_minute), right=True),
        Column("AT ONCE", lambda key: _limit(key.requests_at_once), right=True),
    ],
    name=lambda key: key.name,
    none=lambda _: "No keys.",
)


@click.group(
    cls=Group,
    default="list",
    aliases={"revoke": "remove"},
    examples=KEYS_EXAMPLES,
    notes="Programs on this machine need no key. To serve other machines: dllm-tui "
    "config set api_host 0.0.0.0",
)
def keys() -> None:
    """Add, list and remove API keys for other machines."""


@keys.command("add", shows=lambda made: [made["key"]])
@click.argument("name")
@options(
    ("--per-minute", LIMIT, "Requests a minute; 0 for no limit.", REQUESTS_PER_MINUTE),
    ("--at-once", LIMIT, "Parallel requests; 0 for no limit.", REQUESTS_AT_ONCE),
)
def add_key(name: str, per_minute: int, at_once: int) -> dict[str, str]:
    """Create a key and print it, this once.

    Only its hash is kept.
    """
    key = _file().add(name, requests_per_minute=per_minute, requests_at_once=at_once)
    say(f"This is the key {name}. It is shown this once: keep it now.")
    return {"name": name, "key": key}


def _keys_json(found: tuple[Key, ...]) -> list[dict[str, Any]]:
    names = ("name", "created_at", "requests_per_minute", "requests_at_once")
    return [{name: getattr(key, name) for name in names} for key in found]


@keys.command("list", shows=KEYS, as_json=_keys_json, watches=True)
def list_keys() -> tuple[Key, ...]:
    """List the keys and their limits; status counts their use."""
    return tuple(_file().read())


@keys.command("remove")
@click.argument("name", type=Name("keys"))
def remove_key(name: str) -> dict[str, str]:
    """Revoke a key."""
    _file().remove(name)
    say(f"Revoked the key {name}.")
    return {"removed": name}


def _file() -> KeyFile:
    return KeyFile(user_paths().keys_file)
