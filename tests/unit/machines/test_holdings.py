"""The catalogue of all machines."""

from __future__ import annotations

from pathlib import PurePath

from backends.machines.machine import merged, path_at
from backends.places import at_peer
from backends.state import ModelCatalogue, ModelFile, Peer, PeerFacts

OURS = ModelCatalogue(
    models=(
        ModelFile(
            path="/m/a.gguf", name="a", size_bytes=5, source="models", identity="1-5-a"
        ),
    )
)


def model(path: str, size_bytes: int, identity: str = "") -> ModelFile:
    name = PurePath(path).stem
    return ModelFile(
        path=path, name=name, size_bytes=size_bytes, source="m", identity=identity
    )


def peer(name: str, *models: ModelFile) -> Peer:
    return Peer(name=name, facts=PeerFacts(at=0, models=models))


def test_the_same_bytes_are_one_row() -> None:
    there = model("/x/other name.gguf", 5, "1-5-a")
    (row,) = merged(OURS, [peer("ada", there), peer("bob", there)]).models
    assert row.path == "/m/a.gguf"
    assert row.held_by == ("local", "ada", "bob")


def test_what_only_peers_hold_is_listed_with_its_place() -> None:
    there = model("/x/b.gguf", 7, "1-7-b")
    rows = merged(OURS, [peer("ada", there), peer("bob", there)]).models
    assert [row.name for row in rows] == ["a", "b"]
    assert rows[1].path == "ada:/x/b.gguf"
    assert rows[1].held_by == ("ada", "bob")


def test_the_same_name_with_other_bytes_is_another_row() -> None:
    there = model("/x/a.gguf", 5, "1-5-z")
    rows = merged(OURS, [peer("ada", there)]).models
    assert [row.held_by for row in rows] == [("local",), ("ada",)]


def test_unread_identities_do_not_meet() -> None:
    there = model("/x/d.gguf", 7)
    rows = merged(OURS, [peer("ada", there), peer("bob", there)]).models
    assert [row.held_by for row in rows[1:]] == [("ada",), ("bob",)]


def test_where_a_peer_has_a_model() -> None:
    same, called = model("/x/copy.gguf", 5, "1-5-a"), model("/x/a.gguf", 5, "1-5-z")
    assert path_at(peer("ada", called, same), "1-5-a", "a.gguf") == "/x/copy.gguf"
    assert path_at(peer("ada", called), "1-5-a", "a.gguf") == "/x/a.gguf"
    assert path_at(peer("ada", called), "1-5-a", "b.gguf") == ""
    assert path_at(peer("ada", model("/x/c.gguf", 7)), "", "b.gguf") == ""
    assert path_at(Peer(name="bob"), "1-5-a", "a.gguf") == ""


def test_places() -> None:
    assert at_peer("ada:/m/x.gguf") == ("ada", "/m/x.gguf")
    assert at_peer("/m/x:y.gguf") is None
    assert at_peer("m.gguf") is None
