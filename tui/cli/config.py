"""``dllm-tui config``: the settings, where each comes from, and what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from backends.config import Config
from backends.errors import DllmError, UsageError, did_you_mean
from backends.paths import user_paths
from backends.settings import ALLOWED, all_settings, change, read_text
from backends.writing import write_private
from tui.cli.names import theme_names
from tui.cli.options import completing
from tui.cli.output import emit_json, json_option, on_terminal, run, say, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.settings import Problem, Setting

EXAMPLES = """
\b
Examples:
  dllm-tui config show                 every setting, its value and its source
  dllm-tui config show ctx_size
  dllm-tui config check                file, line, what is wrong, what is allowed
  dllm-tui config set ctx_size 8192
  dllm-tui config set keys.cluster.launch f9
  dllm-tui config unset theme          its default again
  dllm-tui config edit                 in $VISUAL or $EDITOR, checked afterwards

config check gives exit code 1 for a file that is not valid.
"""
CHOICES = {"e": "edit again", "b": "go back", "k": "keep it so"}


@click.group(epilog=EXAMPLES)
def config() -> None:
    """Show, check, set and edit the settings of config.toml."""


@config.command("show", epilog=EXAMPLES)
@click.argument("name", required=False, shell_complete=completing("settings"))
@json_option
def show_config(name: str | None, as_json: bool) -> None:
    """Show the settings (or NAME alone), and where each value comes from."""
    paths = user_paths()
    found = all_settings(paths)
    if name is not None:
        found = [_named(name, found)]
    if as_json:
        emit_json(found)
        return
    for setting in found:
        value = "unset" if setting.value is None else _toml(setting.value)
        source = setting.source + (f":{setting.line}" if setting.line else "")
        show(f"{setting.name:20} {value:24} {source:16} {setting.allowed}".rstrip())


@config.command("check", epilog=EXAMPLES)
@json_option
def check_config(as_json: bool) -> None:
    """Tell all that is wrong with the file."""
    paths = user_paths()
    found = all_problems(read_text(paths))
    if as_json:
        emit_json({"file": str(paths.config_file), "problems": found})
    elif found:
        show("\n".join(_lines(found)))
    elif paths.config_file.exists():
        show(f"{paths.config_file} is fine.")
    else:
        show(f"There is no {paths.config_file}: every setting has its default.")
    if found:
        raise click.exceptions.Exit(1)


@config.command("set", epilog=EXAMPLES)
@click.argument("name", shell_complete=completing("settings"))
@click.argument("value")
def set_config(name: str, value: str) -> None:
    """Set NAME to VALUE; comments stay, and a running controller goes by it then.

    Texts need no quotes of TOML: theme dllm-light. Several folders go between commas.
    """
    change(user_paths(), name, value, all_problems)
    say(f"{name} is set in {user_paths().config_file}.")
    _wait_for_controller()


@config.command("unset", epilog=EXAMPLES)
@click.argument("name", shell_complete=completing("settings"))
def unset_config(name: str) -> None:
    """Bring the default of NAME back: its line is taken out."""
    change(user_paths(), name, None, all_problems)
    say(f"{name} has its default again.")
    _wait_for_controller()


@config.command("edit", epilog=EXAMPLES)
def edit_config() -> None:
    """Open the file in your editor; what is wrong then can be mended or undone."""
    file = user_paths().config_file
    before = read_text(user_paths()) if file.exists() else None
    if before is None:
        _write(template())
    answer = "e"
    while answer == "e":
        click.edit(filename=str(file))
        found = all_problems(read_text(user_paths()))
        if not found:
            say(f"{file} is fine.")
            _wait_for_controller()
            return
        say("\n".join(_lines(found)))
        answer = _asked()
    if answer == "b":
        _go_back(before)
    else:
        raise click.exceptions.Exit(1)


def _wait_for_controller() -> None:
    """Let whatever comes next find a running controller with these settings."""
    from backends.client.client import ControllerClient

    try:
        run(ControllerClient().settings_taken())
    except DllmError as error:
        say(f"The controller does not go by it yet: {error}")


def _asked() -> str:
    """What to do with a file that is not valid; kept where nobody is there to say."""
    if not on_terminal():
        return "k"
    offered = ", ".join(f"{key}: {text}" for key, text in CHOICES.items())
    kind = click.Choice(list(CHOICES))
    answer: str = click.prompt(offered, type=kind, default="e", err=True)
    return answer


def _go_back(before: str | None) -> None:
    if before is None:
        user_paths().config_file.unlink(missing_ok=True)
    else:
        _write(before)
    say("The settings are as they were.")


def _write(text: str) -> None:
    file = user_paths().config_file
    try:
        write_private(file, text.encode())
    except OSError as error:
        raise DllmError(f"Cannot write {file} ({error.strerror})") from error


def all_problems(text: str) -> list[Problem]:
    """What is wrong with the file, names of actions and themes included."""
    from textual.theme import BUILTIN_THEMES

    from tui.actions.settings_check import all_problems as checked

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
    for setting in found:
        if setting.name == name:
            return setting
    names = [setting.name for setting in found]
    raise UsageError(
        f"There is no setting {name}",
        f"{did_you_mean(name, names)}Settings: {', '.join(names)}.",
    )


def _lines(found: list[Problem]) -> Iterator[str]:
    """``/…/config.toml:3: workers cannot be 0. Allowed: a number, 1 to 16``."""
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
