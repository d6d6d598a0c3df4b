"""What commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import asyncio
import math
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from backends.state import to_json
from tui.kit.safe_text import SafeStream, safe, safe_line

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator


T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
IMPATIENT_AFTER_S = 1.0
"""A signal that comes sooner after another is the same wish: keys bounce."""
CLEAR_LINE = "\r\x1b[K"

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON on stdout."
)


def emit_json(value: object) -> None:
    """One JSON value on stdout; what would drive a terminal is written as escapes."""
    text = to_json(value, indent=2)
    show("".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text))


def say(text: str = "") -> None:
    """A line for the person watching, on stderr."""
    _write(text, err=True)


def show(text: str = "", *, end: str = "\n") -> None:
    """A result, on stdout."""
    _write(text, end=end)


def shower() -> Callable[[str], None]:
    """Shows a result that comes in pieces, which may cut anywhere."""
    stream = SafeStream()
    return lambda piece: show(stream.feed(piece), end="")


def unseen(piece: str) -> None:
    """Shows nothing: the whole follows as JSON."""


def on_terminal() -> bool:
    """Whether a person may be watching."""
    return sys.stderr.isatty()


def redraw(text: str) -> None:
    """Replace the line the person watching sees on the terminal of stderr."""
    _write(safe_line(text), err=True, before=CLEAR_LINE, end="")


def _write(text: str, *, err: bool = False, before: str = "", end: str = "\n") -> None:
    """The one way out: whatever a peer, a model or a log says passes ``safe``."""
    click.echo(f"{before}{safe(text)}{end}", err=err, nl=False)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(
        f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)
    )


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
    """Run a coroutine; TERM and HUP end it like Ctrl-C, with its clean-up done.

    Raises:
        KeyboardInterrupt: a signal ended it.
    """
    with signals_kept():
        return asyncio.run(_until_signal(work))


@contextmanager
def signals_kept() -> Iterator[None]:
    """Let them do afterwards what they did."""
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
    """Cancel it; only a signal that comes later breaks off what it cleans up then."""
    loop = asyncio.get_running_loop()
    heard_at = -math.inf

    def cancel() -> None:
        nonlocal heard_at
        if loop.time() - heard_at > IMPATIENT_AFTER_S:
            heard_at = loop.time()
            task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, cancel)
