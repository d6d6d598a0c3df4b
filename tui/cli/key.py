"""``dllm-tui key``: the API keys that clients on other machines need."""

from __future__ import annotations

import time
from typing import Any

import click

from backends.gateway.keys import (
    REQUESTS_AT_ONCE,
    REQUESTS_PER_MINUTE,
    Key,
    KeyFile,
)
from backends.paths import user_paths
from backends.units import format_count
from tui.cli.options import completing
from tui.cli.output import emit_json, json_option, say, show
from tui.work.peer_words import since_text

EXAMPLES = """
\b
Examples:
  dllm-tui key add laptop                     prints the key, this once
  dllm-tui key add ci --per-minute 30 --at-once 2
  dllm-tui key list
  dllm-tui key remove laptop                  counts at once, also while it serves

Programs on this machine need none. For others set api_host, such as
  dllm-tui config set api_host 0.0.0.0
"""


@click.group(epilog=EXAMPLES)
def key() -> None:
    """Make, list and revoke the keys with which other machines may use the API."""


@key.command("add", epilog=EXAMPLES)
@click.argument("name")
@click.option(
    "--per-minute",
    type=click.IntRange(0),
    default=REQUESTS_PER_MINUTE,
    show_default=True,
    help="Most requests with it in a minute; 0: no limit.",
)
@click.option(
    "--at-once",
    type=click.IntRange(0),
    default=REQUESTS_AT_ONCE,
    show_default=True,
    help="Most requests with it at once; 0: no limit.",
)
@json_option
def add_key(name: str, per_minute: int, at_once: int, as_json: bool) -> None:
    """Make a key called NAME and print it, this once: only its hash is kept."""
    secret = _file().add(name, requests_per_minute=per_minute, requests_at_once=at_once)
    if as_json:
        emit_json({"name": name, "key": secret})
        return
    show(secret)
    say(f"This is the key {name}; keep it now, it is shown this once.")


@key.command("list", epilog=EXAMPLES)
@json_option
def list_keys(as_json: bool) -> None:
    """List the keys by name, with their limits; dllm-tui status counts their use."""
    found = _file().read()
    if as_json:
        emit_json([_facts(one) for one in found])
        return
    for one in found:
        show(_line(one))
    say(format_count(len(found), "key"))


@key.command("remove", epilog=EXAMPLES)
@click.argument("name", shell_complete=completing("keys"))
@json_option
def remove_key(name: str, as_json: bool) -> None:
    """Revoke the key NAME: no request with it is answered any more."""
    _file().remove(name)
    if as_json:
        emit_json({"removed": name})
    else:
        say(f"The key {name} is revoked.")


def _file() -> KeyFile:
    return KeyFile(user_paths().keys_file)


def _facts(one: Key) -> dict[str, Any]:
    """What of a key is for people: its hash is not."""
    return {
        "name": one.name,
        "created_at": one.created_at,
        "requests_per_minute": one.requests_per_minute,
        "requests_at_once": one.requests_at_once,
    }


def _line(one: Key) -> str:
    age = since_text(time.time() - one.created_at)
    made = f"made {age} ago" if age else "made now"
    minute = f"{one.requests_per_minute or 'any number'} a minute"
    at_once = f"{one.requests_at_once or 'any number'} at once"
    return f"{one.name:24} {made} · {minute} · {at_once}"
