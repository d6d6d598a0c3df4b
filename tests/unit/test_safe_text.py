"""Foreign text made safe: whole, in one line, and in pieces cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.kit.hostile import HOSTILE, MARKUP, drives
from tui.widgets.safe_text import UNFINISHED_CHARS_MAX, SafeStream, safe, safe_line

DRIVING = st.text("\x1b\x9b\x9d\x9c[]P#0;1m\\\x07\x85\r\n\ta\u202e\u2066\ufeff\udc80é")


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x9d52;c;AAAA\x9cdone \x9b2Jand", "done and"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPq#0\x1b\\six\x1b(0el\x1b7", "sixel"),
        ("\x1b]0;never ended\nnext line", "\nnext line"),
        ("one\r\ntwo\rthree\x85four\u2028five", "one\ntwo\nthree\nfour\nfive"),
        ("\u202egnp.exe \u2066x\u2069", "gnp.exe x"),
        ("caf\udce9", "caf\N{REPLACEMENT CHARACTER}"),
        ("👨\u200d👩 ن\u200cی [b]x[/b]\t.", "👨\u200d👩 ن\u200cی [b]x[/b]\t."),
    ],
)
def test_only_text_is_left(raw: str, clean: str) -> None:
    assert safe(raw) == clean


def test_one_line_has_no_other() -> None:
    assert safe_line("a\tb\nc\r\nd\x1b[2J") == "a       b c d"


@given(st.text() | DRIVING)
def test_nothing_that_drives_a_terminal_survives(raw: str) -> None:
    clean = safe(raw)
    assert not drives(clean.replace("\t", ""))
    assert safe(clean) == clean
    assert safe_line(raw).encode().decode() == safe_line(raw)
    assert not set("\t\n\r\x1b") & set(safe_line(raw))


@example("\r\x9b", [])
@given(st.text() | DRIVING, st.lists(st.integers(0, 200)))
def test_in_pieces_it_is_the_same(raw: str, cuts: list[int]) -> None:
    stream = SafeStream()
    ends = [*sorted(cut for cut in cuts if cut < len(raw)), len(raw)]
    pieces = [raw[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    shown = "".join(map(stream.feed, [*pieces, "\n"]))
    assert shown == safe(raw + "\n")


def test_every_cut_of_an_attack_is_the_same() -> None:
    for at in range(len(HOSTILE)):
        stream = SafeStream()
        assert stream.feed(HOSTILE[:at]) + stream.feed(HOSTILE[at:]) == safe(HOSTILE)
    assert safe_line(HOSTILE).strip() == MARKUP


def test_what_never_ends_is_not_kept_for_ever() -> None:
    stream = SafeStream()
    stream.feed("\x1b]0;")
    for _ in range(10):
        stream.feed("x" * UNFINISHED_CHARS_MAX)
    assert "end" in stream.feed("\nend")
