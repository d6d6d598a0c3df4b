"""A race: one prompt for two plans, one after the other on the same machines."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from backends.state.base import Value
from backends.state.plans import Ask, Plan
from backends.state.snapshots import Failure, Step
from backends.state.speeds import Forecast

RACE_TOKENS = 96
RACE_TOKENS_MAX = 4096
RACE_PROMPT = "Why is the sky blue? Answer in a few sentences."


class Contestant(Value, frozen=True, kw_only=True):
    """A plan, or the request for one, under the name that people read."""

    name: str
    plan: Plan | None = None
    ask: Ask | None = None


class RaceRequest(Value, frozen=True, kw_only=True):
    contestants: tuple[Contestant, Contestant]
    prompt: str = RACE_PROMPT
    tokens: Annotated[int, Meta(ge=1, le=RACE_TOKENS_MAX)] = RACE_TOKENS
    """Of each answer, at most."""


class RaceStage(StrEnum):
    WAITING = "waiting"
    LAUNCHING = "launching"
    ANSWERING = "answering"
    DONE = "done"
    FAILED = "failed"


class RacePiece(msgspec.Struct, frozen=True, array_like=True):
    """``[seconds since the question, text]``."""

    at_s: float
    text: str


class RaceFigures(Value, frozen=True, kw_only=True):
    """The measurements of one answer."""

    tok_per_s: float
    tokens: int
    first_token_s: float | None = None
    trips_per_token: float | None = None
    """Over all links; None without relays."""
    launch_s: float = 0.0
    """From the launch to serving; 0 if it served already."""
    disturbed: bool = False
    """True if other requests or programs were at work meanwhile."""


class RaceSide(Value, frozen=True, kw_only=True):
    name: str
    stage: RaceStage = RaceStage.WAITING
    step: Step | None = None
    """The present step of its launch, or the last."""
    plan: Plan | None = None
    """Once it is prepared."""
    predicted: Forecast | None = None
    pieces: tuple[RacePiece, ...] = ()
    figures: RaceFigures | None = None
    failure: Failure | None = None

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    def text_at(self, at_s: float) -> str:
        """The answer as it stood so long after the question."""
        return "".join(piece.text for piece in self.pieces if piece.at_s <= at_s)

    @property
    def ended(self) -> bool:
        return self.stage in (RaceStage.DONE, RaceStage.FAILED)


class RaceDelta(Value, frozen=True, kw_only=True, omit_defaults=True):
    """A change of one side; fields that are None stay as they are."""

    whole: Race | None = None
    """Instead of a change all so far: where a record begins anew."""
    side: Annotated[int, Meta(ge=0, le=1)] = 0
    stage: RaceStage | None = None
    step: Step | None = None
    plan: Plan | None = None
    predicted: Forecast | None = None
    pieces: tuple[RacePiece, ...] = ()
    """To be added."""
    figures: RaceFigures | None = None
    failure: Failure | None = None
    going_back: Step | None = None
    """About neither: what the cluster does until it is as it was before."""


class Race(Value, frozen=True, kw_only=True):
    """A race as far as it has come."""

    prompt: str
    sides: tuple[RaceSide, RaceSide]
    going_back: Step | None = None
    """None before both sides have ended."""

    @classmethod
    def of(cls, asked: RaceRequest) -> Race:
        one, two = (RaceSide(name=c.name) for c in asked.contestants)
        return cls(prompt=asked.prompt, sides=(one, two))

    def after(self, delta: RaceDelta) -> Race:
        """The race with one more change."""
        if delta.going_back is not None:
            return replace(self, going_back=delta.going_back)
        before = self.sides[delta.side]
        known = {
            name: value
            for name in ("stage", "step", "plan", "predicted", "figures", "failure")
            if (value := getattr(delta, name)) is not None
        }
        side = replace(before, pieces=(*before.pieces, *delta.pieces), **known)
        one, two = self.sides
        return replace(self, sides=(one, side) if delta.side else (side, two))

    @property
    def ended(self) -> bool:
        """True once both sides have an answer or a failure."""
        return all(side.ended for side in self.sides)


def race_applied(delta: RaceDelta, race: Race | None) -> Race:
    if delta.whole is not None:
        return delta.whole
    if race is None:
        raise ValueError("a change of no race")
    return race.after(delta)


def race_framed(race: Race, _: None) -> RaceDelta:
    return RaceDelta(whole=race)
