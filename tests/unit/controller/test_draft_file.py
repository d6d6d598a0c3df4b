"""A draft that was settled once: its file, and the engine that is to guess with it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace

from backends.controller.drafting import Drafting
from backends.controller.engines import draft_path
from backends.errors import ModelError
from backends.models.layers import read_model
from backends.state import NGRAM_DRAFT, ServerSettings, Speculation
from tests.unit.planning.machines import ADA, PLAIN, plan_for

if TYPE_CHECKING:
    from pathlib import Path

    from backends.state import ModelInfo

PLAN = plan_for(PLAIN, ADA, peers=("ada",))


class Head:
    """Reads models, and has an engine that guesses one way."""

    async def model(self, path: str) -> ModelInfo:
        return read_model(path)

    async def engine(self, _wanted: str | None) -> Any:
        return SimpleNamespace(flags={"--spec-type", "--spec-type ngram-simple"})

    async def reached(self, _names: object) -> None:
        """It is there."""

    def get(self, _name: str) -> Any:
        return self


HEAD = cast("Any", Head())


def test_a_draft_whose_file_is_gone_is_called_the_draft(tmp_path: Path) -> None:
    guess = Speculation(type="draft-simple", model=str(tmp_path / "gone.gguf"))
    plan = replace(PLAN, speculation=guess)
    with pytest.raises(ModelError, match="The draft model cannot be used: ") as caught:
        asyncio.run(draft_path(plan, HEAD, HEAD))
    assert "--draft none" in caught.value.hint


def test_a_kept_plan_guesses_as_the_engine_of_now_can() -> None:
    plan = replace(
        PLAN,
        server=ServerSettings(draft=NGRAM_DRAFT),
        speculation=Speculation(type="ngram-map-k"),
    )
    drafting = Drafting(HEAD, HEAD, HEAD)
    settled = asyncio.run(drafting.require(plan, (PLAIN, ADA)))
    assert settled.speculation == Speculation(type="ngram-simple")
