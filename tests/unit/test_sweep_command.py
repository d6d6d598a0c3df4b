"""``dllm-tui links sweep``: what was measured is kept, though the sweep fails late."""

from __future__ import annotations

import csv
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from click.testing import CliRunner

from backends.client.client import ControllerClient
from backends.errors import ControllerError
from backends.state.sweeps import Sweep, SweepPoint, SweepRequest
from tui.cli.links import links


def test_what_was_measured_is_written_though_a_late_step_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def swept(_: object, asked: SweepRequest) -> AsyncGenerator[Sweep, None]:
        first, *others = (
            SweepPoint(latency_ms=ms, predicted_tok_per_s=9, low=8, high=10)
            for ms in asked.latencies_ms
        )
        measured = SweepPoint(
            latency_ms=0, predicted_tok_per_s=9, low=8, high=10, tok_per_s=8.5
        )
        for at, points in enumerate(((first, *others), (measured, *others))):
            yield Sweep(model="m", workers=("mini",), points=points, measuring=at)
        raise ControllerError("The answer was cut off")

    monkeypatch.setattr(ControllerClient, "sweep", swept)
    table, picture = tmp_path / "a.csv", tmp_path / "a.svg"
    words = ["sweep", "--steps", "3", "--csv", str(table), "--svg", str(picture)]
    done = CliRunner().invoke(links, words)
    assert "The answer was cut off" in str(done.exception)
    with table.open() as file:
        assert [row["tok_per_s"] for row in csv.DictReader(file)] == ["8.5", "", ""]
    assert "8.5" in picture.read_text()
