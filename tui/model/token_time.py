"""The time of a token as cells, steps and numbers: pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, count, pairwise
from math import ceil
from statistics import median
from typing import NamedTuple

from backends.link.figures import TokenTotals, least_pause_ms
from backends.state import Link
from tui.model.quantities import tick_text

TYPICAL_TOKENS = 16
"""At most so many tokens make a typical one."""
SHRINK_AT = 0.85
"""The next smaller scale is taken once it would be filled no more than this."""
TICK_GAP = 3
"""Cells for a mark and the space after its label."""
_QUARTILE = 0.75


class PartLook(NamedTuple):
    name: str
    glyph: str


PARTS = (
    PartLook("others", "·"),
    PartLook("up", "░"),
    PartLook("compute", "█"),
    PartLook("down", "▒"),
    PartLook("wait", "─"),
)

Times = tuple[float, float, float, float, float]
"""Milliseconds of each part, in the order of ``PARTS``."""


def tokens_of(link: Link) -> list[Times]:
    """The parts of each token made of late, oldest first; prompts are none.

    Nor is one that followed a pause: nobody knows how long the head took for it.
    """
    made = [one for one in link.passes if one.generated]
    pause_ms = least_pause_ms(made)
    return [
        (one.head_ms, one.up_ms, one.compute_ms, one.down_ms, one.wait_ms)
        for one in made
        if one.head_ms <= pause_ms
    ]


def typical_of(tokens: Sequence[Times]) -> Times:
    """The median of each part over the latest tokens.

    No mean: the first token after a pause has the whole pause in its head.
    """
    latest = tokens[-TYPICAL_TOKENS:]
    head, up, compute, down, wait = (median(part) for part in zip(*latest, strict=True))
    return head, up, compute, down, wait


def typical_ms(tokens: Iterable[Times]) -> float:
    """The upper quartile of tokens' times: an outlier stretches no scale."""
    totals = sorted(sum(times) for times in tokens)
    if not totals:
        return 0.0
    return totals[min(int(len(totals) * _QUARTILE), len(totals) - 1)]


def scale_above(longest_ms: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, 50… ms that holds so much; at least 0.1."""
    scales = (step * 10.0**exponent for exponent in count(-1) for step in (1, 2, 5))
    return next(scale for scale in scales if longest_ms <= scale)


def next_scale(present_ms: float, longest_ms: float) -> float:
    """The scale from now on: grows when it must, shrinks only well below a step."""
    if longest_ms > present_ms:
        return scale_above(longest_ms)
    return min(scale_above(longest_ms / SHRINK_AT), present_ms)


def cells_of(times: Sequence[float], scale_ms: float, room: int) -> list[int]:
    """Cells of each part; every boundary is within half a cell of its time."""
    passed = accumulate((max(part_ms, 0.0) for part_ms in times), initial=0.0)
    edges = [min(round(passed_ms / scale_ms * room), room) for passed_ms in passed]
    return [end - start for start, end in pairwise(edges)]


def tick_step(scale_ms: float, room: int, label_cells: int) -> float:
    """The distance of the axis's marks: 1, 2 or 5, wide enough for a label."""
    step = scale_ms / 10
    while step < scale_ms:
        step = scale_above(step * 1.01)
        even = abs(scale_ms / step - round(scale_ms / step)) < 1e-6
        if even and room * step / scale_ms >= label_cells:
            return step
    return scale_ms


def axis_text(scale_ms: float, room: int) -> str:
    """``╷0        ╷20       ╷40  50 ms╷``: marks stand where their times are."""
    end = f"{tick_text(scale_ms)} ms╷"
    step = tick_step(scale_ms, room, len(tick_text(scale_ms)) + TICK_GAP)
    text = ""
    for number in range(round(scale_ms / step)):
        at = round(number * step / scale_ms * room)
        label = f"╷{tick_text(number * step)}"
        if at + len(label) + len(end) < room:
            text = text.ljust(at) + label
    return (text.ljust(room - len(end)) + end)[:room] if room >= len(end) else ""


# --- a pass on its way over the split ------------------------------------------------


class BarSegment(NamedTuple):
    """The columns of a device on the split bar: the first, and one past the last."""

    start: int
    end: int
    layers: int
    worker: str
    """Empty for the head's own device."""


class Leg(NamedTuple):
    """A stretch that a pass runs over, and how long it takes; None: off the bar."""

    start: float | None
    end: float
    ms: float


def pass_legs(segments: Sequence[BarSegment], totals: TokenTotals) -> tuple[Leg, ...]:
    """The way of a typical pass over the bar; none where a part is not measured.

    It stands at a worker's edges as long as the link takes. It crosses the layers in
    the time of computing. If the head has no layers, its time is off the bar.
    """
    times = {one.worker: one for one in totals.workers}
    used = [one for one in segments if one.layers]
    if totals.head_ms is None or any(s.worker and s.worker not in times for s in used):
        return ()
    layers: dict[str, int] = {}
    for one in used:
        layers[one.worker] = layers.get(one.worker, 0) + one.layers
    legs = [] if "" in layers else [Leg(None, 0, totals.head_ms)]
    for one in used:
        part = one.layers / layers[one.worker]
        if not one.worker:
            legs.append(Leg(one.start, one.end, totals.head_ms * part))
            continue
        own = times[one.worker]
        legs += [
            Leg(one.start - 1, one.start, own.up_ms * part),
            Leg(one.start, one.end - 1, own.compute_ms * part),
            Leg(one.end - 1, one.end, (own.down_ms + own.wait_ms) * part),
        ]
    return tuple(legs)


def leg_shares(legs: Sequence[Leg], columns: int) -> tuple[float, ...]:
    """For each column, the part of the longest stretch that its own one takes."""
    longest_ms = max((leg.ms for leg in legs), default=0.0)
    shares = [0.0] * columns
    for leg in legs:
        if leg.start is None or not longest_ms:
            continue
        for column in range(max(int(leg.start), 0), min(ceil(leg.end), columns)):
            shares[column] = max(shares[column], leg.ms / longest_ms)
    return tuple(shares)


def place_of(legs: Sequence[Leg], phase: float) -> float | None:
    """The column that a pass has reached, of 0 to 1 of its time; None off the bar."""
    left_ms = phase * sum(leg.ms for leg in legs)
    for leg in legs:
        if left_ms < leg.ms:
            if leg.start is None:
                return None
            return leg.start + (leg.end - leg.start) * left_ms / leg.ms
        left_ms -= leg.ms
    return None
