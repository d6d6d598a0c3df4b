"""Tokens per second over an axis, as a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from math import isfinite
from textwrap import wrap
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 64, 24, 72, 52
TICKS = 5
GROUND, EDGE, GRID, TEXT, DIM = "#10151d", "#5b6678", "#232b38", "#e8ecf3", "#a9b3c4"
"""A ground of its own, so that it reads alike on light pages and dark."""
COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00")
"""Of Okabe and Ito, told apart by colour-blind people too."""

Place = tuple[float, float]
At = Callable[[float, float], Place]
"""The place of a value in the picture."""


class Point(NamedTuple):
    x: float
    y: float
    low: float
    high: float
    """Infinite for a value without bounds."""


class Chart(NamedTuple):
    """Lines by their label, over one axis."""

    axis: str
    lines: dict[str, list[Point]]

    @property
    def xs(self) -> list[float]:
        return sorted({point.x for line in self.lines.values() for point in line})


def chart_svg(chart: Chart, caption: str) -> str:
    """Lines with the interval of each point, as a picture."""
    xs = chart.xs or [0.0, 1.0]
    # A wide interval is cut at the edge.
    most = max((p.y for line in chart.lines.values() for p in line), default=1.0)
    colours = [COLOURS[at % len(COLOURS)] for at in range(len(chart.lines))]
    lines = list(zip(colours, chart.lines.values(), strict=True))

    def marks(at: At) -> Iterator[str]:
        for colour, line in lines:
            yield curve([at(p.x, p.y) for p in line], colour)
            for p in line:
                x, y = at(p.x, p.y)
                if isfinite(p.high):
                    low, high = at(p.x, p.low)[1], at(p.x, p.high)[1]
                    yield f'<path d="M{x} {low}V{high}" stroke="{colour}"/>'
                yield f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>'

    legend = list(zip(colours, chart.lines, strict=True))
    return picture(wrap(caption, 84)[:3], chart.axis, xs, axis_end(most), marks, legend)


def picture(
    head: Sequence[str],
    axis: str,
    xs: Sequence[float],
    top: float,
    marks: Callable[[At], Iterator[str]],
    legend: Iterable[tuple[str, str]],
) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def at(x: float, y: float) -> Place:
        along = (x - xs[0]) / (xs[-1] - xs[0])
        up = min(y / top, 1.0)
        return (
            round(LEFT + along * (right - LEFT), 1),
            round(bottom - up * (bottom - TOP), 1),
        )

    def drawn() -> Iterator[str]:
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" font-family="monospace" font-size="13">'
        )
        yield f"<title>{escape(': '.join(head))}</title>"
        yield (
            f'<rect x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="12" '
            f'fill="{GROUND}" stroke="{EDGE}" stroke-width="2"/>'
        )
        for row, words in enumerate(head):
            yield _text(LEFT, 24 + 18 * row, words, colour=DIM if row else TEXT)
        for tick in range(TICKS + 1):
            y = at(xs[0], top * tick / TICKS)[1]
            yield f'<path d="M{LEFT} {y}H{right}" stroke="{GRID}"/>'
            yield _text(LEFT - 8, y + 4, f"{top * tick / TICKS:.3g}", anchor="end")
        for x in xs:
            yield _text(at(x, 0)[0], bottom + 18, f"{x:g}", anchor="middle")
        yield _text((LEFT + right) / 2, HEIGHT - 14, axis, anchor="middle")
        yield _text(LEFT - 8, TOP - 10, "tok/s", anchor="end")
        yield from marks(at)
        for row, (colour, label) in enumerate(legend):
            below = TOP + 14 + 18 * row
            yield _text(right - 8, below, label, anchor="end", colour=colour)
        yield "</svg>"

    return "\n".join(drawn()) + "\n"


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


def path_text(places: Iterable[Place]) -> str:
    return " ".join(f"{x},{y}" for x, y in places)


def curve(places: Iterable[Place], colour: str) -> str:
    pen = f'stroke="{colour}" stroke-width="2" fill="none"'
    return f'<polyline points="{path_text(places)}" {pen}/>'


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", colour: str = DIM
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{colour}">'
        f"{escape(words)}</text>"
    )
