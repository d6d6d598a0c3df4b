"""The verdict of a race: which plan was faster, and whether the words are the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from backends.state import Value
from backends.state.races import Race, RaceFigures, RaceSide
from backends.units import (
    format_count,
    format_rate,
    format_seconds,
    format_speed,
    three_figures,
)

NAMES = ("A", "B")
SAME = 1.03
"""Speeds within this factor count as equal: two runs of one plan differ by more."""


class RaceVerdict(Value, frozen=True, kw_only=True):
    text: str
    """One sentence."""
    faster: str = ""
    """``A`` or ``B``; empty if neither is."""
    factor: float | None = None
    """The faster speed by the other; None unless both answered."""
    same_words: bool | None = None
    differs_from_word: int | None = None
    """The first word that differs, from 1."""


class _Answered(NamedTuple):
    name: str
    side: RaceSide
    figures: RaceFigures


def verdict_of(race: Race) -> RaceVerdict:
    """Tell the faster side, by how much, and from which word answers differ."""
    answered = [
        _Answered(name, side, side.figures)
        for name, side in zip(NAMES, race.sides, strict=True)
        if side.figures is not None and side.figures.tok_per_s > 0
    ]
    if not answered:
        return RaceVerdict(text="Neither answered")
    if len(answered) == 1:
        only = answered[0]
        other = NAMES[1 - NAMES.index(only.name)]
        speed = format_speed(only.figures.tok_per_s)
        return RaceVerdict(text=f"{other} did not answer; {only.name} has {speed}")
    slow, fast = sorted(answered, key=lambda one: one.figures.tok_per_s)
    factor = fast.figures.tok_per_s / slow.figures.tok_per_s
    word = first_difference(answered[0].side.text, answered[1].side.text)
    words = "same words" if word is None else f"words differ from word {word}"
    high, low = (format_rate(one.figures.tok_per_s).strip() for one in (fast, slow))
    if factor < SAME:
        text = f"A and B are equally fast: {high} and {low} tok/s"
    else:
        times = three_figures(factor)
        text = f"{fast.name} is {times} times as fast: {high} against {low} tok/s"
    disturbed = [one.name for one in answered if one.figures.disturbed]
    if disturbed:
        words += f"; other work disturbed {' and '.join(disturbed)}"
    return RaceVerdict(
        text=f"{text}; {words}",
        faster=fast.name if factor >= SAME else "",
        factor=factor,
        same_words=word is None,
        differs_from_word=word,
    )


def first_difference(one: str, two: str) -> int | None:
    """The number of the first word that differs, from 1; None if none does."""
    ours, theirs = one.split(), two.split()
    for number, (mine, other) in enumerate(zip(ours, theirs, strict=False), start=1):
        if mine != other:
            return number
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs)) + 1


def figures_text(figures: RaceFigures) -> str:
    """``12.1 tok/s · first token 0.42 s · 96 tokens · 2 trips a token``."""
    return " · ".join(_figure_texts(figures))


def _figure_texts(figures: RaceFigures) -> Iterator[str]:
    yield format_speed(figures.tok_per_s)
    if figures.first_token_s is not None:
        yield f"first token {format_seconds(figures.first_token_s)}"
    yield format_count(figures.tokens, "token")
    if figures.trips_per_token is not None:
        yield f"{three_figures(figures.trips_per_token)} trips a token"
