"""Commands where one only watches: what is not known to watch is refused."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from backends.client.asking import ASKING, ReadOnly

if TYPE_CHECKING:
    from collections.abc import Iterator

WATCHES = frozenset(
    {
        *("chat", "completion", "doctor", "events", "inspect", "logs", "status"),
        *("trace", "config show", "config check", "engine status", "lab show"),
        *("models list", "models verify", "models info", "models drafts"),
        *("models cache show", "peers list", "peers probe", "service status"),
        *("chats list", "chats show", "chats export", "key list"),
    }
)
"""Commands that change nothing; others watch with ``--dry-run``, or unless they are to
``--write``."""
_GUARDED = "_readonly_guarded"


def guard(path: str, command: click.Command) -> None:
    """See that a command, and those below it, refuse to act where one only watches."""
    for name, leaf in leaves(path, command):
        callback = leaf.callback
        if name in WATCHES or callback is None or hasattr(callback, _GUARDED):
            continue
        leaf.callback = _guarded(name, callback)


def leaves(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    """The commands that do something, by their whole names."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name, below in command.commands.items():
        yield from leaves(f"{path} {name}", below)


def _guarded(name: str, callback: Any) -> Any:
    @wraps(callback)
    def refusing(*args: Any, **options: Any) -> Any:
        acts = options.get("write", True) and not options.get("dry_run")
        if ASKING.get().readonly and acts:
            raise ReadOnly(f"dllm-tui {name}")
        return callback(*args, **options)

    setattr(refusing, _GUARDED, True)
    return refusing
