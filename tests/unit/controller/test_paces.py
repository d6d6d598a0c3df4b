"""The speed of each draft: which answers count, and what is told together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.controller.paces import RATES_KEPT, READINGS_MIN, SITES_KEPT, Paces
from backends.state import (
    Acceptance,
    ClusterSnapshot,
    ClusterState,
    Lab,
    Link,
    Pace,
    ServerSettings,
    Speculation,
    Speed,
)
from tests.unit.state.scene import busy_scene
from tui.work.paces import draft_name, draft_speed_text, paces_text, together_text

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PLAIN = replace(busy_scene(0), links=(), speed=Speed())
assert PLAIN.plan is not None
DRAFTED = replace(
    PLAIN,
    plan=replace(
        PLAIN.plan,
        server=ServerSettings(draft="/m/small.gguf", draft_max=6),
        speculation=Speculation(type="draft-simple", model="/m/small.gguf"),
    ),
)
FAR = Link(worker="mini", lab=Lab(latency_ms=10))


def answer(
    paces: Paces,
    scene: ClusterSnapshot,
    rate: float = 20.0,
    *,
    tokens: int = 100,
    clients: int = 1,
) -> tuple[Pace, ...]:
    """One answer from its beginning to its end."""
    paces.look(scene)
    for done in (0, tokens // 2):
        busy = Speed(requests_active=clients, tokens=done)
        paces.look(replace(scene, speed=busy))
    return paces.look(replace(scene, speed=Speed(tokens=tokens, last_tok_per_s=rate)))


def paces_of(folder: Path) -> Paces:
    return Paces(folder / "paces.json", clock=lambda: 7.0)


def test_with_and_without_stand_side_by_side_also_after_a_restart(
    tmp_path: Path,
) -> None:
    answer(paces_of(tmp_path), PLAIN, 20.0)
    paces = paces_of(tmp_path)
    told = answer(paces, DRAFTED, 60.0)
    assert told == (
        Pace(draft="none", tok_per_s=20.0, count=1, at=7.0),
        Pace(draft="/m/small.gguf", draft_max=6, tok_per_s=60.0, count=1, at=7.0),
    )
    assert (
        paces_text(replace(DRAFTED, paces=told)) == "60.0 tok/s, 20.0 without a draft"
    )
    said = paces_text(replace(PLAIN, paces=told))
    assert said == "20.0 tok/s, 60.0 with small (6 tokens)"
    assert draft_name("ngram", 1) == "with ngram (1 token)"
    assert paces_text(replace(PLAIN, paces=told[:1])) == ""
    speed = Speed(acceptance=Acceptance(drafted=8, accepted=6, passes=1))
    assert draft_speed_text(replace(DRAFTED, paces=told, speed=speed)) == (
        "75 % of the draft accepted · 60.0 tok/s, 20.0 without a draft"
    )


def test_another_network_is_another_matter(tmp_path: Path) -> None:
    paces = paces_of(tmp_path)
    answer(paces, PLAIN)
    assert paces.look(replace(PLAIN, links=(FAR,))) == ()
    assert len(paces.look(replace(PLAIN, links=(replace(FAR, lab=None),)))) == 1


def test_only_answers_that_were_alone_and_long_enough_count(tmp_path: Path) -> None:
    paces = paces_of(tmp_path)
    assert answer(paces, PLAIN, tokens=10) == ()
    assert answer(paces, PLAIN, clients=2) == ()
    stopped = replace(PLAIN, state=ClusterState.STARTING, speed=Speed(tokens=500))
    paces.look(replace(PLAIN, speed=Speed(requests_active=1)))
    assert paces.look(stopped) == ()
    assert paces.look(PLAIN) == ()
    assert len(answer(paces, PLAIN)) == 1


def test_several_clients_are_measured_together(tmp_path: Path) -> None:
    paces = paces_of(tmp_path)

    def together(clients: int, readings: int, rate: float) -> None:
        for done in range(readings):
            speed = Speed(requests_active=clients, tokens=done, tok_per_s=rate)
            paces.look(replace(PLAIN, speed=speed))
            # Other news, without a reading of the speed.
            paces.look(replace(PLAIN, speed=speed, last_event=done))

    paces.look(PLAIN)
    together(4, READINGS_MIN, 64.0)
    together(3, READINGS_MIN - 1, 50.0)
    together(1, READINGS_MIN, 20.0)
    told = paces.look(replace(PLAIN, speed=Speed(tokens=900, last_tok_per_s=20.0)))
    assert told == (Pace(draft="none", clients=4, tok_per_s=64.0, count=1, at=7.0),)
    assert together_text(replace(PLAIN, paces=told)) == "4 clients 64.0 tok/s together"
    assert together_text(replace(DRAFTED, paces=told)) == ""
    assert paces_text(replace(DRAFTED, paces=told)) == ""


def test_it_is_the_median_of_the_latest(tmp_path: Path) -> None:
    paces = paces_of(tmp_path)
    for rate in (1.0, *(20.0 + i for i in range(RATES_KEPT))):
        told = answer(paces, PLAIN, rate)
    assert (told[0].tok_per_s, told[0].count) == (24.0, RATES_KEPT)


def test_a_book_that_cannot_be_read_or_written_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paces.json").write_text("{")
    assert len(answer(paces_of(tmp_path), PLAIN)) == 1
    gone = Paces(tmp_path / "paces.json" / "no" / "folder")
    assert len(answer(gone, PLAIN)) == 1


def test_it_forgets_what_was_measured_longest_ago(tmp_path: Path) -> None:
    paces = paces_of(tmp_path)
    assert PLAIN.plan is not None
    plans = [replace(PLAIN.plan, ctx_size=n) for n in range(SITES_KEPT + 1)]
    scenes = [replace(PLAIN, plan=plan) for plan in plans]
    for scene in scenes:
        answer(paces, scene)
    assert paces.look(scenes[0]) == ()
    assert len(paces.look(scenes[1])) == 1


def test_a_book_that_says_nothing_of_a_way_begins_anew(tmp_path: Path) -> None:
    answer(paces_of(tmp_path), PLAIN)
    file = tmp_path / "paces.json"
    kept = json.loads(file.read_bytes())
    for measured in kept.values():
        measured[0]["rates"] = []
    file.write_text(json.dumps(kept))
    assert paces_of(tmp_path).look(PLAIN) == ()
    assert [pace.count for pace in answer(paces_of(tmp_path), PLAIN)] == [1]
