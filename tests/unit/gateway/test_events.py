"""Where the events of a stream end, whatever its line ends, and however long it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backends.engine import sse
from backends.engine.sse import ENDLESS, EndlessEvent, Splitter
from backends.gateway.api_shapes import EndMark
from tests.unit.gateway.fake_llama_server import TEXT, FakeLlamaServer
from tests.unit.gateway.gateway_fixture import CHAT, gateway, resumed, streaming

NATIVE = "/completion"
ENDS = [b"\n", b"\r\n", b"\r"]
EVENTS = [b": there\n\n", b"event: x\ndata: {}\n\n", b"data: [DONE]\n\n"]
ASKED: dict[str, dict[str, Any]] = {
    NATIVE: {"prompt": "asked", "stream": True},
    CHAT: {"messages": [{"role": "user", "content": "x"}], "stream": True},
}


def pieces_of(raw: bytes, size: int) -> list[bytes]:
    return [raw[at : at + size] for at in range(0, len(raw), size)]


@pytest.mark.parametrize("end", ENDS)
def test_events_are_the_same_with_any_line_ends_and_in_any_pieces(end: bytes) -> None:
    raw = b"".join(EVENTS).replace(b"\n", end)
    for size in range(1, len(raw) + 1):
        splitter = Splitter()
        found = [splitter.take(piece) for piece in pieces_of(raw, size)]
        assert [event for events in found for event in events] == EVENTS, size


def test_each_event_is_told_as_soon_as_it_is_over() -> None:
    splitter = Splitter()
    assert splitter.take(b"data: 1\r\rdata: 2\r") == [b"data: 1\n\n"]
    assert splitter.take(b"\r") == [b"data: 2\n\n"]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize(
    ("path", "last"),
    [(CHAT, b"data: [DONE]\n\n"), (NATIVE, b'data: {"content":""}\n\n')],
)
def test_an_end_is_seen_with_any_line_ends(path: str, last: bytes, end: bytes) -> None:
    raw = (b'data: {"stop":false}\n\n' + last).replace(b"\n", end)
    for size in range(1, len(raw) + 1):
        mark, told = EndMark(path), b""
        for piece in pieces_of(raw, size):
            mark.look_at(piece)
            told += piece
            if len(told) < len(raw) - len(end):
                assert mark.is_missing, told
        assert not mark.is_missing, size


@pytest.mark.parametrize(
    ("told", "is_whole"),
    [
        (b":\n\n", False),
        (b'data: {"stop":false}\n\n:\n\n: there\n\n', False),
        (b':\n\ndata: {"stop":false}\n\n:\n\ndata: {"stop":true}\n\n', True),
        (b'data: {"stop":false}\n\ndata: {"stop":true}\n\n:\n\n', True),
    ],
)
def test_a_sign_of_life_is_no_end(told: bytes, is_whole: bool) -> None:
    for size in range(1, len(told) + 1):
        mark = EndMark(NATIVE)
        for piece in pieces_of(told, size):
            mark.look_at(piece)
        assert mark.is_missing is not is_whole, size


def test_an_event_without_end_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HELD_BYTES_MAX", 20)
    splitter = Splitter()
    assert splitter.take(b"data: 1\n\n" + b"x" * 30) == [b"data: 1\n\n"]
    with pytest.raises(EndlessEvent, match=ENDLESS):
        splitter.take(b"x")


async def test_a_stream_with_any_line_ends_goes_on() -> None:
    async with gateway() as stage:
        for path, end in ((NATIVE, b"\r\n"), (CHAT, b"\r")):
            servers = FakeLlamaServer(3, end=end), FakeLlamaServer(number=2, end=end)
            raw = await resumed(stage, path, ASKED[path], *servers)
            assert b"\r" not in raw
            lines = [x[6:] for x in raw.splitlines() if x.startswith(b"data: {")]
            said = [json.loads(line) for line in lines]
            deltas = [c["delta"] for one in said for c in one.get("choices", ())]
            texts = [one.get("content") for one in (*said, *deltas)]
            assert "".join(filter(None, texts)) == TEXT, (path, end)
        await stage.until(continued=2, passed=2, failed=0)


async def test_an_event_of_many_megabytes_is_told_once_more() -> None:
    """As where the probability of every word is asked for with each token."""

    def told(number: int, name: bytes) -> list[bytes]:
        words = b'{"id":7,"token":"word"},' * 200_000
        events = [
            b'data: {"n":%d,"all":[%s],"created":%d,"id":"%s"}\n\n'
            % (n, words, number, name)
            for n in (1, 2)
        ]
        return [*events, b"data: [DONE]\n\n"]

    async with gateway() as stage:
        broken = streaming(told(1, b"a")[0], broken=True)
        body = {"stream": True, "n_probs": 150_000}
        raw = await resumed(stage, CHAT, body, broken, streaming(*told(2, b"b")))
        await stage.until(continued=1, passed=1, failed=0)
    is_whole = raw == b"".join(told(1, b"a"))
    assert is_whole
