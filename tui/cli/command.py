"""The runner of commands: their options, client, output and exit code."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource
from click.exceptions import NoSuchCommand

from backends.client.http import ASKING, ReadOnly
from backends.errors import DllmError, UsageError
from backends.state import CLUSTER_NAME, DEFAULT_CLUSTER
from tui.cli.output import Table, emit_json, quieted, show

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from backends.client.client import ControllerClient

    Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

T = TypeVar("T")

PROGRAM = "dllm-tui"
CLUSTER_VARIABLE = "DLLM_CLUSTER"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IMPATIENT_AFTER_S = 1.0
"""A signal that comes sooner after another is the same wish: keys bounce."""
SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


# --- commands and groups -------------------------------------------------------------


class Command(click.Command):
    """A command whose function returns its result, and that prints it.

    The function may be a coroutine. It is given what it has parameters for: its
    options, and ``client`` (of the cluster meant), ``cluster``, ``form`` (of the
    output) and ``as_json``.

    Args:
        shows: A table of the result, or its lines.
        as_json: What JSON shows in place of the result.
        fails: Whether a result means exit code 1.
        watches: Whether it changes nothing, so that ``--readonly`` allows it.
        quiet: Whether it prints progress, which ``--quiet`` then leaves out.
        stays: Whether a controller started for it stays where it fails.
        examples: Lines for its help, where its group has none; ``notes`` follow them.
        json: Whether the result can be had as JSON.
    """

    def __init__(
        self,
        name: str | None,
        *,
        shows: Table | Callable[[Any], Iterable[str]] | None = None,
        as_json: Callable[[Any], object] | None = None,
        fails: Callable[[Any], bool] | None = None,
        watches: bool = False,
        quiet: bool = False,
        stays: bool = False,
        examples: str = "",
        notes: str = "",
        json: bool = True,
        **attributes: Any,
    ) -> None:
        super().__init__(name, **attributes)
        self.shows = shows
        self.as_json = as_json
        self.fails = fails
        self.watches = watches
        self.stays = stays
        self.notes = notes
        if json:
            self.params += _form_options(listing=isinstance(shows, Table))
        if quiet:
            said = "Print results, warnings and errors only."
            self.params.append(click.Option(["-q", "--quiet"], is_flag=True, help=said))
        if examples:
            self.epilog = examples_text(examples, notes)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the function, print its result, and exit with 1 if that is a failure."""
        given = ctx.params
        acts = given.get("write", True) and not given.get("dry_run")
        if ASKING.get().readonly and acts and not self.watches:
            raise ReadOnly(ctx.command_path)
        form = given.pop("form", "")
        takes = inspect.signature(self.callback or (lambda: None)).parameters
        client = None
        if "client" in takes:
            from backends.client.client import ControllerClient

            client = ControllerClient(cluster=given.get("cluster") or DEFAULT_CLUSTER)
            given["client"] = client
        if "as_json" in takes:
            given["as_json"] = form == "json"
        if "form" in takes:
            given["form"] = form
        if "cluster" not in takes:
            given.pop("cluster", None)
        with quieted(given.pop("quiet", False)):
            result = super().invoke(ctx)
            if inspect.iscoroutine(result):
                if client is not None and not self.stays:
                    result = tidily(client, result)
                result = run(result)
            self._print(result, form)
        if self.fails is not None and self.fails(result):
            raise click.exceptions.Exit(1)
        return None

    def _print(self, result: Any, form: str) -> None:
        if result is None:
            return
        if form == "json":
            emit_json(self.as_json(result) if self.as_json else result)
        elif isinstance(self.shows, Table):
            self.shows.print(result, form)
        elif self.shows is not None:
            for line in self.shows(result):
                show(line)


class Group(click.Group):
    """A group that does something alone, and knows former names of its commands.

    Args:
        default: The command that runs where none is given.
        aliases: Former words, and those that stand for them now. Options may follow
            a former word; they need not stand beside it.
        examples: Lines for the help; each command takes those that begin with it.
        notes: Paragraphs below them.
    """

    command_class = Command
    group_class = type

    def __init__(
        self,
        name: str | None = None,
        *,
        default: str = "",
        aliases: Mapping[str, str] | None = None,
        examples: str = "",
        notes: str = "",
        **attributes: Any,
    ) -> None:
        super().__init__(name, **attributes)
        self.default = default
        self.aliases = aliases or {}
        self.examples = examples
        self.notes = notes
        self.path = f"{PROGRAM} {name}"
        if examples:
            self.epilog = examples_text(examples, notes)
        if default:
            self.subcommand_metavar = "[COMMAND] [ARGS]..."
            self.help = f"{self.help}\n\nWithout a command: {default}."

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        super().add_command(cmd, name)
        path = f"{self.path} {name or cmd.name}"
        own = [line for line in self.examples.splitlines() if f"{path} " in f"{line} "]
        if own and not cmd.epilog:
            cmd.epilog = examples_text("\n".join(own), getattr(cmd, "notes", ""))
        if isinstance(cmd, Group):
            cmd.path, cmd.examples = path, cmd.examples or "\n".join(own)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default command before options that are not the group's own."""
        first = args[0] if args else "-"
        is_named = not first.startswith("-") or first in ctx.help_option_names
        if self.default and not is_named and not ctx.resilient_parsing:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        for former, now in self.aliases.items():
            args = renamed(args, former.split(), now.split())
        known = self.list_commands(ctx)
        if args[0] not in known and args[0][:1] != "-" and not ctx.resilient_parsing:
            raise NoSuchCommand(args[0], possibilities=known, ctx=ctx)
        return super().resolve_command(ctx, args)


def renamed(args: list[str], former: list[str], now: list[str]) -> list[str]:
    """Put present words in place of former ones, unless they stand after ``--``."""
    end = args.index("--") if "--" in args else len(args)
    if args[:1] != former[:1] or not set(former) <= set(args[:end]):
        return args
    return [*now, *(arg for arg in args[:end] if arg not in former), *args[end:]]


def examples_text(examples: str, notes: str = "") -> str:
    lines = (f"  {line}" for line in examples.strip().splitlines())
    return "\n".join(["\b", "Examples:", *lines, "", notes.strip()])


# --- options -------------------------------------------------------------------------


def _form_options(*, listing: bool) -> list[click.Parameter]:
    forms = ("table", "wide", "json", "name") if listing else ("text", "json")
    return [
        click.Option(
            ["-o", "--output", "form"],
            type=click.Choice(forms),
            default=forms[0],
            help="Output format.",
        ),
        click.Option(["--json", "form"], flag_value="json", help="Same as -o json."),
    ]


class Inherited(click.Option):
    """An option that may also stand before the command: the last one counts."""

    def consume_value(
        self, ctx: click.Context, opts: Mapping[str, click.Parameter]
    ) -> tuple[Any, ParameterSource]:
        """Find the value; that of the root ranks right after the command's own."""
        value, source = super().consume_value(ctx, opts)
        root = ctx.find_root()
        given = ParameterSource.COMMANDLINE
        if source is not given and root.get_parameter_source(self.name) is given:
            return root.params[self.name], given
        return value, source


class Name(click.ParamType[str]):
    """A name that a source in ``tui.cli.completion`` completes."""

    def __init__(self, source: str, name: str = "NAME") -> None:
        self.source = source
        self.name = name

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        return self.name if isinstance(param, click.Option) else None

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return completing(self.source)(ctx, param, incomplete)


def options(
    *rows: tuple[Any, ...], cls: type[click.Option] = click.Option
) -> Callable[[Any], Any]:
    """Add options by rows of flags, type, help, and a default if there is one.

    In place of a type ``bool`` makes a flag, and a text names a value of any text.
    Several values are allowed if the help ends with ``(repeatable).``.
    """

    def add(command: Any) -> Any:
        for row in reversed(rows):
            command = _option(*row, cls=cls)(command)
        return command

    return add


def _option(
    flags: str, kind: Any, text: str, default: object = None, **more: Any
) -> Callable[[Any], Any]:
    more |= {} if default is None else {"default": default}
    if kind is bool:
        more["is_flag"] = True
    else:
        more["metavar" if isinstance(kind, str) else "type"] = kind
        if isinstance(kind, click.IntRange | click.FloatRange):
            more["metavar"] = "N"
    if text.endswith("(repeatable)."):
        more["multiple"] = True
    return click.option(*flags.split(), help=text, **more)


def refuse_with(option: str, *others: str) -> None:
    """Refuse options that have no effect beside another one that is given."""
    for other in _typed(others):
        raise click.UsageError(f"{other} has no effect with {option}.")


def refuse_without(needed: str, *options: str) -> None:
    """Refuse options that have no effect without something that is not given."""
    for option in _typed(options):
        raise click.UsageError(f"{option} needs {needed}.")


def _typed(options: Iterable[str]) -> Iterator[str]:
    context, given = click.get_current_context(), ParameterSource.COMMANDLINE
    names = {opt: p.name or "" for p in context.command.params for opt in p.opts}
    return (o for o in options if context.get_parameter_source(names[o]) is given)


def _checked(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    if value is None or CLUSTER_NAME.fullmatch(value):
        return value
    raise UsageError(
        f"{value!r} is not a valid cluster name",
        "Use up to 32 letters, digits, dashes and underscores.",
    )


def completing(source: str) -> Complete:
    """For ``shell_complete``: the names of a source that the root command knows."""

    def complete(
        context: click.Context, parameter: click.Parameter, typed: str
    ) -> list[CompletionItem]:
        root: Any = context.find_root().command
        found: list[CompletionItem] = root.completions(source, context, typed)
        return found

    return complete


def _cluster_option(text: str, **default: str) -> Callable[[Any], Any]:
    return click.option(
        "--cluster",
        cls=Inherited,
        metavar="NAME",
        envvar=CLUSTER_VARIABLE,
        show_envvar=True,
        callback=_checked,
        shell_complete=completing("clusters"),
        help=text,
        **default,
    )


cluster_option = _cluster_option("Cluster to use.", default=DEFAULT_CLUSTER)
any_cluster_option = _cluster_option("Show only this cluster.")
console_options = options(
    ("--theme", Name("themes"), "Theme to open with."),
    ("--no-mouse", bool, "Leave the mouse to the terminal."),
    ("--ascii ascii_only", bool, "Draw with ASCII characters only."),
    ("--record", "FILE", "Record what it shows, prompts and answers too."),
    ("--no-text", bool, "Leave prompts, answers and their log out of that."),
    cls=Inherited,
)


def quantity(text: str, units: Mapping[str, float], example: str) -> float:
    """A number with its unit, in the base unit of ``units``."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z/]*)\s*", text.lower())
    if match is None or match[2] not in units:
        raise UsageError(f"Cannot read {text!r}", f"Write it like {example}.")
    return float(match[1]) * units[match[2]]


NO_SCREEN = "Without one use --plain, or a command: dllm-tui --help lists them."


def require_terminal() -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "The console needs a terminal",
            NO_SCREEN,
        )
    if os.environ.get("TERM") == "dumb":
        raise UsageError("This terminal draws no screen (TERM=dumb)", NO_SCREEN)


# --- running -------------------------------------------------------------------------


async def tidily(client: ControllerClient, work: Coroutine[Any, Any, T]) -> T:
    """Do some work; if it fails, end an idle controller that was started for it."""
    try:
        return await work
    except BaseException:
        if client.started_controller:
            with contextlib.suppress(DllmError):
                await client.shutdown(only_if_idle=True)
        raise


@contextmanager
def prompting() -> Iterator[None]:
    """Let signals end a prompt at once: it blocks the loop that would hear of them."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.default_int_handler)
    task = asyncio.current_task()
    try:
        yield
    finally:
        if task is not None:
            _cancel_on_signals(task)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; TERM and HUP end it like Ctrl-C, with its clean-up done."""
    with signals_kept():
        return asyncio.run(_until_signal(work))


@contextmanager
def signals_kept() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        for number, does in before.items():
            signal.signal(number, does)


async def _until_signal(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    _cancel_on_signals(task)
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        # What is left takes a moment, and breaks where a signal comes into it.
        for number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)


def _cancel_on_signals(task: asyncio.Future[Any]) -> None:
    loop = asyncio.get_running_loop()
    heard_at = -math.inf

    def cancel() -> None:
        nonlocal heard_at
        if loop.time() - heard_at > IMPATIENT_AFTER_S:
            heard_at = loop.time()
            task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, cancel)
