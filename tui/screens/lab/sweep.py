"""The sweep of the Lab: its plot, what is told of it, and its files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from rich.style import Style

from backends.bench.chart import axis_end
from backends.bench.sweep_report import (
    highest,
    sweep_csv,
    sweep_svg,
    sweep_text,
)
from backends.errors import disk_errors
from backends.state.sweeps import Sweep, SweepPoint
from backends.units import format_rate
from backends.writing import write_new
from tui.screens.lab.speed import Canvas, Plot
from tui.widgets.row_list import Choice
from tui.widgets.sources import predicted
from tui.widgets.strips import Drawn, fitting

LEGENDS = (
    "● measured   ○ disturbed   ··· predicted   ░ nine of ten runs",
    "● measured   ○ disturbed   ··· predicted",
    "● measured   ··· predicted",
)
HOW = (
    "The link gets slower in steps from 0 to 50 ms each way, while the model answers "
    "short prompts. Clients of the API feel it. Then the lab is as it was."
)


def sweep_choices(workers: Sequence[str], current: str) -> list[Choice]:
    """The links to sweep, the marked one first; an id is a worker, or empty for all."""
    names = [current, *(name for name in workers if name != current)]
    choices = [
        Choice(name, name, str(number) if number < 10 else "")
        for number, name in enumerate(names, start=1)
    ]
    if len(workers) > 1:
        choices.append(Choice("", "All links", "a"))
    return [*choices, Choice("cancel", "Cancel", "n")]


def progress_text(sweep: Sweep) -> str:
    """``step 3 of 11: +10 ms, predicted ~8.4 tok/s; the last one 8.2``."""
    if sweep.measuring is None:
        return f"{sweep_text(sweep)}."
    point, total = sweep.points[sweep.measuring], len(sweep.points)
    told = predicted(format_rate(point.predicted_tok_per_s).strip())
    text = f"step {sweep.measuring + 1} of {total}: +{point.latency_ms:g} ms, "
    text += f"predicted {told} tok/s"
    if sweep.measured:
        last = format_rate(sweep.measured[-1].tok_per_s).strip()
        text += f"; measured before {last}"
    return text


class SweepPlot(Plot):
    """Measured points over the predicted curve and its band."""

    DEFAULT_CSS = "SweepPlot { height: 1fr; width: 1fr; }"

    sweep: Drawn[Sweep | None] = Drawn(None)

    def extent(self) -> tuple[float, float]:
        if self.sweep is None:
            return 1.0, 1.0
        points = self.sweep.points
        return points[-1].latency_ms, axis_end(highest(points))

    def paint(self, canvas: Canvas) -> None:
        if self.sweep is None:
            return
        palette, points = self.palette, self.sweep.points
        for x in range(canvas.width):
            latency_ms = x / max(canvas.width - 1, 1) * canvas.right
            low, told, high = curve_at(points, latency_ms)
            _fill(canvas, x, low, high, palette.border)
            canvas.put((latency_ms, told), "", palette.dim)
        for one in self.sweep.measured:
            style = palette.warn if one.disturbed else palette.ok
            sign = "○" if one.disturbed else "●"
            canvas.put((one.latency_ms, one.tok_per_s or 0.0), sign, style)
        legend = fitting(LEGENDS, canvas.width - 10)
        canvas.text(0, canvas.width - len(legend), legend, palette.dim)


def _fill(canvas: Canvas, x: int, low: float, high: float, style: Style) -> None:
    above = max(round((1 - high / canvas.top) * (canvas.height - 1)), 0)
    below = round((1 - low / canvas.top) * (canvas.height - 1))
    for row in range(above, min(below, canvas.height - 1) + 1):
        canvas.rows[row][x] = ("░", style)


def curve_at(
    points: Sequence[SweepPoint], latency_ms: float
) -> tuple[float, float, float]:
    """Low end, prediction and high end at a latency, between the steps around it."""
    after = next(
        (at for at, one in enumerate(points) if one.latency_ms >= latency_ms),
        len(points) - 1,
    )
    one, two = points[max(after - 1, 0)], points[after]
    gap_ms = two.latency_ms - one.latency_ms
    part = (latency_ms - one.latency_ms) / gap_ms if gap_ms else 0.0

    def between(first: float, second: float) -> float:
        return first + (second - first) * part

    return (
        between(one.low, two.low),
        between(one.predicted_tok_per_s, two.predicted_tok_per_s),
        between(one.high, two.high),
    )


async def save_sweep(sweep: Sweep, folder: Path) -> tuple[Path, Path]:
    """Write picture and values into a folder, under new names."""
    stem = folder / time.strftime("dllm-sweep-%Y%m%d-%H%M%S")
    files = (stem.with_suffix(".svg"), stem.with_suffix(".csv"))
    texts = (sweep_svg(sweep), sweep_csv(sweep))
    for file, text in zip(files, texts, strict=True):
        with disk_errors("write", file):
            await asyncio.to_thread(write_new, file, text.encode())
    return files
