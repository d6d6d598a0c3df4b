"""The status of a worker for its owner: as lines, and as a screen with keys."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import click

from backends.errors import DllmError
from backends.mesh.token import LIFE_S
from backends.units import (
    format_age,
    format_bytes,
    format_count,
    format_digits,
    format_ms,
)
from tui.cli.output import aligned, emit_json, redraw_screen, show
from tui.model.qr_code import qr_text
from tui.widgets.safe_text import safe_line

if TYPE_CHECKING:
    from backends.mesh.owner_limits import OwnerLimits
    from backends.mesh.token import Token
    from backends.mesh.worker import Worker
    from backends.mesh.worker_status import LogEntry, TenantState, WorkerStatus

DRAW_S = 1.0
LOG_LINES = 8
INDENT = " " * len("  limits   ")
COLOURS = {"●": "green", "◐": "yellow", "○": "bright_black", "?": "yellow"}
"""Of the signs that begin lines."""


# --- as lines --------------------------------------------------------------------


def status_lines(status: WorkerStatus) -> Iterator[str]:
    yield from _head(status)
    yield ""
    yield from _consoles(status)
    yield ""
    yield from _log(status, LOG_LINES)


def show_entry(entry: LogEntry, as_json: bool) -> None:
    """Print a line of a log; JSON has its time in Unix seconds."""
    if as_json:
        emit_json(entry, indent=0)
    else:
        show(_log_text(entry))


def _log_text(entry: LogEntry) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(entry.at))
    return f"{clock} {safe_line(entry.text)}"


def limits_text(limits: OwnerLimits) -> str:
    memory = limits.memory_bytes
    hours = limits.hours
    add = "which consoles may add to" if limits.writable else "read-only"
    return " · ".join(
        (
            format_bytes(memory) if memory is not None else "all memory",
            ", ".join(limits.devices) or "all devices",
            f"{hours[0]} to {hours[1]} o'clock" if hours else "at all hours",
            f"models in {', '.join(limits.models)}, {add}",
        )
    )


def _head(status: WorkerStatus) -> Iterator[str]:
    sign = "◐" if status.refusal else "●"
    yield f"{sign} {safe_line(status.name)}: {status.refusal or 'lent'}"
    yield f"  limits   {limits_text(status.limits)}"
    most = status.limits.memory_bytes
    of = f" of {format_bytes(most)}" if most is not None else ""
    count = sum(console.processes for console in status.consoles)
    runs = format_count(count, "program")
    yield f"  in use   {format_bytes(status.used_bytes)}{of} of memory · {runs}"
    if status.ways:
        yield f"  reached  by {' · '.join(map(safe_line, status.ways))}"


def _consoles(status: WorkerStatus) -> Iterator[str]:
    if not status.consoles:
        yield "  No console uses it now."
        return
    rows = [_console(console) for console in status.consoles]
    for line in aligned(rows, [False] * len(rows[0])):
        yield f"  {line}"


def _console(console: TenantState) -> tuple[str, ...]:
    sign = "●" if console.connected else "○"
    on = f" on {', '.join(console.devices)}" if console.devices else ""
    return (
        f"{sign} {safe_line(console.name)}",
        f"{console.way} {safe_line(console.address)}" if console.connected else "away",
        "" if console.rtt_ms is None else format_ms(console.rtt_ms).strip(),
        f"{format_count(console.processes, 'program')}{on}",
        format_bytes(console.memory_bytes),
    )


def _log(status: WorkerStatus, count: int) -> Iterator[str]:
    for line in status.log[-count:]:
        yield f"  {_log_text(line)}"


# --- as a screen -----------------------------------------------------------------


class WorkerScreen:
    """Draws a worker of this process, and acts on its owner's keys."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._token: Token | None = None
        self._draws_code = self._asks_end = False

    async def run(self) -> None:
        """Draw until its owner ends it."""
        self._worker.tenants.by_digits.is_on_screen = True
        if self._worker.listens and not self._worker.tenants.pairings.consoles:
            self._token = self._worker.invite(LIFE_S)
        drawn = ""
        async with _keys() as keys:
            while True:
                text = "\n".join(self.lines(*shutil.get_terminal_size()))
                if text != drawn:
                    redraw_screen(text, painted)
                    drawn = text
                try:
                    async with asyncio.timeout(DRAW_S):
                        key = await keys.get()
                except TimeoutError:
                    continue
                if await self.press(key):
                    return

    async def press(self, key: str) -> bool:
        """Act on a key; true if it ends the screen, and the worker with it."""
        tenants = self._worker.tenants
        if self._asks_end:
            self._asks_end = False
            return key == "y"
        match key:
            case "q":
                self._asks_end = any(one.processes for one in tenants.known.values())
                return not self._asks_end
            case "p":
                self._worker.pause(not tenants.pairings.paused)
                # Its own loop says what goes wrong.
                with contextlib.suppress(DllmError):
                    await tenants.look()
            case "i" if self._worker.listens:
                self._token = self._worker.invite(LIFE_S)
            case "c":
                self._draws_code = not self._draws_code and self._open_token is not None
            case "y" | "n" if (asking := tenants.pairings.asking) is not None:
                # It may have gone meanwhile.
                with contextlib.suppress(DllmError):
                    self._worker.decide(asking.digits, key == "y")
        return False

    @property
    def _open_token(self) -> Token | None:
        token = self._token
        return token if token is not None and self._worker.is_open(token) else None

    def lines(self, width: int, height: int) -> Iterator[str]:
        status, token = self._worker.status, self._open_token
        asks = self._asks_end or self._worker.tenants.pairings.asking is not None
        # Its keys act: a question is seen before it is answered.
        self._draws_code &= token is not None and not asks
        keys = list(self._key_lines(status))
        above = list(_head(status))
        if token is not None:
            if self._draws_code and (code := _code(token, width, height)):
                yield from code
                return
            above += self._token_lines(token)
        above += self._pairing_lines()
        above = [*_wrapped([*above, "", *_consoles(status)], width), ""]
        rows = sum(max(1, math.ceil(len(line) / width)) for line in [*above, *keys])
        yield from above
        room = height - rows - 2
        log = list(_wrapped(_log(status, LOG_LINES), width))
        yield from log[-max(room, 1) :]
        yield ""
        yield from keys

    def _token_lines(self, token: Token) -> Iterator[str]:
        left = format_age(math.ceil((token.expires_at - time.time()) / 60) * 60)
        yield f"  token    good once, for {left}: dllm-tui peers add TOKEN"
        # Copied in one piece only if nothing stands before it.
        yield token.text
        if self._draws_code:
            yield f"{INDENT}This terminal is too small to draw it as a code."

    def _pairing_lines(self) -> Iterator[str]:
        asking = self._worker.tenants.pairings.asking
        if asking is None or self._asks_end:
            # One question at a time: both are answered by the same keys.
            return
        shown = format_digits(asking.digits)
        yield f"? pairing  {safe_line(asking.name)} ({asking.address}) wants to use it"
        if asking.accepted is None:
            yield f"{INDENT}Does it show {shown}?   y yes   n no"
        elif asking.accepted:
            yield f"{INDENT}You agreed to {shown}; its user has not yet."
        else:
            yield f"{INDENT}You refused it."

    def _key_lines(self, status: WorkerStatus) -> Iterator[str]:
        if self._asks_end:
            count = sum(console.processes for console in status.consoles)
            runs = format_count(count, "program")
            yield f"? {runs} of consoles end with it. End it?   y yes   n no"
            return
        resumes = "resume" if self._worker.tenants.pairings.paused else "pause"
        code = "   c code" if self._open_token else ""
        invites = "   i invite" if self._worker.listens else ""
        yield f"p {resumes}{invites}{code}   q end"


def painted(text: str) -> str:
    """The text with the signs at the beginning of its lines in colour."""
    if os.environ.get("NO_COLOR"):
        return text

    def line(plain: str) -> str:
        bare = plain.lstrip()
        colour = COLOURS.get(bare[:1])
        if colour is None or bare[1:2] != " ":
            return plain
        return f"{plain[: -len(bare)]}{click.style(bare[0], fg=colour)}{bare[1:]}"

    return "\n".join(map(line, text.split("\n")))


def _code(token: Token, width: int, height: int) -> list[str]:
    drawn = [*qr_text(token.text).splitlines(), "c back"]
    fits = len(drawn) < height and max(map(len, drawn)) <= width
    return drawn if fits else []


def _wrapped(lines: Iterator[str] | list[str], width: int) -> Iterator[str]:
    for line in lines:
        yield textwrap.fill(
            line,
            width,
            subsequent_indent=INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )


@contextlib.asynccontextmanager
async def _keys() -> AsyncIterator[asyncio.Queue[str]]:
    """The keys that are pressed meanwhile, unseen."""
    import termios
    import tty

    pressed: asyncio.Queue[str] = asyncio.Queue()
    before = termios.tcgetattr(sys.stdin)
    loop = asyncio.get_running_loop()
    try:
        tty.setcbreak(sys.stdin)
        loop.add_reader(sys.stdin, lambda: pressed.put_nowait(sys.stdin.read(1)))
        yield pressed
    finally:
        loop.remove_reader(sys.stdin)
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
