"""A long text that is folded and searched piece by piece, and its two places."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.widgets._toast import Toast, ToastRack

from backends.redaction import LEFT_OUT, without_keys
from backends.state import Peer
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.chatting import chatting, said
from tests.tui.helpers import burst, screen_text, until
from tests.tui.pictures import SMALL, Snap, seen
from tests.tui.stages import ChatStage
from tui.dialogs.help_and_events import RawDialog, raw_text
from tui.widgets.inputs import FilterBar
from tui.widgets.text_search import (
    CHARS_AT_ONCE,
    FoldedText,
    Match,
    TextLine,
    TextSearch,
    word_rows,
)

TEXTS = st.lists(st.text(alphabet="ab é漢", max_size=40), max_size=12)


@given(st.text(alphabet="ab é漢", max_size=60), st.integers(2, 12))
def test_rows_are_the_whole_line_and_none_is_too_wide(text: str, width: int) -> None:
    rows = list(word_rows(text, width))
    assert "".join(text[start:end] for start, end in rows) == text
    assert all(cell_len(text[a:b].rstrip()) <= width for a, b in rows)
    assert all(b > a for a, b in rows) or not text


def test_a_line_is_folded_between_words() -> None:
    rows = word_rows("the sky is blue-and-white", 8)
    assert list(rows) == [(0, 8), (8, 11), (11, 19), (19, 25)]
    assert list(word_rows("    indented", 8)) == [(0, 8), (8, 12)]


@given(TEXTS, st.text(alphabet="aB é", min_size=1, max_size=2), st.integers(1, 99))
def test_matches_are_those_of_the_whole_text_however_small_the_pieces(
    texts: list[str], wanted: str, chars: int
) -> None:
    folded = FoldedText(map(TextLine, texts))
    folded.fold(8)
    folded.search(wanted)
    while folded.go_on(chars):
        assert len(folded.matches) <= sum(map(len, texts))
    assert folded.matches == [
        Match(number, *found.span())
        for number, text in enumerate(texts)
        for found in re.finditer(re.escape(wanted), text, re.IGNORECASE)
    ]
    for match in folded.matches:
        row = folded.rows[folded.row_of(match)]
        assert row.line == match.line
        assert row.start <= match.start < row.end
        assert match in folded.matches_in(match.line)


def test_a_step_takes_no_more_than_it_may() -> None:
    folded = FoldedText(TextLine("word " * 20) for _ in range(2000))
    folded.fold(60)
    folded.search("word")
    steps = 0
    while folded.go_on():
        steps += 1
    assert steps > 2000 * 3 * 100 // (2 * CHARS_AT_ONCE)
    assert len(folded.matches) == 40_000


def note(app: ChatStage) -> str:
    return app.query_one(FilterBar).note


async def searched(
    app: ChatStage, pilot: Pilot[None], n_turns: int, typed: str
) -> None:
    await app.restore([said(f"Why {n}?", f"An *oak* {n}") for n in range(n_turns)])
    await until(pilot, lambda: app.pane.conversation and app.turns)
    await pilot.press("escape")
    await burst(pilot, "slash", *typed)


async def test_a_chat_is_searched_from_where_one_is_and_left_again() -> None:
    async with chatting(80, 20) as (app, pilot):
        await searched(app, pilot, 50, "OAK* 4")
        await until(pilot, lambda: note(app) == "7/11")
        assert "An *oak* 49" in screen_text(app)
        await pilot.press("enter", "n", "n", "n", "n")
        await until(pilot, lambda: note(app) == "1/11")
        assert "An *oak* 5" in screen_text(app)
        await pilot.press("n", "n", "N", "y")
        await until(pilot, lambda: app.clipboard == "An *oak* 40")
        await pilot.press("slash", "x")
        await until(pilot, lambda: note(app) == "not found")
        await pilot.press("escape")
        await until(pilot, lambda: not app.query(FilterBar))
        assert "An oak 49" in screen_text(app)
        assert app.focused is app.pane._transcript


def test_the_json_of_a_thing_has_no_secrets() -> None:
    peer = Peer(name="mini", note="--api-key sk-0123456789abcdef0123")
    text = raw_text(peer)
    assert '"name": "mini"' in text
    assert "0123456789" not in text
    assert text.count("\n") > 5


def test_a_member_of_json_tells_a_secret_by_its_name() -> None:
    value = {"api_key": "hunter22", "hostKey": "", "passes": 3, "tokens_from": "wire"}
    assert without_keys([value]) == [value | {"api_key": LEFT_OUT}]


async def test_a_toast_leaves_the_count_of_a_search_free(started: Started) -> None:
    async with started(scenes.homelab_serving(), size=SMALL) as (pilot, app, _):
        app._home.go_to("chat")
        await pilot.press("ctrl+f")
        await until(pilot, lambda: app.screen.query(".chat-search FilterBar"))
        app._disable_notifications = False  # As they are in tests.
        await app.screen.mount(ToastRack())
        app.tell("Long " * 30)
        await until(pilot, lambda: app.screen.query(Toast))
        await pilot.pause()
        toast, bar = app.screen.query_one(Toast), app.screen.query_one(TextSearch)
        assert toast.region.height > 1
        assert toast.region.bottom < bar.region.bottom


async def test_the_json_of_what_is_selected_is_shown_searched_and_copied(
    started: Started, snap_compare: Snap
) -> None:
    async with started(size=SMALL) as (pilot, app, _):
        app._home.go_to("peers")
        await pilot.press("down", "J")
        await until(pilot, lambda: isinstance(app.screen, RawDialog))
        await until(pilot, lambda: '"name": "mini"' in screen_text(app))
        assert "JSON · peer mini" in screen_text(app)
        await burst(pilot, "slash", *"mini")
        await until(pilot, lambda: "/" in app.screen.query_one(FilterBar).note)
        await seen(snap_compare, pilot)
        await pilot.press("enter", "y")
        await until(pilot, lambda: app.clipboard.startswith("{"))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, RawDialog))


def test_chat_search_snapshot(snap_compare: Snap) -> None:
    async def search(pilot: Pilot[None]) -> None:
        app = pilot.app
        assert isinstance(app, ChatStage)
        await searched(app, pilot, 20, "why 1")
        await pilot.press("enter")
        await until(pilot, lambda: note(app).endswith("/11"))

    assert snap_compare(ChatStage(), terminal_size=(80, 16), run_before=search)
