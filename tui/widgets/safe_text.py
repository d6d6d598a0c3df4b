"""Foreign text is data: what a machine, a file or a model says is shown, not obeyed.

``safe`` keeps the lines of a text, ``safe_line`` makes one line of it, and
``SafeStream`` takes it in pieces. All sinks use them: what is drawn, copied, printed.
"""

from __future__ import annotations

import re

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
TAB_CELLS = 8

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, moves of the cursor
    # OSC, DCS and their like: titles, clipboards. A line's end ends them too, so that
    # an unfinished one hides no more than its line.
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n\r]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"  # two-character escapes
)
_UNFINISHED = re.compile(
    r"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\x9c\n\r]*\x1b?|[ -/]*)"
    r"|\x9b[0-?]*[ -/]*|[\x90\x98\x9d-\x9f][^\x07\x1b\x9c\n\r]*\x1b?|\r)\Z"
)
UNFINISHED_CHARS_MAX = 4096
"""A longer sequence without an end is none that a terminal would obey."""
_LINE_END = re.compile("\r\n|[\r\x0b\x0c\x85\u2028\u2029]")
# Control characters; invisible ones, among them those that turn the direction of text.
# Joiners and variation selectors stay: scripts and pictograms are written with them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
# What was not valid UTF-8 reaches us so, and cannot be encoded again.
_SURROGATE = re.compile("[\ud800-\udfff]")
_SUSPECT = re.compile(f"{_INVISIBLE.pattern}|{_SURROGATE.pattern}")
_NOT_ONE_LINE = re.compile(f"[\t\n]|{_SUSPECT.pattern}")


def safe(text: str) -> str:
    """Text without escape sequences, control, direction and invisible characters.

    Newlines and tabs stay, other line ends become newlines; halves of characters (file
    names that are not UTF-8) are replaced.
    """
    if _SUSPECT.search(text) is None:
        return text
    # Line ends first: what stands between two is not to make one of them.
    text = _SEQUENCE.sub("", _LINE_END.sub("\n", text))
    return _SURROGATE.sub(REPLACEMENT, _INVISIBLE.sub("", text))


def safe_line(text: str) -> str:
    """The same in one line: newlines become blanks, tabs go to their columns."""
    if _NOT_ONE_LINE.search(text) is None:
        return text
    return safe(text).replace("\n", " ").expandtabs(TAB_CELLS)


class SafeStream:
    """Makes a text safe that comes in pieces, cut anywhere, also inside a sequence."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, piece: str) -> str:
        """Return the new part of the text that is safe to show.

        The begin of a sequence is held back; what never ends is never shown.
        """
        text = self._held + piece
        cut = _UNFINISHED.search(text)
        at = cut.start() if cut is not None else len(text)
        if len(text) - at > UNFINISHED_CHARS_MAX:
            at = len(text)
        self._held = text[at:]
        return safe(text[:at])
