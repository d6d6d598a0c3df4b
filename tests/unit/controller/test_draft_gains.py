"""The predicted gains of the drafts of a plan that is brought up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from backends.controller.drafting import gains_now
from backends.state import NGRAM_DRAFT, Lab, Link, ServerSettings, Speculation
from tests.kit.clusters import Stage, plan_on

PLAN = replace(
    plan_on("ada"),
    server=ServerSettings(draft="auto"),
    speculation=Speculation(type="ngram-map-k"),
)
LAB = Lab(latency_ms=20)


async def pass_ms(stage: Stage) -> float:
    return (await gains_now(stage.context, PLAN))[NGRAM_DRAFT].forecast.pass_ms


async def test_a_lab_makes_the_passes_longer(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    plain_ms = await pass_ms(stage)
    stage.context.links.asked_labs = {"ada": LAB}
    assert await pass_ms(stage) >= plain_ms + 2 * LAB.latency_ms
    # The relays know best.
    stage.store.update(links=(Link(worker="ada"),))
    assert await pass_ms(stage) == pytest.approx(plain_ms)
    stage.store.update(links=(Link(worker="ada", lab=LAB),))
    assert await pass_ms(stage) >= plain_ms + 2 * LAB.latency_ms


async def test_what_cannot_be_predicted_stops_no_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("oh")

    stage = Stage(tmp_path)
    monkeypatch.setattr("backends.controller.drafting.ground_of", broken)
    assert await gains_now(stage.context, PLAN) == {}
