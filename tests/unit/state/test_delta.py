"""Snapshots as patches, and the base of every value."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.state import (
    ClusterSnapshot,
    ClusterState,
    Failure,
    Link,
    LinkCommand,
    Pass,
    Peer,
    PeerFacts,
    ProcessInfo,
    ProcessRole,
    ProcessState,
    Step,
)
from backends.state.base import Value, json_bytes, to_json
from backends.state.delta import Frame, applied, diff, framed
from tests.kit.examples import FEW_OR_MANY
from tests.unit.state.scene import busy_scene

names = st.sampled_from(["a", "b", "c", "d"])
numbers = st.integers(0, 5)
times = st.floats(0, 9, allow_nan=False)
texts = st.text(max_size=4)

passes = st.lists(
    st.builds(Pass, at_ms=times, tokens=numbers), max_size=5
).map(tuple)  # fmt: skip
commands = st.dictionaries(
    names,
    st.builds(
        LinkCommand,
        count=numbers,
        p50_us=st.none() | times,
        histogram_us=st.lists(st.tuples(times, numbers), max_size=4).map(tuple),
    ),
    max_size=3,
)
links = st.builds(
    Link, worker=names, mode=texts, rtt_ms=st.none() | times, commands=commands,
    passes=passes,
)  # fmt: skip
peers = st.builds(
    Peer,
    name=names,
    note=texts,
    since=st.none() | times,
    facts=st.none() | st.builds(PeerFacts, at=times, problems=st.just(("x",))),
)
processes = st.builds(
    ProcessInfo,
    name=names,
    peer=names,
    role=st.sampled_from(ProcessRole),
    state=st.sampled_from(ProcessState),
    exit_code=st.none() | numbers,
    argv=st.lists(texts, max_size=3).map(tuple),
)
snapshots = st.builds(
    ClusterSnapshot,
    seq=numbers,
    at=times,
    state=st.sampled_from(ClusterState),
    message=texts,
    peers=st.lists(peers, max_size=4).map(tuple),
    links=st.lists(links, max_size=4).map(tuple),
    processes=st.lists(processes, max_size=4).map(tuple),
    steps=st.lists(st.builds(Step, id=names, title=texts), max_size=4).map(tuple),
    api_url=st.none() | texts,
)


def over_the_wire(frame: Frame) -> Frame:
    return msgspec.json.decode(msgspec.json.encode(frame), type=Frame)


@FEW_OR_MANY
def test_changes_give_every_snapshot_again(n_examples: int) -> None:
    @settings(max_examples=n_examples)
    @given(st.lists(snapshots, min_size=2, max_size=4))
    def are_the_same(stream: list[ClusterSnapshot]) -> None:
        sent: ClusterSnapshot | None = None
        seen: ClusterSnapshot | None = None
        for snapshot in stream:
            seen = applied(over_the_wire(framed(snapshot, sent)), seen)
            sent = snapshot
            assert seen == snapshot

    are_the_same()


def test_what_stays_is_neither_sent_nor_made_anew() -> None:
    old = busy_scene(0)
    new = msgspec.structs.replace(old, seq=old.seq + 1, message="so it goes")
    frame = over_the_wire(framed(new, old))
    assert frame.patch == {"seq": new.seq, "message": "so it goes"}
    seen = applied(frame, old)
    assert seen.model is old.model
    assert seen.links is old.links


def test_a_null_of_a_patch_can_be_told_from_a_value() -> None:
    """Null removes a key, so every value that may be None has that default."""
    seen: list[type] = []

    def check(kind: Any) -> None:
        for part in get_args(kind):
            check(part)
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            return
        if kind in seen or kind is ClusterSnapshot:
            return
        seen.append(kind)
        for field in msgspec.structs.fields(kind):
            if type(None) in get_args(field.type):
                assert field.default is None, f"{kind.__name__}.{field.name}"
            check(field.type)

    for field in msgspec.structs.fields(ClusterSnapshot):
        check(field.type)
    assert Peer in seen


def test_one_peer_of_four_is_sent_alone() -> None:
    old = busy_scene(0)
    moved = msgspec.structs.replace(old.peers[2], rtt_ms=9.5)
    peers = (*old.peers[:2], moved, *old.peers[3:])
    new = msgspec.structs.replace(old, peers=peers)
    assert diff(old, new) == {"peers": {moved.name: {"rtt_ms": 9.5}}}
    assert applied(over_the_wire(framed(new, old)), old) == new


def test_a_list_that_moves_on_and_one_of_counts_are_not_sent_whole() -> None:
    old, new = busy_scene(0), busy_scene(1)
    link = diff(old, new)["links"][old.links[0].worker]
    gone, others = link["passes"][""]
    assert gone == len(others) < len(old.links[0].passes)
    (index,) = link["commands"]["GRAPH_COMPUTE"]["histogram_us"]
    assert index.isdigit()


def test_busy_scene_takes_tenth_of_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    """4 links, 4 peers, 80 layers, four snapshots a second while tokens flow."""
    stream = [busy_scene(tick) for tick in range(41)]
    whole = sum(len(msgspec.json.encode(s)) for s in stream[1:])
    changes = sum(
        len(msgspec.json.encode(framed(new, old))) for old, new in pairwise(stream)
    )
    with capsys.disabled():
        print(  # noqa: T201 -- the figures are what this is for
            f"\nsnapshot stream: {whole / 10240:.1f} KiB/s whole, "
            f"{changes / 10240:.1f} KiB/s as changes"
        )
    assert changes * 10 < whole


@pytest.mark.parametrize(
    "frame",
    [
        Frame(),
        Frame(patch={"nonsense": 1}),
        Frame(patch={"peers": {"x": {}}}),
        Frame(patch={"links": {"x": {"nonsense": {"a": 1}}}}),
    ],
)
def test_changes_of_something_unknown_are_refused(frame: Frame) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- any of them is told as one
        applied(frame, ClusterSnapshot())


def test_changes_without_a_beginning_are_refused() -> None:
    with pytest.raises(ValueError, match="whole"):
        applied(Frame(patch={}), None)


class Told(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Text in every place it can have."""

    text: str = ""
    pair: tuple[str, ...] = ()
    named: dict[str, Failure] = {}


@pytest.mark.parametrize("junk", ["\ud800", "a\udcff", "\udc80b"])
def test_text_that_is_no_unicode_is_replaced_and_nothing_else(junk: str) -> None:
    told = Told(text=junk, pair=("é", junk), named={junk: Failure(what=junk)})
    clean = junk.encode(errors="replace").decode()
    meant = Told(text=clean, pair=("é", clean), named={clean: Failure(what=clean)})
    assert json_bytes(told) == msgspec.json.encode(meant)
    assert to_json(told) == to_json(meant)


def test_all_other_values_are_as_ever() -> None:
    told = Told(text="ü", named={"a": Failure(what="b")})
    assert json_bytes(told) == msgspec.json.encode(told)
    assert b"text" not in json_bytes(Told())
