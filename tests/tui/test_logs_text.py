"""The parts of the log view that need no screen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.cells import cell_len

from backends.state import ProcessInfo, ProcessRole, ProcessState
from tui.model.log_levels import LogLevel, level_of, prefix_length
from tui.model.process_words import ending_text
from tui.screens.logs.lines import (
    LINE_CHARS,
    LogBuffer,
    LogFilter,
    LogRows,
    fold_line,
    last_written,
)
from tui.screens.logs.screen import shorten_path


def test_a_line_is_what_a_terminal_would_show() -> None:
    clean = {
        "\x1b[1;31mred\x1b[0m": "red",
        "\x1b]0;title\x07text": "text",
        "\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\": "link",
        "load 1%\rload 50%\rload 100%": "load 100%",
        "line\r": "line",
        "a\tb": "a       b",
        "bell\x07 \x00nul \x9b1;2H8-bit": "bell nul 8-bit",
        "\u202egnp.exe": "gnp.exe",
        "cut \x1b[": "cut ",
        "[markup]": "[markup]",
    }
    assert {raw: last_written(raw) for raw in clean} == clean


def test_levels() -> None:
    levels = {
        "0.12.345.678 I srv  init: ok": LogLevel.INFO,
        "0.12.345.678 W low on memory": LogLevel.WARNING,
        "12.00.000.001 E cannot bind": LogLevel.ERROR,
        "0.12.345.678 D slot 0": LogLevel.DEBUG,
        "error: no such file": LogLevel.ERROR,
        "main: warning: slow": LogLevel.WARNING,
        "Failed to load": LogLevel.ERROR,
        "no errors here": LogLevel.INFO,
        "": LogLevel.INFO,
    }
    assert {line: level_of(line) for line in levels} == levels


def test_levels_leave_out_what_is_less_serious() -> None:
    lines = {level: f"0.12.345.678 {level.value[0].upper()} x" for level in LogLevel}
    for least in LogLevel:
        kept = [level for level, line in lines.items() if least.admits(line)]
        assert kept == list(LogLevel)[list(LogLevel).index(least) :]
    assert [level.after() for level in LogLevel] == [
        *list(LogLevel)[1:],
        LogLevel.DEBUG,
    ]


def test_the_prefix_is_time_and_level() -> None:
    assert prefix_length("0.12.345.678 I srv") == len("0.12.345.678 I ")
    assert prefix_length("Starting RPC server") == 0
    relay = "2026-01-31T23:59:59.123Z W "
    assert prefix_length(relay + "dllm-relay: w: linked") == len(relay)
    assert level_of(relay + "dllm-relay: w: linked") is LogLevel.WARNING


def test_filters_their_spans_and_a_broken_pattern() -> None:
    for source, kept, dropped in (
        ("rpc[0]", "device RPC[0]", "device RPC0"),
        ("RPC", "device RPC0", "device rpc0"),
        ("/rpc[01]", "device RPC0", "device RPC2"),
        ("/layer +7/", "layer   7", "layer 17x"),
        ("/", "a/b", "ab"),
    ):
        wanted = LogFilter.parse(source)
        assert [*map(wanted.matches, (kept, dropped))] == [True, False], source
    assert LogFilter.parse("ab").spans("ab cab") == [(0, 2), (4, 6)]
    assert LogFilter.parse("/x*").spans("ab") == []
    with pytest.raises(ValueError, match=r"^Not a pattern: .*\.$"):
        LogFilter.parse("/[")


@given(st.text(alphabet="ab\n\r\té漢\x1b"), st.integers(1, 7))
def test_a_log_reads_the_same_however_it_is_cut(text: str, size: int) -> None:
    whole, pieces = LogBuffer(), LogBuffer()
    whole.feed(text)
    for at in range(0, len(text), size):
        pieces.feed(text[at : at + size])
    assert list(pieces) == list(whole)


def test_the_open_line_is_replaced_as_it_grows() -> None:
    buffer = LogBuffer()
    assert buffer.feed("one\ntw") == 0
    assert buffer.feed("o\nthree") == 1
    assert list(buffer) == ["one", "two", "three"]


def test_only_the_newest_lines_are_kept() -> None:
    buffer = LogBuffer(limit=3)
    buffer.feed("".join(f"{n}\n" for n in range(10)))
    assert buffer.prune() == 7
    assert list(buffer) == ["7", "8", "9"]
    assert buffer[8] == "8"
    assert buffer.numbers() == range(7, 10)


def test_long_lines_are_kept_as_long_as_there_is_room_for_their_text() -> None:
    buffer = LogBuffer(chars_limit=1_000)
    for n in range(100):
        buffer.feed(f"{n:100}\n" if n < 99 else f"{n:2000}\n")
        buffer.prune()
        assert sum(map(len, buffer)) <= 1_000 or len(buffer) == 1
    assert [line.strip() for line in buffer] == ["99"]
    buffer.feed("half")
    buffer.feed(" a line\nlast\n")
    buffer.prune()
    assert list(buffer) == ["half a line", "last"]


def test_an_absurd_line_ends_in_an_ellipsis() -> None:
    buffer = LogBuffer()
    buffer.feed("x" * 100_000 + "\n")
    assert len(buffer[0]) == LINE_CHARS
    assert buffer[0].endswith("…")


@given(st.text(alphabet="ab漢é😀", max_size=60), st.integers(8, 20))
def test_folded_rows_fit_and_lose_nothing(line: str, width: int) -> None:
    ranges = fold_line(line, width)
    assert "".join(line[start:end] for start, end in ranges) == line
    assert all(cell_len(line[start:end]) <= width for start, end in ranges)


def test_signs_without_width_stay_with_their_letter() -> None:
    assert fold_line("e\u0301" * 20, 9) == [(0, 18), (18, 36), (36, 40)]


def test_rows_follow_the_buffer_through_filter_and_limit() -> None:
    buffer = LogBuffer(limit=4)
    rows = LogRows(buffer)
    rows.filter = LogFilter.parse("keep")
    rows.extend(buffer.feed("keep 1\ndrop\nkeep 2\n"))
    assert list(rows.line_numbers()) == [0, 2]
    dropped = rows.extend(buffer.feed("drop\nkeep 3\nkeep"))
    assert dropped == 1
    assert list(rows.line_numbers()) == [2, 4, 5]
    assert rows.matching == 3
    rows = LogRows(buffer)
    assert rows.lay_out(3)
    assert not rows.lay_out(3)
    assert rows.matching == 4
    rows.extend(buffer.feed("\nerror: keep 4\n"))
    rows = LogRows(buffer)
    rows.level = LogLevel.ERROR
    rows.lay_out(4)
    assert [buffer[number] for number in rows.line_numbers()] == ["error: keep 4"]


@given(
    st.lists(st.text(alphabet="ab \n", max_size=30), max_size=12),
    st.sampled_from([None, 8, 13]),
)
def test_growing_rows_equal_rows_made_at_once(
    pieces: list[str], width: int | None
) -> None:
    buffer = LogBuffer(limit=5)
    grown = LogRows(buffer)
    grown.width = width
    grown.filter = LogFilter.parse("a")
    for piece in pieces:
        if piece:
            grown.extend(buffer.feed(piece))
    fresh = LogRows(buffer)
    fresh.width, fresh.filter = width, grown.filter
    while fresh.lay_out(2):
        pass
    assert list(grown.line_numbers()) == list(fresh.line_numbers())
    assert len(grown) == len(fresh)
    assert grown.matching == fresh.matching


def test_how_a_process_ended() -> None:
    state = ProcessState.EXITED
    info = ProcessInfo(name="worker1", role=ProcessRole.WORKER, state=state)
    words = {
        (0, None): "exit 0",
        (1, None): "exit 1",
        (None, 9): "SIGKILL",
        (None, 250): "signal 250",
        (None, None): "ended",
    }
    for (code, signal), text in words.items():
        assert ending_text(replace(info, exit_code=code, exit_signal=signal)) == text


def test_a_path_is_cut_on_the_left() -> None:
    assert shorten_path("/a/b", 10) == "/a/b"
    assert shorten_path("/home/me/.local/state/log", 20) == "…me/.local/state/log"
    assert shorten_path("/home/me/.local/state/log", 5) == ""
