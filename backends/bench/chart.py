"""The chart of a benchmark: tokens per second over one axis, a line for each case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import isfinite
from typing import NamedTuple

from backends.bench.results import AXES, BenchRun, Interval, conditions_text, varying

NUMERIC_AXES = ("latency_ms", "rate_mb_s", "slots", "workers", "ctx_size")
UNITS = {"latency_ms": "ms", "rate_mb_s": "MB/s", "ctx_size": "tokens"}
# Okabe and Ito's, told apart by colour-blind people too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 60, 20, 64, 48
TICKS = 5


class Point(NamedTuple):
    x: float
    y: Interval


class Chart(NamedTuple):
    """Lines by their label, over one axis."""

    axis: str
    lines: dict[str, list[Point]]

    @property
    def xs(self) -> list[float]:
        return sorted({point.x for line in self.lines.values() for point in line})


def chart_of(run: BenchRun) -> Chart | None:
    """The chart of a run; None if no axis has two measured values."""
    of_network = [r for r in run.results if not r.case.weights]
    names = varying([result.case for result in of_network])
    measured = [result for result in of_network if result.rates]
    for axis in NUMERIC_AXES:
        xs = {float(getattr(result.case, axis) or 0) for result in measured}
        if axis not in names or len(xs) < 2:
            continue
        others = [name for name in names if name != axis]
        lines: dict[str, list[Point]] = {}
        for result in measured:
            label = ", ".join(f"{AXES[n][0]} {AXES[n][1](result.case)}" for n in others)
            x = float(getattr(result.case, axis) or 0)
            point = Point(x, Interval.of(result.rates))
            lines.setdefault(label, []).append(point)
        title = f"{AXES[axis][0]} ({UNITS[axis]})" if axis in UNITS else AXES[axis][0]
        return Chart(title, {k: sorted(line) for k, line in lines.items()})
    return None


def as_svg(run: BenchRun) -> str:
    """The chart as a picture, with the interval of each case and the conditions."""
    chart = chart_of(run) or Chart("", {})
    return "\n".join(_svg(chart, conditions_text(run))) + "\n"


def _svg(chart: Chart, caption: str) -> Iterator[str]:
    xs = chart.xs or [0.0, 1.0]
    # A wide interval is cut at the edge.
    highest = [p.y.median for line in chart.lines.values() for p in line]
    most = 1.1 * max(highest, default=1.0)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x_at(x: float) -> float:
        return LEFT + (x - xs[0]) / (xs[-1] - xs[0]) * (right - LEFT)

    def y_at(y: float) -> float:
        return bottom - y / most * (bottom - TOP)

    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">'
    )
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    for at, words in enumerate(_wrapped(caption, 110)):
        yield _text(LEFT, 16 + 14 * at, words, size=11)
    for tick in range(TICKS + 1):
        value = most * tick / TICKS
        y = y_at(value)
        yield f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#ddd"/>'
        yield _text(LEFT - 6, y + 4, f"{value:.3g}", anchor="end")
    for x in xs:
        yield _text(x_at(x), bottom + 16, f"{x:g}", anchor="middle")
    yield _text((LEFT + right) / 2, HEIGHT - 12, chart.axis, anchor="middle")
    yield _text(LEFT, TOP - 10, "tok/s", anchor="end")
    for at, (label, line) in enumerate(chart.lines.items()):
        colour = COLOURS[at % len(COLOURS)]
        path = " ".join(f"{x_at(p.x):.1f},{y_at(p.y.median):.1f}" for p in line)
        pen = f'stroke="{colour}" stroke-width="2" fill="none"'
        yield f'<polyline points="{path}" {pen}/>'
        for p in line:
            x, y = x_at(p.x), y_at(p.y.median)
            if isfinite(p.y.high):
                low, high = y_at(p.y.low), y_at(min(p.y.high, most))
                yield f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="{colour}"/>'
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
        yield _text(right, TOP + 14 * at, label, anchor="end", colour=colour)
    yield "</svg>"


def _text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    colour: str = "#333",
    size: int = 12,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}">{escape(words)}</text>'
    )


def _wrapped(text: str, columns: int) -> Sequence[str]:
    from textwrap import wrap

    return wrap(text, columns)[:3]
