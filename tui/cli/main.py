"""``dllm-tui``: the console, and every screen's headless twin."""

from __future__ import annotations

import importlib
import io
import sys
import warnings
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource
from click.exceptions import NoSuchCommand

from backends.client.asking import ASKING, Asking
from backends.errors import DllmError, UsageError
from backends.garbage import importing
from tui.cli.interrupts import left_to_the_system
from tui.cli.options import cluster_option, completing
from tui.cli.output import say, show
from tui.cli.readonly import guard

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

CONSOLE_OPTIONS = frozenset({"model", "theme", "no_mouse", "ascii_only"})

# Modules are imported only for the command that is run: the console must start fast.
COMMANDS = {
    "chat": "tui.cli.chat",
    "chats": "tui.cli.chats",
    "completion": "tui.cli.completion",
    "config": "tui.cli.config",
    "connect": "tui.cli.connect",
    "demo": "tui.cli.demo",
    "doctor": "tui.cli.doctor",
    "drain": "tui.cli.drain",
    "engine": "tui.cli.engine",
    "events": "tui.cli.events",
    "inspect": "tui.cli.inspect",
    "key": "tui.cli.key",
    "lab": "tui.cli.lab",
    "logs": "tui.cli.logs",
    "models": "tui.cli.models",
    "peers": "tui.cli.peers",
    "service": "tui.cli.service",
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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command meant; click itself knows only of commands already imported."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise NoSuchCommand(args[0], possibilities=COMMANDS, ctx=ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command; it is named like the command."""
        if cmd_name not in COMMANDS:
            return None
        with importing(), left_to_the_system():
            module = importlib.import_module(COMMANDS[cmd_name])
        command: click.Command = getattr(module, cmd_name)
        guard(cmd_name, command)
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
        show(f"dllm-tui {_version()}")
        ctx.exit()


def _print_paths(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Show where everything lives."""
    if not value:
        return
    from backends.paths import user_paths

    paths = user_paths()
    for name in ("config_file", "state_dir", "run_dir", "cache_dir", "socket"):
        show(f"{name:12} {getattr(paths, name)}")
    show(f"{'log':12} {paths.controller_log}")
    ctx.exit()


def _check(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Show each setting and where it comes from; fail where the file is wrong."""
    if not value:
        return
    from tui.cli.config import check_config, show_config

    ctx.invoke(check_config, as_json=False)
    ctx.invoke(show_config)
    ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXAMPLES,
)
@click.option(
    "--model",
    metavar="PATH",
    shell_complete=completing("models"),
    help="Open with this model picked.",
)
@click.option(
    "--theme",
    metavar="NAME",
    shell_complete=completing("themes"),
    help="Open in this theme.",
)
@click.option("--no-mouse", is_flag=True, help="Leave the mouse to the terminal.")
@click.option(
    "--ascii",
    "ascii_only",
    is_flag=True,
    help="Draw with ASCII signs alone.",
)
@click.option(
    "--readonly",
    is_flag=True,
    envvar="DLLM_READONLY",
    show_envvar=True,
    help="Only watch: what would change anything is refused.",
)
@cluster_option
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
@click.option(
    "--check",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_check,
    help="Show the settings in effect and what is wrong with them, and end.",
)
@click.pass_context
def cli(
    ctx: click.Context,
    model: str | None,
    theme: str | None,
    no_mouse: bool,
    ascii_only: bool,
    readonly: bool,
    cluster: str,
) -> None:
    """Run one large GGUF model split over several machines with stock llama.cpp.

    Without a command it opens the console and re-attaches to what runs.
    """
    _require_taken(ctx)
    asking = Asking(
        program=ctx.invoked_subcommand or "console",
        readonly=readonly or _watches_only(),
    )
    token = ASKING.set(asking)
    ctx.call_on_close(lambda: ASKING.reset(token))
    if ctx.invoked_subcommand is None:
        load_console()(
            model=_whole(model),
            theme=theme,
            mouse=not no_mouse,
            ascii_only=ascii_only,
            cluster=cluster,
        )


def _require_taken(ctx: click.Context) -> None:
    """Refuse what was given for the console where a command does not take it over.

    Raises:
        UsageError: there is such an option.
    """
    command = ctx.invoked_subcommand and cli.get_command(ctx, ctx.invoked_subcommand)
    if not command:
        return
    taken = {parameter.name for parameter in command.params}
    for option in cli.params:
        given = ctx.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
        if given and option.name in CONSOLE_OPTIONS - taken:
            raise UsageError(
                f"{option.opts[0]} is for the console, not for {command.name}",
                f"Leave it out, or see dllm-tui {command.name} --help.",
            )


def _watches_only() -> bool:
    """Whether the settings say so; a file that cannot be read says nothing."""
    from backends.config import load_config
    from backends.paths import user_paths

    try:
        return load_config(user_paths()).readonly
    except DllmError:
        return False


def _whole(model: str | None) -> str | None:
    """A model's path, given that or its catalogue name."""
    if model is None:
        return None
    from tui.cli.session import require_model

    return require_model(model)


def load_console() -> Callable[..., None]:
    """Import the console, without looking for garbage meanwhile."""
    with importing(), left_to_the_system():
        from tui.cli.opening import open_console
    return open_console


def guarded(command: Callable[[], object]) -> int:
    """Run a command; errors become one sentence and an exit code."""
    try:
        code = command()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        return _told(error)
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
    except Exception as error:
        say(
            f"dllm-tui: unexpected {type(error).__name__}: {error}. This is a bug of "
            "dllm-tui: please report it."
        )
        return EXIT_FAILED
    # Outside of click's own mode an exit code is what the command returns.
    return code if isinstance(code, int) else 0


def _told(error: click.ClickException) -> int:
    """What click has to say, and its exit code."""
    text = io.StringIO()
    error.show(file=text)
    say(text.getvalue().rstrip())
    return error.exit_code


def _interrupted() -> int:
    # Of work that had not begun Python would say that nobody waited for it.
    warnings.simplefilter("ignore", RuntimeWarning)
    say("Interrupted.")
    return EXIT_INTERRUPTED


def _say(error: DllmError, code: int) -> int:
    """The sentence, and the evidence where there is any."""
    say(f"dllm-tui: {error}")
    failure = error.failure()
    for line in failure.log_tail:
        say(f"  | {line}")
    return code


def main() -> None:
    """What the command line says; exits with its code."""
    sys.exit(guarded(lambda: cli(standalone_mode=False)))
