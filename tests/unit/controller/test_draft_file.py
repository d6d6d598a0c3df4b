"""A draft that was settled once: its file, and the head's engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from backends.controller.drafting import Drafting
from backends.controller.site import draft_path
from backends.errors import ModelError, PlanError
from backends.models.layers import read_model
from backends.speculation.methods import methods_of
from backends.split.layout import counts, with_counts
from backends.state import (
    AUTO_DRAFT,
    MTP_DRAFT,
    NGRAM_DRAFT,
    NO_DRAFT,
    Drafts,
    ModelInfo,
    ServerSettings,
    Speculation,
    Split,
)
from tests.unit.models.ggufs import LLAMA, llama_tensors, write_gguf
from tests.unit.planning.machines import ADA, MODEL, PLAIN, plan_for

PLAN = plan_for(PLAIN, ADA, peers=("ada",))


class Head:
    """Reads models, and has an engine with one method."""

    flags = frozenset({"--spec-type", "--spec-type ngram-simple"})

    async def model(self, path: str) -> ModelInfo:
        return read_model(path)

    async def engine(self, _wanted: str | None = None) -> Any:
        return SimpleNamespace(flags=self.flags)

    async def reached(self, _names: object) -> None:
        """It is there."""

    async def models(self) -> tuple[()]:
        return ()

    def files(self, model: ModelInfo) -> list[str]:
        return [model.path]

    def get(self, _name: str) -> Any:
        return self


HEAD = cast("Any", Head())


def test_a_draft_whose_file_is_gone_is_called_the_draft(tmp_path: Path) -> None:
    method = Speculation(type="draft-simple", model=str(tmp_path / "gone.gguf"))
    plan = replace(PLAN, speculation=method)
    with pytest.raises(ModelError, match="The draft model cannot be used: ") as caught:
        asyncio.run(draft_path(plan, HEAD, HEAD))
    assert "--draft none" in caught.value.hint


def test_a_kept_plan_takes_the_method_of_the_present_engine() -> None:
    plan = replace(
        PLAN,
        server=ServerSettings(draft=NGRAM_DRAFT),
        speculation=Speculation(type="ngram-map-k"),
    )
    drafting = Drafting(HEAD, HEAD, HEAD, HEAD.models)
    settled = asyncio.run(drafting.require(plan, (PLAIN, ADA)))
    assert settled.speculation == Speculation(type="ngram-simple")


def test_auto_chooses_from_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drafting, "candidates", nothing)
    monkeypatch.setattr(HEAD, "model", of_model, raising=False)
    drafting = Drafting(HEAD, HEAD, HEAD, HEAD.models)
    auto = replace(PLAN, server=ServerSettings(draft=AUTO_DRAFT))
    settled = asyncio.run(drafting.settled(auto, (PLAIN, ADA)))
    assert settled.speculation == Speculation(type="ngram-simple")
    assert asyncio.run(drafting.require(settled, (PLAIN, ADA))) == settled
    assert methods_of(settled) == (NO_DRAFT, NGRAM_DRAFT)


async def of_model(_path: str) -> ModelInfo:
    return MODEL


def test_auto_tries_layers_of_the_model_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_layers = replace(MODEL, arch="glm4moe", n_layer_nextn=1)

    async def model(_path: str) -> ModelInfo:
        return with_layers

    monkeypatch.setattr(Drafting, "candidates", nothing)
    monkeypatch.setattr(HEAD, "model", model, raising=False)
    monkeypatch.setattr(HEAD, "flags", HEAD.flags | {"--spec-type draft-mtp"})
    drafting = Drafting(HEAD, HEAD, HEAD, HEAD.models)
    auto = replace(PLAN, server=ServerSettings(draft=AUTO_DRAFT))
    settled = asyncio.run(drafting.settled(auto, (PLAIN, ADA)))
    assert methods_of(settled) == (NO_DRAFT, NGRAM_DRAFT, MTP_DRAFT)
    # Another split has other last layers.
    turned = replace(settled, split=split_of(settled.split, 13))
    anew = asyncio.run(drafting.require(turned, (PLAIN, ADA)))
    places = [one.speculation and one.speculation.device for one in (settled, anew)]
    assert places == ["ada/CPU", "local/CPU"]


def test_a_model_without_mtp_layers_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(HEAD, "model", of_model, raising=False)
    plan = replace(PLAN, server=ServerSettings(draft=MTP_DRAFT))
    drafting = Drafting(HEAD, HEAD, HEAD, HEAD.models)
    with pytest.raises(PlanError, match=r"m\.gguf has no layers of its own"):
        asyncio.run(drafting.settled(plan, (PLAIN, ADA)))


@pytest.mark.parametrize(
    ("knows", "why"),
    [(True, ""), (False, "This llama.cpp does not know the method draft-mtp")],
)
def test_layers_of_the_model_itself_are_listed_or_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bool, why: str
) -> None:
    file = tmp_path / "m.gguf"
    params = LLAMA | {"block_count": 3, "nextn_predict_layers": 1}
    write_gguf(file, params, llama_tensors(3), arch="glm4moe")
    more = {"--spec-type draft-mtp"} if knows else set()
    monkeypatch.setattr(HEAD, "flags", HEAD.flags | more)
    drafting = Drafting(HEAD, HEAD, HEAD, HEAD.models)
    found = asyncio.run(drafting.candidates(str(file), ()))
    assert found.heads == (("draft-mtp",) if knows else ())
    assert found.head_why_not == why


async def nothing(*_: object) -> Drafts:
    return Drafts(model="/m", size_bytes=100)


def split_of(split: Split, on_first: int) -> Split:
    return with_counts(split, (on_first, sum(counts(split)) - on_first))
