"""The result of a sweep: a sentence, a table of values, and the ends of its axes."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from backends.state.sweeps import Sweep, SweepPoint
from backends.units import format_rate, format_speed

X_TITLE = "added one-way latency, ms"


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
