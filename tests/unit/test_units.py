"""Text for people: one formatter for each quantity, and signs that are safe."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import backends
import tui
from backends.state import Lab
from backends.units import (
    format_age,
    format_bytes,
    format_difference,
    format_lab,
    format_mb_s,
    format_mean,
    format_ms,
    format_offset,
    format_percent,
    format_rate,
    format_seconds,
    format_speed,
)
from tests.kit.hostile import HOSTILE, MARKUP, drives
from tui.widgets.safe_text import UNFINISHED_CHARS_MAX, SafeStream, safe, safe_line

FORMATTERS = {"backends/units.py", "tui/model/quantities.py"}
"""Where numbers become text."""
NO_FIGURES = {"backends/bench/chart.py", "backends/machines/agent.py"}
"""A number there is part of a name, which nobody reads."""
BY_HAND = re.compile(r"[%,]$|[0-9.]*[feEFG]$|,")
"""Rounds a figure or groups its digits; ``:g`` repeats a limit as it was set."""
MAY_FORMAT = re.compile(
    r"[:}](?:[^{}\n]?[<>=^])? ?[^{}\n \"',]*(?:[%feEFG]|,[^{}\n \"']*)\}"
)
"""What any text with such a format has; to parse all others would take a second."""


@pytest.mark.parametrize(
    ("formatted", "value", "text"),
    [
        (format_mean, 0.36, "0.4"),
        (format_mean, 2.0, "2"),
        (partial(format_mean, noun="trip"), 1.04, "1 trip"),
        (partial(format_mean, noun="trip"), 0.4, "0.4 trips"),
        (format_bytes, 0, "0 B"),
        (format_bytes, 999, "999 B"),
        (format_bytes, 1024, "1.0 KiB"),
        (format_bytes, 5_000_000, "4.8 MiB"),
        (format_bytes, 16.9 * 2**30, "16.9 GiB"),
        (format_bytes, 2**60, "1024 PiB"),
        (format_seconds, 0.88, "0.88 s"),
        (format_seconds, 12.34, "12.3 s"),
        (format_seconds, 59.97, "1 m 00 s"),
        (format_seconds, 245, "4 m 05 s"),
        (format_seconds, 11520, "3 h 12 m"),
        (format_age, 0.4, "0 s"),
        (format_age, 12.4, "12 s"),
        (format_age, 61, "61 s"),
        (format_age, 99.6, "1 m 40 s"),
        (format_age, 11520, "3 h 12 m"),
        (format_ms, 0.0008, "0.8 µs"),
        (format_ms, 0.0421, "42 µs"),
        (format_ms, 0.4, "400 µs"),
        (format_ms, 0.9996, "1.00 ms"),
        (format_ms, 12.34, "12.3 ms"),
        (format_ms, 123.4, "123 ms"),
        (format_ms, 2400, "2.40 s"),
        (
            format_lab,
            Lab(latency_ms=20, jitter_ms=2, rate_mb_s=6),
            "+20 ± 2 ms, 6 MB/s",
        ),
        (format_lab, Lab(latency_ms=0.15), "+0.15 ms"),
        (format_lab, Lab(rate_mb_s=118), "118 MB/s"),
    ],
)
def test_quantities(formatted: Callable[[Any], str], value: Any, text: str) -> None:
    assert formatted(value) == text


def test_the_others() -> None:
    assert format_percent(0.425) == "42 %"
    assert format_difference(-0.118) == "−12 %"
    assert format_difference(0.02) == "+2 %"
    assert format_offset(-75) == "−75.0 s"
    assert format_speed(21.34) == "21.3 tok/s"
    assert [format_mb_s(rate) for rate in (0.42, 30, 118)] == [
        *("0.42 MB/s", "30.0 MB/s", "118 MB/s")
    ]


@pytest.mark.parametrize("value", [None, 0.0, 21.34, 99.99, 999.9, 999.96, 12345.6])
def test_rates_keep_their_width(value: float | None) -> None:
    assert len(format_rate(value)) == 5


def test_no_figure_is_formatted_by_hand() -> None:
    """A quantity that has a formatter looks the same wherever it is told."""
    halves = [Path(*half.__path__) for half in (backends, tui)]
    files = [
        file
        for half in halves
        for file in half.rglob("*.py")
        if "training" not in file.parts
    ]
    assert len(files) > 200
    found = [
        f"{name}:{at}"
        for file in files
        if (name := file.relative_to(halves[0].parent).as_posix())
        not in FORMATTERS | NO_FIGURES
        for at in _by_hand(file)
    ]
    assert found == [], "These belong into one of the formatters."


def _by_hand(file: Path) -> Iterator[int]:
    """Lines that turn a figure into text themselves."""
    if not MAY_FORMAT.search(text := file.read_text()):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            assert isinstance(node.format_spec, ast.JoinedStr)
            spec = "".join(
                str(part.value)
                for part in node.format_spec.values
                if isinstance(part, ast.Constant)
            )
            if BY_HAND.search(spec):
                yield node.lineno


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
