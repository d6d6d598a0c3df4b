"""Quantities of links as text: short, and always as wide."""

from __future__ import annotations

import msgspec
import pytest

from backends.state import Generation, Link
from tests.tui.links import MINI
from tui.model.quantities import rate_text, rtt_text, trips_text


@pytest.mark.parametrize(
    ("rtt_ms", "said"),
    [(0.0421, "42 µs"), (0.0994, "99 µs"), (0.11, "110 µs"), (3.1, "3.10 ms")],
)
def test_a_short_round_trip_keeps_its_figures(rtt_ms: float, said: str) -> None:
    assert rtt_text(rtt_ms) == said
    assert len(said) <= 8


def test_throughput_keeps_three_figures() -> None:
    def text(up: float, down: float) -> str:
        return rate_text(Link(worker="a", bytes_per_s_up=up, bytes_per_s_down=down))

    assert text(0, 0) == "0.00 MB/s"
    assert text(250_000, 170_000) == "0.42 MB/s"
    assert text(20e6, 4e6) == "24.0 MB/s"
    assert text(900e6, 400e6) == "1300 MB/s"
    assert rate_text(MINI, each_way=True) == "↑0.26 ↓0.18 MB/s"


def test_trips_of_a_token_and_of_its_pass_are_both_shown_where_they_differ() -> None:
    assert trips_text(MINI) == "1.0"
    shared = Generation(tokens_per_pass=4.0, trips_per_pass=1.1)
    slots = msgspec.structs.replace(
        MINI, round_trips_per_token=0.275, generation=shared
    )
    assert trips_text(slots) == "0.28, 1.1/pass"
    assert trips_text(Link(worker="new")) == "—"
