"""``dllm-tui replay``: a record in the console, as a terminal film, or as pictures."""

from __future__ import annotations

import asyncio
import json
import selectors
import tempfile
from collections.abc import Awaitable, Callable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backends.client.record_player import FlightRecord, RecordPlayer
from backends.errors import UsageError, disk_errors
from backends.paths import user_paths
from backends.units import format_bytes, format_seconds
from tui.cli.command import (
    Command,
    options,
    refuse_with,
    refuse_without,
    require_terminal,
)
from tui.cli.output import say, write_document
from tui.model.names import SCREENS

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from tui.app.replay_app import ReplayApp

EXAMPLES = """
dllm-tui replay seen.jsonl.gz
dllm-tui replay seen.jsonl.gz --export seen.cast --from 10 --to 40 --speed 4
dllm-tui replay seen.jsonl.gz --export seen.svg --at 12.5 --screen traffic
"""
SETTLES_S = 2.0
"""A console shows all of a moment after so long."""


def _size(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, int] | None:
    columns, _, rows = (text or "").partition("x")
    if not text:
        return None
    if not (columns.isdecimal() and rows.isdecimal() and int(columns) and int(rows)):
        raise UsageError(f"Cannot read the size {text!r}", "Write it like 120x36.")
    return int(columns), int(rows)


@click.command(cls=Command, watches=True, json=False, examples=EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path))
@options(
    ("--export", "FILE", "Write a film (.cast, asciicast v2) or a picture (.svg)."),
    ("--force", bool, "Replace a file of that name."),
    ("--at", click.FloatRange(0), "Moment of the picture, in seconds."),
    ("--from from_s", click.FloatRange(0), "Where the film begins.", 0.0),
    ("--to to_s", click.FloatRange(0), "Where it ends; by default, where all does."),
    ("--speed", click.FloatRange(0.1, 100), "How much faster it goes.", 1.0),
    ("--screen", click.Choice(SCREENS), "Screen that is shown.", "cluster"),
    ("--theme", "NAME", "Theme to draw with."),
)
@click.option("--size", metavar="WxH", callback=_size, help="Size, such as 120x36.")
def replay(
    file: Path,
    export: str | None,
    force: bool,
    at: float | None,
    from_s: float,
    to_s: float | None,
    speed: float,
    screen: str,
    theme: str | None,
    size: tuple[int, int] | None,
) -> None:
    """Replay a console's record, without any machine.

    FILE is what dllm-tui --record wrote. Neither network nor controller is needed.
    Space plays and pauses, the arrows go 5 seconds, with Shift a minute. [ and ] go
    to what happened, < and > change the speed.
    """
    for seconds in (at, from_s, to_s, speed):
        if seconds is not None and not isfinite(seconds):
            raise UsageError(f"{seconds} is no time and no speed", "Give a number.")
    target = Path(export or "")
    if export is None:
        others = ("--force", "--at", "--from", "--to", "--speed", "--size")
        refuse_without("--export", *others)
        open_replay(file, theme=theme, screen=screen)
        return
    if target.suffix not in (".cast", ".svg"):
        raise UsageError(f"Cannot write {target.name}", "End it with .cast or .svg.")
    with disk_errors("write", target):
        is_there = target.is_file()
    if is_there and not force:
        raise UsageError(f"{target} exists", "Give another name, or --force.")
    if target.suffix == ".cast":
        refuse_without("a picture (.svg)", "--at")
    else:
        refuse_with("a picture (.svg)", "--from", "--to", "--speed")
    record = FlightRecord.read(file)
    shape = size or record.header.size
    last_s = min(record.duration_s if to_s is None else to_s, record.duration_s)
    if target.suffix == ".svg":
        begin_s = record.duration_s if at is None else at
        content = _picture(record, shape, screen, theme, at_s=begin_s)
    elif from_s >= last_s:
        raise UsageError(
            f"There is nothing between {from_s:g} s and {last_s:g} s",
            f"The record is {format_seconds(record.duration_s)} long.",
        )
    else:
        content = _film(record, shape, screen, theme, (from_s, last_s), speed)
    write_document(target, content)
    say(f"Wrote {target} ({format_bytes(len(content.encode()))}).")


def open_replay(
    file: Path,
    *,
    theme: str | None = None,
    screen: str = "cluster",
    mouse: bool = True,
    ascii_only: bool = False,
) -> None:
    """Open the console on a record; it remembers nothing of what is done there."""
    require_terminal()
    player = RecordPlayer(FlightRecord.read(file))
    with tempfile.TemporaryDirectory(prefix="dllm-") as folder:
        app = _console(player, Path(folder), theme=theme, ascii_only=ascii_only)
        if screen != "cluster":
            app.call_later(app.action_show_mode, screen)
        app.run(mouse=mouse)


def _console(
    player: RecordPlayer, folder: Path, *, theme: str | None, **more: Any
) -> ReplayApp:
    from backends.config import load_config
    from tui.app.replay_app import ReplayApp
    from tui.model.files import recall_if_whole, theme_folders

    paths = user_paths()
    config = load_config(paths)
    remembered, _ = recall_if_whole(paths.console_file)
    return ReplayApp(
        player.client(paths),
        player,
        memory_file=folder / "console.json",
        theme_folders=theme_folders(paths),
        theme=theme or config.theme or remembered.theme,
        keys=config.keys,
        **more,
    )


# --- without a terminal ---------------------------------------------------------


def _picture(
    record: FlightRecord,
    size: tuple[int, int],
    screen: str,
    theme: str | None,
    *,
    at_s: float,
) -> str:
    async def take(app: ReplayApp, player: RecordPlayer, _: Pilot[None]) -> str:
        player.play(False)
        app.seek(at_s)
        await app.action_show_mode(screen)
        await asyncio.sleep(SETTLES_S)
        return app.export_screenshot(title="dllm-tui", simplify=True)

    picture: str = drawn(record, size, theme, take)
    return picture


def _film(
    record: FlightRecord,
    size: tuple[int, int],
    screen: str,
    theme: str | None,
    part: tuple[float, float],
    speed: float,
) -> str:
    """An asciicast of version 2: what the console writes, each time it draws."""
    from_s, to_s = part
    lines: list[str] = []
    began: float | None = None

    async def roll(app: ReplayApp, player: RecordPlayer, _: Pilot[None]) -> None:
        nonlocal began
        player.play(False)
        app.seek(from_s)
        await app.action_show_mode(screen)
        await asyncio.sleep(SETTLES_S)
        began = asyncio.get_running_loop().time()
        app.refresh(layout=True)
        player.run_at(speed)
        player.play(True)
        await asyncio.sleep((to_s - from_s) / speed)

    def written(at_s: float, text: str) -> None:
        if began is not None:
            lines.append(json.dumps([round(at_s - began, 3), "o", text]))

    drawn(record, size, theme, roll, written)
    header = {
        "version": 2,
        "width": size[0],
        "height": size[1],
        "timestamp": int(record.header.began_at + from_s),
        "title": "dllm-tui",
        "env": {"TERM": "xterm-256color"},
    }
    first = json.dumps([0.0, "o", "\x1b[?25l\x1b[2J\x1b[H"])
    return "\n".join([json.dumps(header), first, *lines, ""])


def drawn(
    record: FlightRecord,
    size: tuple[int, int],
    theme: str | None,
    work: Callable[[ReplayApp, RecordPlayer, Pilot[Any]], Awaitable[Any]],
    written: Callable[[float, str], None] = lambda at_s, text: None,
) -> Any:
    """Do something with a console that nobody sees, as fast as it can be drawn.

    ``written`` gets what goes to the terminal, and when. Returns what ``work`` does.
    """
    import os

    # Read when Textual is imported.
    os.environ |= {"TEXTUAL_COLOR_SYSTEM": "truecolor", "TEXTUAL_ANIMATIONS": "none"}
    from textual import _time
    from textual.drivers.headless_driver import HeadlessDriver

    selector = JumpingSelector()

    class FilmDriver(HeadlessDriver):
        is_headless = False

        def write(self, data: str) -> None:
            written(selector.now_s, data)

    async def run(folder: str) -> Any:
        player = RecordPlayer(record, lambda: selector.now_s)
        app = _console(player, Path(folder), theme=theme, bare=True)
        app.driver_class = FilmDriver
        result: list[Any] = []

        async def drive(pilot: Pilot[Any]) -> None:
            result.append(await work(app, player, pilot))
            app.exit()

        await app.run_async(size=size, auto_pilot=drive)
        return result[0]

    now, _time.get_time = _time.get_time, lambda: selector.now_s
    try:
        with (
            tempfile.TemporaryDirectory(prefix="dllm-") as folder,
            asyncio.Runner(loop_factory=lambda: JumpingLoop(selector)) as runner,
        ):
            return runner.run(run(folder))
    finally:
        _time.get_time = now


class JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: its clock jumps to the next moment at which something is."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found and timeout:
            self.now_s += timeout
        return found


class JumpingLoop(asyncio.SelectorEventLoop):
    """Works in threads are done at once, in this one: no thread knows this clock."""

    def __init__(self, selector: JumpingSelector) -> None:
        self._jumping = selector
        super().__init__(selector)

    def time(self) -> float:
        return self._jumping.now_s

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future
