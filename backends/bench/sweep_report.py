"""The result of a sweep: a sentence, a table of values, and a picture."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterator, Sequence
from html import escape

from backends.state.sweeps import Sweep, SweepPoint
from backends.units import format_rate, format_speed

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 64, 24, 72, 52
X_TICKS, Y_TICKS = 5, 5
X_TITLE = "added one-way latency, ms"
GROUND, EDGE, GRID, TEXT, DIM = "#10151d", "#5b6678", "#232b38", "#e8ecf3", "#a9b3c4"
"""A ground of its own, so that it reads alike on light pages and dark."""
PREDICTED, MEASURED, DISTURBED = "#56B4E9", "#E69F00", "#F0E442"
"""Of Okabe and Ito's colours, told apart by colour-blind people too."""


def sweep_text(sweep: Sweep) -> str:
    """``From 38.2 to 8.1 tok/s; 10 of 11 steps within the band``."""
    measured = sweep.measured
    if not measured:
        return "Nothing was measured"
    first, last = (one.tok_per_s or 0.0 for one in (measured[0], measured[-1]))
    within = sum(one.is_within for one in measured)
    text = f"From {format_rate(first).strip()} to {format_speed(last)}"
    text += f"; {within} of {len(measured)} steps within the band"
    disturbed = sum(one.disturbed for one in measured)
    return text + (f"; {disturbed} disturbed" if disturbed else "")


def sweep_csv(sweep: Sweep) -> str:
    """A line for each step, with all its fields."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(SweepPoint.__struct_fields__)
    for point in sweep.points:
        values = (getattr(point, name) for name in SweepPoint.__struct_fields__)
        writer.writerow(["" if value is None else value for value in values])
    return out.getvalue()


def axis_end(value: float) -> float:
    """The next round number above a value, to end an axis with."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    steps = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
    return next(power * step for step in steps if power * step >= value)


def highest(points: Sequence[SweepPoint]) -> float:
    """The largest speed to show: of a wide band, not its end."""
    measured = (one.tok_per_s or 0.0 for one in points)
    expected = (min(one.high, 1.5 * one.predicted_tok_per_s) for one in points)
    return max((*measured, *expected), default=0.0)


def sweep_svg(sweep: Sweep) -> str:
    """Measured points over the predicted curve with its band, as a picture."""
    return "\n".join(_svg(sweep)) + "\n"


def _svg(sweep: Sweep) -> Iterator[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    end = sweep.points[-1].latency_ms
    top = axis_end(highest(sweep.points))

    def at(latency_ms: float, tok_per_s: float) -> tuple[float, float]:
        x = LEFT + latency_ms / end * (right - LEFT)
        y = bottom - min(tok_per_s / top, 1.0) * (bottom - TOP)
        return round(x, 1), round(y, 1)

    name = escape(os.path.basename(sweep.model))
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="monospace" font-size="13">'
    )
    yield f"<title>{name}: {escape(sweep_text(sweep))}</title>"
    yield (
        f'<rect x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="12" '
        f'fill="{GROUND}" stroke="{EDGE}" stroke-width="2"/>'
    )
    links = ", ".join(sweep.workers)
    yield _text(LEFT, 26, f"{os.path.basename(sweep.model)} · link {links}", size=15)
    yield _text(LEFT, 46, sweep_text(sweep), colour=DIM)
    for tick in range(Y_TICKS + 1):
        value = top * tick / Y_TICKS
        y = at(0, value)[1]
        yield f'<path d="M{LEFT} {y}H{right}" stroke="{GRID}"/>'
        yield _text(LEFT - 8, y + 4, f"{value:g}", anchor="end", colour=DIM)
    for tick in range(X_TICKS + 1):
        value = end * tick / X_TICKS
        x = at(value, 0)[0]
        yield _text(x, bottom + 18, f"{value:g}", anchor="middle", colour=DIM)
    middle = (LEFT + right) / 2
    yield _text(middle, HEIGHT - 14, X_TITLE, anchor="middle", colour=DIM)
    yield _text(LEFT - 8, TOP - 10, "tok/s", anchor="end", colour=DIM)
    yield from _lines(sweep, at)
    legend = [(MEASURED, "● measured"), (PREDICTED, "— predicted, and its band")]
    if any(one.disturbed for one in sweep.measured):
        legend.append((DISTURBED, "○ measured, disturbed by other work"))
    for row, (colour, label) in enumerate(legend):
        yield _text(right - 8, TOP + 14 + 18 * row, label, anchor="end", colour=colour)
    yield "</svg>"


def _lines(
    sweep: Sweep, at: Callable[[float, float], tuple[float, float]]
) -> Iterator[str]:
    def path(points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{x},{y}" for x, y in points)

    above = [at(one.latency_ms, one.high) for one in sweep.points]
    below = [at(one.latency_ms, one.low) for one in reversed(sweep.points)]
    yield f'<polygon points="{path(above + below)}" fill="{PREDICTED}" opacity="0.18"/>'
    curve = [at(one.latency_ms, one.predicted_tok_per_s) for one in sweep.points]
    pen = f'stroke="{PREDICTED}" stroke-width="2" fill="none"'
    yield f'<polyline points="{path(curve)}" {pen}/>'
    for one in sweep.measured:
        x, y = at(one.latency_ms, one.tok_per_s or 0.0)
        drawn = f'fill="{MEASURED}"'
        if one.disturbed:
            drawn = f'fill="{GROUND}" stroke="{DISTURBED}" stroke-width="2"'
        yield f'<circle cx="{x}" cy="{y}" r="4" {drawn}/>'


def _text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    colour: str = TEXT,
    size: int = 13,
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}">{escape(words)}</text>'
    )
