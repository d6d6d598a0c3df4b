"""``dllm-tui connect``: what a client has to be told to use the API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from backends.client_config import CLIENTS, served
from backends.errors import UsageError, did_you_mean
from tui.cli.options import cluster_option, completing
from tui.cli.output import emit_json, json_option, run, say, show
from tui.cli.status import current_snapshot

if TYPE_CHECKING:
    from pathlib import Path

    from backends.client_config import Recipe, Served

EXAMPLES = """
\b
Examples:
  dllm-tui connect --list
  dllm-tui connect curl
  dllm-tui connect pi                    prints what belongs into its file
  dllm-tui connect pi --write            writes it, if pi has none yet
  dllm-tui connect opencode --url http://studio:8090/v1     for another machine

A key is written into no file: clients elsewhere find it in DLLM_API_KEY.
"""


@click.command(epilog=EXAMPLES)
@click.argument("client", required=False, shell_complete=completing("programs"))
@click.option("--list", "show_list", is_flag=True, help="List the clients known.")
@click.option("--write", is_flag=True, help="Write the client's file if it has none.")
@click.option(
    "--url", metavar="URL", help="Where the client finds the API, if not from here."
)
@cluster_option
@json_option
def connect(
    client: str | None,
    show_list: bool,
    write: bool,
    url: str | None,
    cluster: str,
    as_json: bool,
) -> None:
    """Print the configuration with which CLIENT uses what serves now."""
    if show_list or client is None:
        _list(as_json)
        return
    if client not in CLIENTS:
        guess = did_you_mean(client, CLIENTS)
        known = f"{guess}Clients: {', '.join(CLIENTS)}."
        raise UsageError(f"There is no client {client}", known)
    it = served(run(current_snapshot(cluster)), url)
    recipe = CLIENTS[client].recipe(it)
    written = recipe.write() if write else None
    if as_json:
        emit_json(_facts(client, it, recipe, written))
        return
    if written is None:
        show(recipe.text, end="")
    _tell(it, recipe, written)


def _list(as_json: bool) -> None:
    if as_json:
        emit_json({name: client.about for name, client in CLIENTS.items()})
        return
    for name, client in CLIENTS.items():
        show(f"{name:16} {client.about}")


def _tell(it: Served, recipe: Recipe, written: Path | None) -> None:
    """Say where it belongs, or went, and what is left to do."""
    if written is not None:
        say(f"{written} is written.")
    elif recipe.file is not None:
        there = recipe.file.exists()
        also = "add it to what is there" if there else "--write writes it there"
        say(f"This belongs into {recipe.file}: {also}.")
    for name, value in recipe.more.items():
        say(f"export {name}={value}")
    if it.needs_key and recipe.key:
        say(f"export {recipe.key}=…   # a key from: dllm-tui key add NAME")
    for line in recipe.use:
        say(line)


def _facts(
    client: str, it: Served, recipe: Recipe, written: Path | None
) -> dict[str, Any]:
    return {
        "client": client,
        "url": it.url,
        "model": it.model,
        "file": str(recipe.file) if recipe.file else None,
        "text": recipe.text,
        "variables": {**recipe.more, **_key_variable(it, recipe)},
        "use": recipe.use,
        "written": str(written) if written else None,
    }


def _key_variable(it: Served, recipe: Recipe) -> dict[str, None]:
    """The variable that wants a key, which is for the user to fill."""
    return {recipe.key: None} if it.needs_key and recipe.key else {}
