"""Progress of long work on stderr: one redrawn line, or few without a terminal."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from backends.state import ClusterSnapshot
from backends.tasks import end_tasks
from backends.units import format_bytes, format_percent, format_seconds
from tui.cli.output import on_terminal, redraw, say
from tui.widgets.safe_text import safe_line

BAR_CELLS = 24
TICK_S = 1.0
# Before that what is left is guesswork.
LEFT_AFTER_S = 1.0
LEFT_AFTER_FRACTION = 0.01


def progress_text(
    title: str,
    fraction: float | None,
    elapsed_s: float,
    detail: str = "",
    columns: int = 1000,
) -> str:
    """``… title ████░░░░ 43 %  12.3 s, ~16.0 s left  detail``.

    What is left is told where the rate so far tells it, and the detail does not. Where
    there is no room the bar is shorter.
    """
    times = format_seconds(max(elapsed_s, 0.0))
    if not detail.endswith(" left") and (left_s := remaining_s(fraction, elapsed_s)):
        times += f", ~{format_seconds(left_s)} left"
    part = "" if fraction is None else f"{format_percent(fraction):>5}"
    begin, end = f"… {title:24} ", f" {part:5}  {times}  {detail}".rstrip()
    cells = min(BAR_CELLS, max(columns - len(begin) - len(end), 0))
    return f"{begin if cells else begin.rstrip()}{_bar(fraction, cells)}{end}"


def remaining_s(fraction: float | None, elapsed_s: float) -> float | None:
    if fraction is None or not LEFT_AFTER_FRACTION <= fraction < 1:
        return None
    if elapsed_s < LEFT_AFTER_S:
        return None
    return elapsed_s * (1 - fraction) / fraction


def _bar(fraction: float | None, cells: int) -> str:
    full = round(min(max(fraction or 0.0, 0.0), 1.0) * cells)
    return "█" * full + "░" * (cells - full)


class ProgressLine:
    """The line of the present work; its clock runs on between two reports."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._terminal = on_terminal()
        self._title = ""
        self._fraction: float | None = None
        self._detail = ""
        self._since = 0.0

    def show(
        self,
        title: str,
        fraction: float | None = None,
        detail: str = "",
        *,
        since: float | None = None,
    ) -> None:
        """Show the progress of a task; without ``since`` it began at the first call."""
        if title != self._title:
            self._title, self._since = title, self._clock()
            if not self._terminal:
                say(title)
        self._fraction, self._detail = fraction, detail
        self._since = self._since if since is None else since
        self.tick()

    def show_bytes(self, title: str, done: int, total: int) -> None:
        detail = f"{format_bytes(done)} of {format_bytes(total)}"
        fraction = done / total if total else None
        self.show(title, fraction, detail)

    def tick(self) -> None:
        if not (self._terminal and self._title):
            return
        elapsed_s = self._clock() - self._since
        # A line that wraps cannot be drawn over.
        columns = shutil.get_terminal_size().columns - 1
        title, detail = safe_line(self._title), safe_line(self._detail)
        text = progress_text(title, self._fraction, elapsed_s, detail, columns)
        redraw(text[:columns])

    def clear(self) -> None:
        if self._terminal and self._title:
            redraw("")
        self._title = ""


@asynccontextmanager
async def ticking(progress: ProgressLine) -> AsyncIterator[None]:
    """Let the clock of a line run on during a wait."""

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_S)
            progress.tick()

    task = asyncio.create_task(tick())
    try:
        yield
    finally:
        await end_tasks(task)
        progress.clear()


class StepPrinter:
    """Shows the steps of a launch: those done, and on a terminal the one under way."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._done: set[str] = set()
        self._terminal = on_terminal()
        self.line = ProgressLine(clock)

    def show(self, snapshot: ClusterSnapshot) -> None:
        """Print what is new since the last snapshot."""
        for step in snapshot.steps:
            if step.state in ("done", "failed") and step.id not in self._done:
                self._done.add(step.id)
                mark = "✓" if step.state == "done" else "✗"
                took = format_seconds(step.seconds or 0.0)
                self.line.clear()
                say(f"{mark} {step.title:24} {took:>9}  {step.detail}")
            elif step.state == "running" and self._terminal:
                self.line.show(
                    step.title, step.progress, step.detail, since=step.started_at
                )
