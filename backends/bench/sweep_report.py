"""The result of a sweep: a sentence, a table of values, and a picture."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Sequence

from backends.bench.chart import (
    COLOURS,
    GROUND,
    TICKS,
    At,
    axis_end,
    curve,
    path_text,
    picture,
)
from backends.state.sweeps import Sweep, SweepPoint
from backends.units import format_rate, format_speed

X_TITLE = "added one-way latency, ms"
PREDICTED, MEASURED, DISTURBED = COLOURS[0], COLOURS[1], COLOURS[4]


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


def highest(points: Sequence[SweepPoint]) -> float:
    """The largest speed to show: of a wide band, not its end."""
    measured = (one.tok_per_s or 0.0 for one in points)
    expected = (min(one.high, 1.5 * one.predicted_tok_per_s) for one in points)
    return max((*measured, *expected), default=0.0)


def sweep_svg(sweep: Sweep) -> str:
    """Measured points over the predicted curve with its band, as a picture."""

    def marks(at: At) -> Iterator[str]:
        above = [at(one.latency_ms, one.high) for one in sweep.points]
        below = [at(one.latency_ms, one.low) for one in reversed(sweep.points)]
        band = path_text(above + below)
        yield f'<polygon points="{band}" fill="{PREDICTED}" opacity="0.18"/>'
        expected = [at(one.latency_ms, one.predicted_tok_per_s) for one in sweep.points]
        yield curve(expected, PREDICTED)
        for one in sweep.measured:
            x, y = at(one.latency_ms, one.tok_per_s or 0.0)
            drawn = f'fill="{MEASURED}"'
            if one.disturbed:
                drawn = f'fill="{GROUND}" stroke="{DISTURBED}" stroke-width="2"'
            yield f'<circle cx="{x}" cy="{y}" r="4" {drawn}/>'

    links = ", ".join(sweep.workers)
    head = [f"{os.path.basename(sweep.model)} · link {links}", sweep_text(sweep)]
    legend = [(MEASURED, "● measured"), (PREDICTED, "— predicted, and its band")]
    if any(one.disturbed for one in sweep.measured):
        legend.append((DISTURBED, "○ measured, disturbed by other work"))
    end = sweep.points[-1].latency_ms
    xs = [end * tick / TICKS for tick in range(TICKS + 1)]
    return picture(head, X_TITLE, xs, axis_end(highest(sweep.points)), marks, legend)
