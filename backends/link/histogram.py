"""The relay's histogram of times: what one of its buckets covers."""

from __future__ import annotations

NS_PER_US = 1000
BUCKETS_PER_OCTAVE = 8


def lower_edge_us(upper_us: float) -> float:
    """Where the bucket that ends with this time begins.

    The relay divides each octave of nanoseconds into eight equal buckets and reports
    the last nanosecond of each; below eight nanoseconds every one has its own.
    """
    last_ns = round(upper_us * NS_PER_US)
    if last_ns < BUCKETS_PER_OCTAVE:
        return last_ns / NS_PER_US
    width_ns = 1 << (last_ns.bit_length() - BUCKETS_PER_OCTAVE.bit_length())
    return (last_ns + 1 - width_ns) / NS_PER_US
