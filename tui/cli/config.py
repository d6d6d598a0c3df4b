"""``dllm-tui config``: the settings, their sources, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from backends.config import ALLOWED, Config, Problem, Setting, SettingsFile, read_text
from backends.errors import DllmError, UsageError, did_you_mean, disk_errors
from backends.paths import user_paths
from backends.writing import write_private
from tui.cli.command import Group, completing, run
from tui.cli.completion import theme_names
from tui.cli.output import Column, Table, on_terminal, pairs_table, say

EXAMPLES = """
dllm-tui config show                 every setting with its source
dllm-tui config show ctx_size
dllm-tui config check                errors by file and line
dllm-tui config set ctx_size 8192
dllm-tui config set keys.cluster.launch f9
dllm-tui config unset theme          back to the default
dllm-tui config edit                 in $VISUAL or $EDITOR
dllm-tui config paths
"""
CHOICES = {"e": "edit again", "b": "undo", "k": "keep it"}


SETTINGS = Table(
    columns=[
        Column("NAME", lambda setting: setting.name),
        Column("VALUE", lambda setting: _value_text(setting)),
        Column("SOURCE", lambda setting: _source_text(setting)),
        Column("ALLOWED", lambda setting: setting.allowed),
    ],
    name=lambda setting: setting.name,
    none=lambda _: "No settings.",
)
PATHS = pairs_table("NAME", "PATH", name=1)


@click.group(
    cls=Group,
    default="show",
    aliases={"get": "show"},
    examples=EXAMPLES,
    notes="Exit code 1 of check: the file is not valid.",
)
def config() -> None:
    """Show, check, set and edit the settings in config.toml."""


@config.command("show", shows=SETTINGS, watches=True)
@click.argument("name", required=False, shell_complete=completing("settings"))
def show_config(name: str | None) -> list[Setting]:
    """Show all settings or one, with their sources."""
    found = SettingsFile(user_paths()).read()
    return found if name is None else [_named(name, found)]


def _value_text(setting: Setting) -> str:
    return "unset" if setting.value is None else _toml(setting.value)


def _source_text(setting: Setting) -> str:
    return setting.source + (f":{setting.line}" if setting.line else "")


@config.command("paths", shows=PATHS, watches=True)
def show_paths() -> dict[str, str]:
    """Show the paths of settings, state, logs and engines."""
    paths = user_paths()
    names = ("config_file", "data_dir", "state_dir", "run_dir", "cache_dir", "socket")
    log = {"log": str(paths.controller_log)}
    return {name: str(getattr(paths, name)) for name in names} | log


def _check_json(found: list[Problem]) -> dict[str, Any]:
    return {"file": str(user_paths().config_file), "problems": found}


@config.command(
    "check",
    shows=lambda found: _check_lines(found),
    as_json=_check_json,
    fails=bool,
    watches=True,
)
def check_config() -> list[Problem]:
    """Check the file and list its errors."""
    return file_problems(read_text(user_paths()))


def _check_lines(found: list[Problem]) -> Iterator[str]:
    file = user_paths().config_file
    if not found and file.exists():
        yield f"{file} is fine."
    elif not found:
        yield f"There is no {file}: every setting has its default."
    yield from _lines(found)


@config.command("set")
@click.argument("name", shell_complete=completing("settings"))
@click.argument("value")
def set_config(name: str, value: str) -> dict[str, str]:
    """Set NAME to VALUE.

    Comments stay, and a running controller applies it. Text needs no TOML quotes;
    separate several folders with commas.
    """
    SettingsFile(user_paths()).change(name, value, file_problems)
    say(f"Set {name} in {user_paths().config_file}.")
    _wait_for_controller()
    return {"name": name, "value": value}


@config.command("unset")
@click.argument("name", shell_complete=completing("settings"))
def unset_config(name: str) -> dict[str, str]:
    """Reset NAME to its default."""
    SettingsFile(user_paths()).change(name, None, file_problems)
    say(f"{name} is back to its default.")
    _wait_for_controller()
    return {"name": name}


@config.command("edit", json=False)
def edit_config() -> None:
    """Edit the file in your editor, and check it afterwards."""
    file = user_paths().config_file
    before = read_text(user_paths()) if file.exists() else None
    if before is None:
        _write(template())
    answer = "e"
    while answer == "e":
        click.edit(filename=str(file))
        found = file_problems(read_text(user_paths()))
        if not found:
            say(f"{file} is fine.")
            _wait_for_controller()
            return
        say("\n".join(_lines(found)))
        answer = _asked()
    if answer != "b":
        raise click.exceptions.Exit(1)
    if before is None:
        file.unlink(missing_ok=True)
    else:
        _write(before)
    say("Settings unchanged.")


def _wait_for_controller() -> None:
    from backends.client.client import ControllerClient

    try:
        run(ControllerClient().settings_taken())
    except DllmError as error:
        say(f"The controller has not applied this yet: {error}")


def _asked() -> str:
    if not on_terminal():
        return "k"
    offered = ", ".join(f"{key}: {text}" for key, text in CHOICES.items())
    kind = click.Choice(list(CHOICES))
    answer: str = click.prompt(offered, type=kind, default="e", err=True)
    return answer


def _write(text: str) -> None:
    file = user_paths().config_file
    with disk_errors("write", file):
        write_private(file, text.encode())


def file_problems(text: str) -> list[Problem]:
    """The problems of the file; names of actions and themes are checked, too."""
    from textual.theme import BUILTIN_THEMES

    from tui.settings_check import all_problems as checked

    return checked(text, [*theme_names(), *BUILTIN_THEMES])


def template() -> str:
    """A file in which nothing is set yet, with everything that can be."""
    defaults = msgspec.structs.asdict(Config()).items()
    lines = (
        f"# {name} = {'…' if value is None else _toml(value)}  # {ALLOWED[name]}"
        for name, value in defaults
        if name not in {"keys", "peers"}
    )
    return "\n".join(
        [
            "# Settings of dllm-tui: a line without the first # counts.",
            *lines,
            "",
            "# [keys]",
            '# "cluster.launch" = "f9"',
            "",
        ]
    )


def _named(name: str, found: list[Setting]) -> Setting:
    names = [setting.name for setting in found]
    if name in names:
        return found[names.index(name)]
    raise UsageError(
        f"There is no setting {name}",
        f"{did_you_mean(name, names)}Settings: {', '.join(names)}.",
    )


def _lines(found: list[Problem]) -> Iterator[str]:
    file = user_paths().config_file
    for problem in found:
        yield f"{file}:{problem.line}: {problem.sentence}"


def _toml(value: object) -> str:
    import tomlkit

    item = tomlkit.item(value)
    if isinstance(value, dict):
        table = tomlkit.inline_table()
        table.update(value)
        item = table
    return item.as_string()
