"""A sweep: its steps, its sentence, its values and its picture."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET

import pytest
from msgspec.structs import replace

from backends.bench.chart import GROUND, axis_end
from backends.bench.sweep_report import (
    DISTURBED,
    sweep_csv,
    sweep_svg,
    sweep_text,
)
from backends.state.sweeps import Sweep, SweepPoint, SweepRequest

POINTS = (
    SweepPoint(latency_ms=0, predicted_tok_per_s=40, low=30, high=50, tok_per_s=38.2),
    SweepPoint(
        latency_ms=25,
        predicted_tok_per_s=12,
        low=9,
        high=15,
        tok_per_s=16,
        tokens=32,
        disturbed=True,
    ),
    SweepPoint(latency_ms=50, predicted_tok_per_s=8, low=6, high=10),
)
SWEEP = Sweep(model="/models/<a&b>.gguf", workers=("mini",), points=POINTS)


def test_steps_are_even_from_nothing_to_the_most() -> None:
    asked = SweepRequest(to_ms=50, steps=5)
    assert asked.latencies_ms == (0, 12.5, 25, 37.5, 50)


def test_the_sentence_counts_what_is_measured_within_the_band() -> None:
    assert sweep_text(SWEEP) == (
        "From 38.2 to 16.0 tok/s; 1 of 2 steps within the band; 1 disturbed"
    )
    assert sweep_text(replace(SWEEP, points=POINTS[2:])) == "Nothing was measured"


def test_values_have_a_line_for_each_step() -> None:
    rows = list(csv.DictReader(io.StringIO(sweep_csv(SWEEP))))
    assert [row["latency_ms"] for row in rows] == ["0", "25", "50"]
    assert [row["tok_per_s"] for row in rows] == ["38.2", "16", ""]
    assert rows[1]["disturbed"] == "True"


def test_the_picture_has_the_points_over_the_curve() -> None:
    root = ET.fromstring(sweep_svg(SWEEP))
    marks = root.findall("{*}circle")
    curve = root.find("{*}polyline")
    band = root.find("{*}polygon")
    assert curve is not None
    assert band is not None
    at = [tuple(map(float, p.split(","))) for p in curve.attrib["points"].split()]
    assert len(band.attrib["points"].split()) == 2 * len(POINTS)
    assert [float(mark.attrib["cx"]) for mark in marks] == [x for x, _ in at[:2]]
    # Faster is higher: the first is below the curve, the second above it.
    heights = [float(mark.attrib["cy"]) for mark in marks]
    assert heights[0] > at[0][1]
    assert heights[1] < at[1][1]
    assert "<a&b>.gguf" in "".join(root.itertext())


def test_a_disturbed_step_is_told_by_more_than_its_colour() -> None:
    root = ET.fromstring(sweep_svg(SWEEP))
    measured, disturbed = root.findall("{*}circle")
    assert "stroke" not in measured.attrib
    assert disturbed.attrib["fill"] == GROUND
    assert disturbed.attrib["stroke"] == DISTURBED
    legend = [text.text or "" for text in root.findall("{*}text")]
    assert any("○" in one and "disturbed" in one for one in legend)


@pytest.mark.parametrize(
    ("value", "end"), [(0, 1), (0.42, 0.5), (1, 1), (9.2, 10), (41, 50), (110, 150)]
)
def test_an_axis_ends_with_a_round_number(value: float, end: float) -> None:
    assert axis_end(value) == pytest.approx(end)
