"""The catalogue of all machines."""

from __future__ import annotations

from backends.controller.holdings import merged
from backends.controller.places import at_peer
from backends.state import ModelCatalogue, ModelFile, Peer, PeerFacts, PeerModel

OURS = ModelCatalogue(
    models=(
        ModelFile(
            path="/m/a.gguf", name="a", size_bytes=5, source="models", identity="1-5-a"
        ),
    )
)


def peer(name: str, *models: PeerModel) -> Peer:
    return Peer(name=name, facts=PeerFacts(at=0, models=models))


def test_the_same_bytes_are_one_row() -> None:
    there = PeerModel(path="/x/other name.gguf", size_bytes=5, identity="1-5-a")
    (row,) = merged(OURS, [peer("ada", there), peer("bob", there)]).models
    assert row.path == "/m/a.gguf"
    assert row.held_by == ("local", "ada", "bob")


def test_what_only_peers_hold_is_listed_with_its_place() -> None:
    there = PeerModel(path="/x/b.gguf", size_bytes=7, identity="1-7-b")
    rows = merged(OURS, [peer("ada", there), peer("bob", there)]).models
    assert [row.name for row in rows] == ["a", "b"]
    assert rows[1].path == "ada:/x/b.gguf"
    assert rows[1].held_by == ("ada", "bob")


def test_the_same_name_with_other_bytes_is_another_row() -> None:
    there = PeerModel(path="/x/a.gguf", size_bytes=5, identity="1-5-z")
    rows = merged(OURS, [peer("ada", there)]).models
    assert [row.held_by for row in rows] == [("local",), ("ada",)]


def test_the_parts_of_a_split_model_are_one_row() -> None:
    parts = [
        PeerModel(path=f"/x/c-0000{n}-of-00002.gguf", size_bytes=n, identity=f"1-{n}-c")
        for n in (1, 2)
    ]
    (_, row) = merged(OURS, [peer("ada", *parts)]).models
    assert row.name == "c"
    assert row.size_bytes == 3
    assert row.path == "ada:/x/c-00001-of-00002.gguf"


def test_unread_identities_do_not_meet() -> None:
    there = PeerModel(path="/x/d.gguf", size_bytes=7)
    rows = merged(OURS, [peer("ada", there), peer("bob", there)]).models
    assert [row.held_by for row in rows[1:]] == [("ada",), ("bob",)]


def test_places() -> None:
    assert at_peer("ada:/m/x.gguf") == ("ada", "/m/x.gguf")
    assert at_peer("/m/x:y.gguf") is None
    assert at_peer("m.gguf") is None
