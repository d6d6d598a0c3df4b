"""The verdict of a race, and how it grows piece by piece."""

from __future__ import annotations

import pytest

from backends.bench.race_verdict import first_difference, verdict_of
from backends.state import Failure
from backends.state.races import (
    Contestant,
    Race,
    RaceDelta,
    RaceFigures,
    RacePiece,
    RaceRequest,
    RaceStage,
)

ASKED = RaceRequest(contestants=(Contestant(name="now"), Contestant(name="best")))


def answer(side: int, text: str, tok_per_s: float, **more: bool) -> RaceDelta:
    return RaceDelta(
        side=side,
        stage=RaceStage.DONE,
        pieces=(RacePiece(0.5, text),),
        figures=RaceFigures(tok_per_s=tok_per_s, tokens=2, **more),
    )


def race(*deltas: RaceDelta) -> Race:
    now = Race.of(ASKED)
    for delta in deltas:
        now = now.after(delta)
    return now


@pytest.mark.parametrize(
    ("one", "two", "word"),
    [
        ("the sky is blue", "the  sky is blue", None),
        ("the sky is blue", "the sky was blue", 3),
        ("the sky", "the sky is", 3),
        ("", "the", 1),
    ],
)
def test_the_first_word_that_differs(one: str, two: str, word: int | None) -> None:
    assert first_difference(one, two) == first_difference(two, one) == word


@pytest.mark.parametrize(
    ("deltas", "text"),
    [
        (
            (answer(0, "a b", 8.64), answer(1, "a b", 12.1)),
            "B is 1.40 times as fast: 12.1 against 8.6 tok/s; same words",
        ),
        (
            (answer(0, "a b", 12.3), answer(1, "a c", 12.1)),
            "A and B are equally fast: 12.3 and 12.1 tok/s; words differ from word 2",
        ),
        (
            (answer(0, "a b", 20, disturbed=True), answer(1, "a b", 10)),
            "A is 2.00 times as fast: 20.0 against 10.0 tok/s; same words; "
            "other work disturbed A",
        ),
        (
            (answer(0, "a b", 8.6), RaceDelta(side=1, failure=Failure(what="No room"))),
            "B did not answer; A has 8.6 tok/s",
        ),
        ((), "Neither answered"),
    ],
)
def test_the_verdict_names_the_faster_side_and_what_the_words_are(
    deltas: tuple[RaceDelta, ...], text: str
) -> None:
    assert verdict_of(race(*deltas)).text == text


def test_a_side_keeps_what_a_change_does_not_tell() -> None:
    now = race(
        RaceDelta(side=1, stage=RaceStage.ANSWERING, pieces=(RacePiece(0.2, "a"),)),
        RaceDelta(side=1, pieces=(RacePiece(0.9, " b"),)),
        RaceDelta(side=0, stage=RaceStage.LAUNCHING),
    )
    one, two = now.sides
    assert (one.stage, two.stage) == (RaceStage.LAUNCHING, RaceStage.ANSWERING)
    assert (two.text, two.text_at(0.5)) == ("a b", "a")
    assert not now.ended
