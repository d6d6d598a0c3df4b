"""What commands print: results on stdout, everything else on stderr."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import click

from backends.state import to_json
from backends.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from backends.state import ClusterSnapshot, Step

T = TypeVar("T")

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON on stdout."
)


def emit_json(value: object) -> None:
    """One JSON value on stdout."""
    click.echo(to_json(value, indent=2))


def say(text: str) -> None:
    """A line for the person watching, on stderr."""
    click.echo(text, err=True)


def printable(text: str) -> str:
    """Foreign text without the control characters that drive a terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; TERM and HUP end it like Ctrl-C, with its clean-up done.

    Raises:
        KeyboardInterrupt: a signal ended it.
    """
    return asyncio.run(_until_signal(work))


async def _until_signal(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


class StepPrinter:
    """Shows the steps of a launch on stderr: a bar on a terminal, lines elsewhere."""

    def __init__(self) -> None:
        """Nothing has been printed yet."""
        self._done: set[str] = set()
        self._terminal = sys.stderr.isatty()

    def show(self, snapshot: ClusterSnapshot) -> None:
        """Print what is new since the last snapshot."""
        for step in snapshot.steps:
            if step.state in ("done", "failed") and step.id not in self._done:
                self._done.add(step.id)
                self._finished(step)
            elif step.state == "running" and self._terminal:
                self._bar(step)

    def _finished(self, step: Step) -> None:
        mark = "✓" if step.state == "done" else "✗"
        clear = "\r\x1b[K" if self._terminal else ""
        took = format_seconds(step.seconds or 0.0)
        say(f"{clear}{mark} {step.title:24} {took:>9}  {printable(step.detail)}")

    def _bar(self, step: Step) -> None:
        width = 24
        full = round((step.progress or 0.0) * width)
        bar = "█" * full + "░" * (width - full)
        click.echo(
            f"\r\x1b[K… {step.title:24} {bar}  {step.detail}", err=True, nl=False
        )
