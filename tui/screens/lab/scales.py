"""The scales of the Lab: delay, jitter and rate of a link."""

from __future__ import annotations

from math import inf

from tui.kit.scale import Scale

NO_LIMIT = inf

LATENCY = Scale(
    (0, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500),
    (10, 10, 10, 6, 10, 10, 6, 10, 10, 6),
    "ms",
)


JITTER = Scale(
    (0, 0.5, 1, 2, 5, 10, 20, 50, 100),
    (10, 10, 10, 6, 10, 10, 6, 10),
    "ms",
)


RATE = Scale(
    (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, NO_LIMIT),
    (5, 6, 5, 5, 6, 5, 5, 6, 5, 5, 6, 5, 1),
    "MB/s",
    neutral=NO_LIMIT,
    typed_max=1e5,
)
