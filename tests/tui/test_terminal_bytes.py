"""Bytes that kitty, iTerm2, xterm and tmux send, read as the console reads them.

Those of kitty are by its keyboard protocol with the flags that Textual asks for: every
key is an escape sequence, with the text that it types. The others send what xterm does.
"""

from __future__ import annotations

import pytest
from textual import events
from textual._xterm_parser import XTermParser
from textual.keys import key_to_character
from textual.message import Message

from tui.actions import ACTIONS, split_keys

SHARED = {
    "\x1b[3~": "delete",
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b[1;2A": "shift+up",
    "\x1b[1;2B": "shift+down",
    "\x1b[1;2C": "shift+right",
    "\x1b[1;2D": "shift+left",
    "\x1b[1;5C": "ctrl+right",
    "\x1b[1;5D": "ctrl+left",
    "\x1b[1;5A": "ctrl+up",
    "\x1b[1;5B": "ctrl+down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown",
    "\x1b[15~": "f5",
    "\x1b[17~": "f6",
    "\x1b[18~": "f7",
    "\x1b[19~": "f8",
    "\x1b[20~": "f9",
    "\x1b[21~": "f10",
    "\x1b[24~": "f12",
}
KITTY = {
    **SHARED,
    "\x1b[27u": "escape",
    "\x1b[13u": "enter",
    "\x1b[13;2u": "shift+enter",
    "\x1b[13;129u": "enter",  # Num Lock is on.
    "\x1b[57414u": "enter",  # On the keypad.
    "\x1b[9u": "tab",
    "\x1b[9;2u": "shift+tab",
    "\x1b[127u": "backspace",
    "\x1b[99;5u": "ctrl+c",
    "\x1b[102;5u": "ctrl+f",
    "\x1b[106;5u": "ctrl+j",
    "\x1b[110;5u": "ctrl+n",
    "\x1b[112;5u": "ctrl+p",
    "\x1b[113;5u": "ctrl+q",
    "\x1b[121;5u": "ctrl+y",
    "\x1b[P": "f1",
    "\x1b[Q": "f2",
    "\x1b[13~": "f3",
    "\x1b[S": "f4",
    "\x1b[32;;32u": "space",
    "\x1b[97;;97u": "a",
    "\x1b[97;2;65u": "A",
    "\x1b[49;;49u": "1",
    "\x1b[47;2;63u": "question_mark",
    "\x1b[47;;47u": "slash",
    "\x1b[55;2;47u": "slash",  # Shift+7 on a German keyboard.
    "\x1b[59;2;58u": "colon",
    "\x1b[92;;92u": "backslash",
    "\x1b[92;2;124u": "vertical_line",
    "\x1b[61;;61u": "equals_sign",
    "\x1b[61;2;43u": "plus",
    "\x1b[45;;45u": "minus",
    "\x1b[57;2;40u": "left_parenthesis",
}
XTERM = {
    **SHARED,
    "\x1b": "escape",
    "\r": "enter",
    "\t": "tab",
    "\x1b[Z": "shift+tab",
    "\x7f": "backspace",
    "\x03": "ctrl+c",
    "\x06": "ctrl+f",
    "\n": "ctrl+j",
    "\x0e": "ctrl+n",
    "\x10": "ctrl+p",
    "\x11": "ctrl+q",
    "\x19": "ctrl+y",
    "\x1bOA": "up",  # In application mode, as a program before may have left it.
    "\x1bOH": "home",
    "\x1b[1~": "home",  # tmux
    "\x1b[4~": "end",
    "\x1bOP": "f1",
    "\x1bOQ": "f2",
    "\x1bOR": "f3",
    "\x1bOS": "f4",
    "/": "slash",
    "\\": "backslash",
    "+": "plus",
    "-": "minus",
}
NOT_SENT = {"shift+enter"}
"""Keys that xterm does not tell from others."""


def read(sent: str) -> list[Message]:
    parser = XTermParser()
    return [*parser.feed(sent), *parser.feed("")]


def keys(sent: str) -> list[str]:
    return [event.key for event in read(sent) if isinstance(event, events.Key)]


def bound() -> dict[str, set[str]]:
    """Keys that the console binds, with the actions of each."""
    found: dict[str, set[str]] = {}
    for action in ACTIONS:
        for key in split_keys(action.keys):
            found.setdefault(key, set()).add(action.id)
    return found


@pytest.mark.parametrize("sent", [KITTY, XTERM], ids=["kitty", "xterm"])
def test_each_key_is_the_one_that_is_bound(sent: dict[str, str]) -> None:
    assert {one: keys(one) for one in sent} == {one: [sent[one]] for one in sent}
    textless = {key for key in bound() if key_to_character(key) is None}
    assert len(textless) > 30
    assert textless - {*sent.values()} == (NOT_SENT if sent is XTERM else set())
    assert {*sent.values()} <= {*bound()}


def test_every_action_has_a_key_that_every_terminal_sends() -> None:
    reached = {
        action
        for key, actions in bound().items()
        if key not in NOT_SENT
        for action in actions
    }
    assert {action.id for action in ACTIONS if action.keys} == reached


def test_a_burst_is_read_key_by_key() -> None:
    assert keys("".join(KITTY)) == [*KITTY.values()]


def test_a_modifier_alone_does_nothing() -> None:
    for sent in ("\x1b[57441;2u", "\x1b[57442;5u", "\x1b[57358u"):
        (event,) = read(sent)
        assert isinstance(event, events.Key)
        assert event.key not in bound()
        assert not event.is_printable


def test_letters_beyond_ascii_are_text() -> None:
    for sent in ("ä", "\x1b[228;;228u", "\x1b[0;;228u"):
        assert [event.character for event in read(sent)] == ["ä"]  # type: ignore[attr-defined]


def test_the_mouse_is_where_the_terminal_says() -> None:
    sent = {
        "\x1b[<0;200;60M": (events.MouseDown, 199, 59, 1),
        "\x1b[<32;201;60M": (events.MouseMove, 200, 59, 1),
        "\x1b[<0;201;60m": (events.MouseUp, 200, 59, 1),
        "\x1b[<2;1;1M": (events.MouseDown, 0, 0, 3),
        "\x1b[<64;1;1M": (events.MouseScrollUp, 0, 0, 0),
        "\x1b[<65;1;1M": (events.MouseScrollDown, 0, 0, 0),
    }
    for one, (kind, x, y, button) in sent.items():
        (event,) = read(one)
        assert isinstance(event, kind)
        assert isinstance(event, events.MouseEvent)
        assert (event.x, event.y, event.button) == (x, y, button)


def test_what_is_pasted_is_no_key() -> None:
    pasted, typed = read("\x1b[200~one\nq [13;2u\x1b[201~q")
    assert isinstance(pasted, events.Paste)
    assert pasted.text == "one\nq [13;2u"
    assert isinstance(typed, events.Key)
    assert typed.key == "q"


def test_the_focus_comes_and_goes() -> None:
    assert [type(event) for event in read("\x1b[I\x1b[O")] == [
        events.AppFocus,
        events.AppBlur,
    ]
