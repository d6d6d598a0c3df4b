"""``dllm-tui``: the console, and a command for everything it does."""

from __future__ import annotations

import importlib
import io
import shutil
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from click.core import ParameterSource

from backends.client.http import ASKING, ClientFacts
from backends.errors import DllmError, UsageError
from backends.startup import importing
from tui.cli.command import (
    PROGRAM,
    Group,
    cluster_option,
    completing,
    console_options,
    refuse_with,
    refuse_without,
    require_terminal,
    run,
)
from tui.cli.output import is_linear, linear, say, show, warn

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
CONSOLE_OPTIONS = frozenset(
    {"model", "theme", "no_mouse", "ascii_only", "record", "no_text", "replayed"}
)
COPIED = "copied.txt"

# Modules are imported only for the command that is run: the console must start fast.
SECTIONS = {
    "Clusters": {
        "up": "up",
        "plan": "plan",
        "plans": "plans",
        "status": "status",
        "share": "status",
        "drain": "down",
        "resume": "down",
        "down": "down",
        "demo": "demo",
    },
    "Chat": {"chat": "chats", "chats": "chats"},
    "Machines, models and engines": {
        "peers": "peers",
        "worker": "worker",
        "join": "worker",
        "relay": "relay",
        "models": "models",
        "engine": "engine",
        "links": "links",
    },
    "Diagnosis": {
        "processes": "processes",
        "logs": "logs",
        "events": "logs",
        "why": "links",
        "trace": "links",
        "bench": "bench",
        "race": "race",
        "doctor": "doctor",
        "replay": "replay",
    },
    "Access and settings": {
        "connect": "connect",
        "keys": "connect",
        "config": "config",
        "service": "service",
        "completion": "completion",
    },
}
"""Commands as the overview shows them, each with its module of ``tui.cli``."""
COMMANDS = {name: m for section in SECTIONS.values() for name, m in section.items()}
ALIASES = {
    "stop": "down",
    "inspect": "models show",
    "key": "keys",
    "lab": "links",
    "up --no-relay": "up --relay off",
    "up --pair auto": "up --relay auto",
    "up --pair always": "up --relay pair",
    "up --pair never": "up --relay single",
    "up --dry-run": "plan",
    "drain --off": "resume",
    "connect --list": "connect",
}
EXAMPLES = """
dllm-tui                                  open the console
dllm-tui demo                             open it on a two-worker cluster
dllm-tui --plain                          lines of text, for screen readers
dllm-tui up m.gguf --workers 2 --detach   launch without the console
dllm-tui peers add mini                   add a machine
dllm-tui chat "Why is the sky blue?"      ask the model
dllm-tui down                             stop the cluster
"""


class Root(Group):
    """All commands; each is imported at its first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        with importing(), _ctrl_c_ends():
            module = importlib.import_module(f"tui.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def completions(
        self, source: str, ctx: click.Context, typed: str
    ) -> list[CompletionItem]:
        # Imported here because only a shell that completes needs it.
        from tui.cli.completion import completions

        return completions(source, ctx, typed)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        for title, names in SECTIONS.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            limit = formatter.width - 6 - max(map(len, COMMANDS))
            rows = [(name, c.get_short_help_str(limit)) for name, c in found if c]
            with formatter.section(title):
                formatter.write_dl(rows)


@contextmanager
def _ctrl_c_ends() -> Iterator[None]:
    """Let Ctrl-C just end the process meanwhile, as in ``tui.entry`` at the beginning.

    Where somebody listens to it, or ignores it, that stays so.
    """
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # Only the main thread may say what it does.
    if not raises or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _print_version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from importlib.metadata import version

        show(f"{PROGRAM} {version(PROGRAM)}")
        ctx.exit()


@click.group(
    PROGRAM,
    cls=Root,
    aliases=ALIASES,
    examples=EXAMPLES,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.option(
    "--model",
    metavar="PATH",
    shell_complete=completing("models"),
    help="Model to open with.",
)
@console_options
@click.option(
    "--plain",
    is_flag=True,
    envvar="DLLM_PLAIN",
    show_envvar=True,
    help="Lines of text instead of a screen, for screen readers.",
)
@click.option(
    "--replay",
    "replayed",
    metavar="FILE",
    help="Replay what --record wrote, without any machine.",
)
@click.option(
    "--readonly",
    is_flag=True,
    envvar="DLLM_READONLY",
    show_envvar=True,
    help="Refuse everything that would change something.",
)
@cluster_option
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(
    ctx: click.Context,
    model: str | None,
    theme: str | None,
    no_mouse: bool,
    ascii_only: bool,
    plain: bool,
    record: str | None,
    no_text: bool,
    replayed: str | None,
    readonly: bool,
    cluster: str,
) -> None:
    """Run a large GGUF model split over several machines with stock llama.cpp.

    Without a command it opens the console and re-attaches to what runs.
    """
    _require_taken(ctx)
    asking = ClientFacts(
        program=ctx.invoked_subcommand or "console",
        readonly=readonly or _watches_only(),
    )
    token = ASKING.set(asking)
    ctx.call_on_close(lambda: ASKING.reset(token))
    if plain:
        refuse_with("--plain", "--model", "--theme", "--no-mouse", "--ascii")
        refuse_with("--plain", "--record", "--replay")
        ctx.with_resource(linear())
    if replayed is not None:
        refuse_with("--replay", "--model", "--record", "--no-text", "--cluster")
        from tui.cli.replay import open_replay

        open_replay(
            Path(replayed), theme=theme, mouse=not no_mouse, ascii_only=ascii_only
        )
    elif ctx.invoked_subcommand is None:
        if not record:
            refuse_without("--record", "--no-text")
        open_console(
            model=_whole(model),
            theme=theme,
            mouse=not no_mouse,
            ascii_only=ascii_only,
            cluster=cluster,
            record=record,
            words=not no_text,
        )


def _require_taken(ctx: click.Context) -> None:
    """Refuse options of the console that the command does not take over."""
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
    """True if the settings ask for read-only; an unreadable file counts as no."""
    from backends.config import load_config
    from backends.paths import user_paths

    try:
        return load_config(user_paths()).readonly
    except DllmError:
        return False


def _whole(model: str | None) -> str | None:
    if model is None:
        return None
    from tui.cli.model_argument import require_model

    return run(require_model(model))


def import_console() -> Any:
    with importing(), _ctrl_c_ends():
        from tui.app.app import DllmApp
    return DllmApp


def open_console(
    *,
    model: str | None,
    mouse: bool,
    cluster: str,
    theme: str | None = None,
    ascii_only: bool = False,
    record: str | None = None,
    words: bool = True,
) -> None:
    if is_linear():
        open_plain(cluster)
        return
    require_terminal()
    app_class = import_console()
    from backends.client.client import ControllerClient
    from backends.client.records import ClientRecords
    from backends.clipboard import keep
    from backends.config import SettingsFile, load_config
    from backends.paths import user_paths
    from tui.model.files import theme_folders

    ASKING.set(msgspec.structs.replace(ASKING.get(), program="console"))
    paths = user_paths()
    config = load_config(paths)
    client = ControllerClient(paths, cluster=cluster)
    records = ClientRecords(client)
    app = app_class(
        client,
        memory_file=paths.console_file,
        theme_folders=theme_folders(paths),
        initial_model=model,
        # Who comes to a serving model comes to ask it something.
        serving_pane="chat",
        theme=theme or config.theme,
        keys=config.keys,
        keep_copy=lambda text: keep(text, paths.state_dir / COPIED),
        kept_where=str(paths.state_dir / COPIED),
        ascii_only=ascii_only or config.ascii,
        pulse=config.pulse,
        readonly=ASKING.get().readonly,
        settings=SettingsFile(paths),
        records=records,
    )
    # Whoever started it may ignore hang-ups (nohup): without its terminal a console
    # would read the end of a file for ever.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        if record:
            width, height = shutil.get_terminal_size()
            records.begin(file=Path(record), size=(width, height), words=words)
        app.run(mouse=mouse and config.mouse)
    finally:
        records.close()
    if app.left_running:
        called = _called()
        say(f"{app.left_running} {called} shows it again, {called} down stops it.")
    sys.exit(app.return_code or 0)


def _called() -> str:
    # As it was typed: make finds more than the user's shell.
    typed = sys.argv[0]
    return PROGRAM if shutil.which(PROGRAM) == typed else typed


def open_plain(cluster: str) -> None:
    from tui.cli.plain import PlainConsole

    names = [*COMMANDS, *(former for former in ALIASES if " " not in former)]
    root = ["--cluster", cluster, *(["--readonly"] if ASKING.get().readonly else [])]

    def command(words: list[str]) -> int:
        args = [*root, *words]
        return guarded(lambda: cli(args, standalone_mode=False, prog_name=PROGRAM))

    PlainConsole(cluster, command=command, names=names).run()


def guarded(command: Callable[[], object]) -> int:
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
        warn(
            f"dllm-tui: unexpected {type(error).__name__}: {error}. This is a bug of "
            "dllm-tui: please report it."
        )
        return EXIT_FAILED
    # Outside of click's own mode an exit code is what the command returns.
    return code if isinstance(code, int) else 0


def _told(error: click.ClickException) -> int:
    text = io.StringIO()
    error.show(file=text)
    warn(text.getvalue().rstrip())
    return error.exit_code


def _interrupted() -> int:
    # Of work that had not begun Python would say that nobody waited for it.
    warnings.simplefilter("ignore", RuntimeWarning)
    warn("Interrupted.")
    return EXIT_INTERRUPTED


def _say(error: DllmError, code: int) -> int:
    warn(f"dllm-tui: {error}")
    failure = error.failure()
    for line in failure.log_tail:
        warn(f"  | {line}")
    return code


def main() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding != "utf-8":
        # What a locale has no character for is no reason to end.
        sys.stdout.reconfigure(errors="replace")
    sys.exit(guarded(lambda: cli(standalone_mode=False, prog_name=PROGRAM)))
