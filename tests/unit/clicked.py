"""The commands of the command line, as tests find them."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tui.cli.command import Command
from tui.cli.main import COMMANDS, cli


def commands() -> Iterator[tuple[str, Command]]:
    context = click.Context(cli)
    for name in COMMANDS:
        found = cli.get_command(context, name)
        assert found is not None
        yield from _below(name, found)


def _below(path: str, command: click.Command) -> Iterator[tuple[str, Command]]:
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _below(f"{path} {name}", below)
    elif not command.hidden:
        assert isinstance(command, Command)
        yield path, command
