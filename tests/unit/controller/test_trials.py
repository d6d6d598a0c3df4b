"""What trials are kept by: networks that are alike, and the book on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.controller.trials import Network, TrialBook, band
from backends.state import DraftTrial, Lab, Link
from tests.unit.controller.auto_stage import MODEL, PLAN

if TYPE_CHECKING:
    from pathlib import Path


def test_a_round_trip_that_wavers_about_an_edge_is_the_same_network() -> None:
    assert [band(rtt_ms) for rtt_ms in (0.1, 2.5, 20.0, 500.0)] == [0, 1, 2, 4]
    assert band(2.5, before=0) == 0
    assert band(1.5, before=1) == 1
    assert band(3.5, before=0) == 1
    network = Network()
    near = network.site(PLAN, (Link(worker="ada", rtt_ms=1.0),))
    assert network.site(PLAN, (Link(worker="ada", rtt_ms=2.5),)) == near
    assert network.site(PLAN, (Link(worker="ada", rtt_ms=9.0),)) != near
    assert network.site(PLAN, ()) != near


def test_a_network_in_words() -> None:
    network = Network()
    links = (
        Link(worker="ada", rtt_ms=3.0),
        Link(worker="bob", rtt_ms=4.0),
        Link(worker="eve", rtt_ms=0.1, lab=Lab(latency_ms=1)),
        Link(worker="far", rtt_ms=500.0),
        Link(worker="new"),
    )
    network.site(PLAN, links)
    assert network.told(links) == (
        "ada and bob 2 to 8 ms, eve under 2 ms (lab +1 ms), far over 128 ms, "
        "new at an unknown distance"
    )
    assert not network.told(())


def test_a_book_that_cannot_be_read_or_written_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "trials.json").write_text("{")
    assert TrialBook(tmp_path / "trials.json").chosen(PLAN) is None
    gone = TrialBook(tmp_path / "trials.json" / "no" / "folder")
    gone.choose(PLAN, MODEL)
    assert gone.chosen(PLAN) == MODEL


def test_a_rate_that_cannot_be_makes_a_book_unreadable(tmp_path: Path) -> None:
    book = TrialBook(tmp_path / "trials.json")
    trial = DraftTrial(draft="none", tok_per_s=20.0, tokens=1, at=1.0)
    book.keep("site", trial)
    assert TrialBook(tmp_path / "trials.json").of("site") == (trial,)
    written = (tmp_path / "trials.json").read_text()
    (tmp_path / "trials.json").write_text(written.replace("20.0", "0.0"))
    assert TrialBook(tmp_path / "trials.json").of("site") == ()
