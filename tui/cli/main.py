"""``dllm-tui``: the console, and every screen's headless twin."""

from __future__ import annotations

import gc
import importlib
import sys
from typing import TYPE_CHECKING

import click

from backends.errors import DllmError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

# Modules are imported only for the command that is run: the console must start fast.
COMMANDS = {
    "chat": "tui.cli.chat",
    "demo": "tui.cli.demo",
    "doctor": "tui.cli.doctor",
    "engine": "tui.cli.engine",
    "inspect": "tui.cli.inspect",
    "lab": "tui.cli.lab",
    "logs": "tui.cli.logs",
    "peers": "tui.cli.peers",
    "status": "tui.cli.status",
    "stop": "tui.cli.stop",
    "trace": "tui.cli.trace",
    "up": "tui.cli.up",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All command names, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command; it is named like the command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name])
        command: click.Command = getattr(module, cmd_name)
        return command


EXAMPLES = """
\b
Examples:
  dllm-tui                                  open the console
  dllm-tui demo                             open it on a live two-worker cluster
  dllm-tui up --model m.gguf --workers 2    launch without the console
  dllm-tui peers add mini                   make another machine known
  dllm-tui chat "Why is the sky blue?"      ask what is serving
  dllm-tui stop                             end everything
"""


def _version() -> str:
    from importlib.metadata import version

    return version("dllm-tui")


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"dllm-tui {_version()}")
        ctx.exit()


def _print_paths(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Show where everything lives."""
    if not value:
        return
    from backends.paths import user_paths

    paths = user_paths()
    for name in ("config_file", "state_dir", "run_dir", "cache_dir", "socket"):
        click.echo(f"{name:12} {getattr(paths, name)}")
    click.echo(f"{'log':12} {paths.controller_log}")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXAMPLES,
)
@click.option("--model", metavar="PATH", help="Open with this model picked.")
@click.option("--no-mouse", is_flag=True, help="Leave the mouse to the terminal.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
)
@click.option(
    "--paths",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_paths,
    help="Show where configuration, state, logs and engines live.",
)
@click.pass_context
def cli(ctx: click.Context, model: str | None, no_mouse: bool) -> None:
    """Run one large GGUF model split over several machines with stock llama.cpp.

    Without a command it opens the console and re-attaches to what runs.
    """
    if ctx.invoked_subcommand is None:
        load_console()(model=_whole(model), mouse=not no_mouse)


def _whole(model: str | None) -> str | None:
    """A model's path, given that or its catalogue name."""
    if model is None:
        return None
    from tui.cli.session import require_model

    return require_model(model)


def load_console() -> Callable[..., None]:
    """Import the console, without looking for garbage meanwhile.

    Modules are no garbage: looking through them costs a tenth of the start, and again
    at every later collection unless they are set aside.
    """
    gc.disable()
    from tui.cli.console import open_console

    gc.freeze()
    gc.enable()
    return open_console


def guarded(command: Callable[[], object]) -> int:
    """Run a command; expected errors become one sentence and an exit code."""
    try:
        command()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return _interrupted()
    except UsageError as error:
        return _say(error, EXIT_USAGE)
    except DllmError as error:
        return _say(error, EXIT_FAILED)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        return EXIT_FAILED
    return 0


def _interrupted() -> int:
    click.echo("Interrupted.", err=True)
    return EXIT_INTERRUPTED


def _say(error: DllmError, code: int) -> int:
    """The sentence, and the evidence where there is any."""
    click.echo(f"dllm-tui: {error}", err=True)
    failure = error.failure()
    for line in failure.log_tail:
        click.echo(f"  | {line}", err=True)
    return code


def main() -> None:
    """Entry point of the ``dllm-tui`` script."""
    sys.exit(guarded(lambda: cli(standalone_mode=False)))
