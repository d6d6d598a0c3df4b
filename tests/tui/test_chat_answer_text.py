"""An answer while it comes: drawn as it grows, laid out seldom, exact in the end."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from itertools import count
from types import SimpleNamespace

import pytest
from textual.geometry import Offset, Region
from textual.pilot import Pilot
from textual.selection import Selection
from textual.strip import Strip

from backends.state import ChatDelta
from tests.tui.chatting import DONE, answer, ask, chatting, said
from tests.tui.helpers import resize, screen_text, until
from tests.tui.stages import ChatStage
from tui.screens.cluster import answer_text
from tui.screens.cluster.answer_text import AnswerText
from tui.screens.cluster.transcript import ChatTranscript
from tui.widgets.markdown_rows import LINK, MarkdownRows, text_of

PARAGRAPH = "Air **scatters** short waves more than long ones. " * 20
TEXT = (
    "# Title\n\nSome *text*\nwith `code` and a [link](https://example.org).\n\n"
    "1. one\n2. two\n   - deep and long enough to go on in another row of it\n\n"
    "```python\nx = 1\n\ny = 2\n```\n\n> said\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n"
    "---\n\n## More\nEnd."
)
DRAWN = f"""\
Title
Some text with code and a link.

 1. one
 2. two
    • deep and long enough to go on in
      another row of it

 x = 1

 y = 2

▌ said

 a  b
 ────
 1  2

{"-" * 40}

More
End."""


def rows_of(*pieces: str, width: int = 40) -> MarkdownRows:
    rows = MarkdownRows(width, {})
    for piece in pieces:
        rows.add(piece)
    return rows


def drawn(*pieces: str, width: int = 40) -> list[str]:
    return [row.text.rstrip() for row in rows_of(*pieces, width=width).rows]


@pytest.mark.parametrize("size", [1, 7, 30])
def test_pieces_draw_the_same_as_the_whole(size: int) -> None:
    pieces = [TEXT[at : at + size] for at in range(0, len(TEXT), size)]
    assert drawn(*pieces) == drawn(TEXT)


def test_rows_look_like_markdown() -> None:
    assert "\n".join(drawn(TEXT)) == DRAWN


def test_only_the_last_block_is_drawn_again() -> None:
    rows = rows_of("one\n\ntwo\n\nthree")
    before = rows.rows
    rows.add(" and more\n\nfour")
    assert all(old is new for old, new in zip(before[:3], rows.rows, strict=False))


def test_a_piece_makes_no_parser_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of("one")
    monkeypatch.setattr("rich.markdown.MarkdownIt", None)
    rows.add(" two\n\nthree")
    assert [row.text.strip() for row in rows.rows] == ["one two", "", "three"]


def test_code_that_is_too_wide_goes_on_in_another_row() -> None:
    code = "x = " + "1 + " * 20 + "1"
    shown = drawn(f"```\n{code}\n```")
    assert "".join(row[1:].ljust(38) for row in shown).rstrip() == code


@pytest.mark.parametrize(
    "text",
    [
        "word " * 30 + "end",
        "short\n\n" + "long" * 40 + " and " + "word " * 20 + "end",
        "x = " + "1 + " * 20 + "1",
    ],
)
def test_what_is_selected_is_whole_lines(text: str) -> None:
    rows = rows_of(f"```\n{text}\n```" if "=" in text else text)
    assert len(rows.rows) > text.count("\n") + 2
    assert text_of(rows.rows, Selection(None, None)).strip() == text


def test_a_part_is_selected_from_where_it_begins() -> None:
    text = "- one two three four five six\n- seven"
    shown = ["• one two three four", "  five six", "• seven"]
    assert drawn(text, width=20) == shown
    rows = rows_of(text, width=20)
    chosen = Selection(Offset(6, 0), Offset(7, 2))
    assert text_of(rows.rows, chosen) == "two three four five six\n• seven"


def test_addresses_do_not_reach_the_terminal() -> None:
    rows = rows_of("[a](https://example.org) https://example.com")
    styles = [segment.style for row in rows.rows for segment in row]
    assert not any(style and style.link for style in styles)
    known = {style.meta.get(LINK) for style in styles if style} - {None}
    assert known == {"https://example.org", "https://example.com"}


async def test_words_are_shown_before_markdown_can_be_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow, load = threading.Event(), importlib.import_module

    def loading(name: str) -> object:
        slow.wait()
        return load(name)

    monkeypatch.delitem(sys.modules, answer_text.MARKDOWN, raising=False)
    monkeypatch.setattr(importlib, "import_module", loading)
    async with chatting() as (app, pilot):
        await app.restore([said("Why?", "Air **scatters** light.")])
        try:
            await shows(app, pilot, "Air **scatters** light.")
        finally:
            slow.set()
        await shows(app, pilot, "Air scatters light.")


async def shows(app: ChatStage, pilot: Pilot[None], text: str) -> None:
    await until(pilot, lambda: text in screen_text(app))


def layouts_of(app: ChatStage) -> list[object]:
    """Grows with every layout of the screen from now on."""
    layouts: list[object] = []
    app.screen.screen_layout_refresh_signal.subscribe(app.pane, layouts.append)
    return layouts


async def filled(app: ChatStage, pilot: Pilot[None]) -> AnswerText:
    """An answer that comes and takes all the rows it may."""
    await ask(app, pilot)
    app.give(ChatDelta(text=f"{PARAGRAPH}\n\n" * 4 + "filled"))
    await shows(app, pilot, "filled")
    coming = app.query_one(AnswerText)
    height = app.query_one(ChatTranscript).size.height
    await until(pilot, lambda: coming.size.height == 2 * height)
    return coming


async def test_words_of_a_followed_answer_lay_nothing_out_and_all_are_seen() -> None:
    async with chatting() as (app, pilot):
        coming = await filled(app, pilot)
        layouts = layouts_of(app)
        for number in range(300):
            app.give(ChatDelta(text=f"word {number} "))
        await shows(app, pilot, "word 299")
        assert layouts == []
        transcript = app.query_one(ChatTranscript)
        transcript.focus()
        await pilot.press("pageup", "pageup", "home")
        await shows(app, pilot, "Why?")
        assert transcript.scroll_y == 0
        assert coming.size.height > 2 * transcript.size.height
        await pilot.press("end")
        await shows(app, pilot, "word 299")
        await until(pilot, lambda: coming.size.height == 2 * transcript.size.height)
        await answer(app, pilot, ChatDelta(text="\n\nand *end*."), DONE)
        assert coming.text == app.turns[0][1]
        await until(pilot, lambda: coming.size.height > 2 * transcript.size.height)
        await shows(app, pilot, "and end.")


@pytest.mark.frames
async def test_the_pace_follows_what_drawing_and_painting_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu_s, paint = 0.0, AnswerText.render_lines

    def painted(text: AnswerText, crop: Region) -> list[Strip]:
        nonlocal cpu_s
        cpu_s += 0.5
        return paint(text, crop)

    clock = SimpleNamespace(thread_time=lambda: cpu_s)
    monkeypatch.setattr("tui.screens.cluster.answer.time", clock)
    monkeypatch.setattr(AnswerText, "render_lines", painted)
    async with chatting() as (app, pilot):
        coming = await ask(app, pilot)
        assert coming._drawing_s == 0.0
        # Where an answer begins, or a machine is busy, something may be painted later.
        words = (f"word{number}" for number in count())
        while coming._drawing_s < 0.5:
            word = next(words)
            app.give(ChatDelta(text=f"{word} "))
            await shows(app, pilot, word)
        await answer(app, pilot, DONE)


async def test_an_answer_grows_by_few_layouts_to_its_place() -> None:
    async with chatting() as (app, pilot):
        await ask(app, pilot)
        app.give(ChatDelta(text="begin\n\n"))
        await until(pilot, lambda: app.query(AnswerText))
        await shows(app, pilot, "begin")
        layouts = layouts_of(app)
        for number in range(30):
            line = f"line {number}"
            app.give(ChatDelta(text=f"{line}\n\n"))
            await shows(app, pilot, line)
        # 60 rows came; Textual lays out twice whenever a height changes.
        assert 0 < len(layouts) < 25
        await answer(app, pilot, DONE)


async def test_a_long_answer_is_drawn_in_pieces_between_which_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns_of_others = 0
    drawn_at: list[int] = []
    add = MarkdownRows.add

    def counted(rows: MarkdownRows, text: str) -> None:
        drawn_at.append(turns_of_others)
        add(rows, text)

    async def others() -> None:
        nonlocal turns_of_others
        while True:
            turns_of_others += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(MarkdownRows, "add", counted)
    async with chatting() as (app, pilot):
        await ask(app, pilot)
        running = asyncio.create_task(others())
        await answer(app, pilot, ChatDelta(text=f"{PARAGRAPH}\n\n" * 12), DONE)
        running.cancel()
        assert len(drawn_at) >= 12
        assert len(set(drawn_at)) == len(drawn_at)


async def test_a_page_back_goes_on_where_the_view_was() -> None:
    async with chatting() as (app, pilot):
        await ask(app, pilot)
        text = "\n\n".join(f"line {number}" for number in range(100))
        app.give(ChatDelta(text=text))
        await shows(app, pilot, "line 98")
        height = app.query_one(ChatTranscript).size.height
        await pilot.press("pageup")
        await until(pilot, lambda: "line 99" not in screen_text(app))
        page_before = 99 - (height - 1) // 2
        await shows(app, pilot, f"line {page_before}")
        await answer(app, pilot, DONE)


async def test_what_comes_can_be_selected_and_rows_break_anew() -> None:
    async with chatting() as (app, pilot):
        await ask(app, pilot)
        app.give(ChatDelta(text="one **two**\n\nthree " + "word " * 30))
        await shows(app, pilot, "one two")
        coming = app.query_one(AnswerText)
        app.screen.selections = {coming: Selection(Offset(4, 0), Offset(5, 2))}
        assert app.pane.copyable().text == "two\n\nthree"  # type: ignore[union-attr]
        before = coming.size.height
        await resize(pilot, 40, 24)
        await until(pilot, lambda: coming.size.height > before)
        assert "one two" in screen_text(app)
        await answer(app, pilot, DONE)
