"""Numbers as people read them."""

from __future__ import annotations

import pytest

from backends.units import format_bytes, format_rate, format_seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1024, "1.0 KiB"),
        (5_000_000, "4.8 MiB"),
        (16.9 * 2**30, "16.9 GiB"),
        (2**60, "1024 PiB"),
    ],
)
def test_bytes(value: float, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.88, "0.88 s"), (12.34, "12.3 s"), (245, "4 m 05 s"), (11520, "3 h 12 m")],
)
def test_seconds(value: float, text: str) -> None:
    assert format_seconds(value) == text


@pytest.mark.parametrize("value", [None, 0.0, 21.34, 99.99, 999.9, 12345.6])
def test_rates_keep_their_width(value: float | None) -> None:
    assert len(format_rate(value)) == 5
