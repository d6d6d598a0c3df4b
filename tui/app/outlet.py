"""The way of drawn text to the terminal; it drives no terminal."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from textual.filter import LineFilter

from tui.widgets.safe_text import safe_line

if TYPE_CHECKING:
    from textual.color import Color


class SafeLines(LineFilter):
    """Makes every line safe, whichever widget drew it: labels, titles, fields, toasts.

    Text is better made safe where it is laid out, so that nothing of a sequence takes
    room; what was overlooked there, or comes from an entity in Markdown, ends here.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same segments, each as wide as before."""
        return [_safe(segment) for segment in segments]


def _safe(segment: Segment) -> Segment:
    text, style, control = segment
    clean = safe_line(text)
    if clean is text or control:
        return segment
    return Segment(set_cell_size(clean, segment.cell_length), style)


_SIGNS = {
    **dict(zip(" ▁▂▃▄▅▆▇█", " _.-=+*%#", strict=True)),
    **dict(zip("░▒▓╱▕▏▌▐", ".:%/||||", strict=True)),
    **dict(zip("─━═│┃║┊╎╵╷", "--=|||::||", strict=True)),
    **dict(zip("╭╮╰╯┌┐└┘┬┴├┤┼", "+++++++++++++", strict=True)),
    **dict(zip("●•○◌◐◑◔◕", "@*o.ccCC", strict=True)),
    **dict(zip("✓✗▸▼▲◂→←↑↓⏎›‹…", "vx>v^<><^v<><.", strict=True)),
    **dict(zip("·×–—≠±‖❯▶█", ".x--#+|>>#", strict=True)),
    "₂": "2",
}


class AsciiLines(LineFilter):
    """Puts an ASCII sign of the same width in the place of every other sign."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same segments, each as wide as before."""
        return [
            segment if segment.text.isascii() or segment.control else _plain(segment)
            for segment in segments
        ]


def _plain(segment: Segment) -> Segment:
    text = "".join(map(ascii_sign, segment.text))
    return Segment(text, segment.style, segment.control)


@lru_cache(maxsize=4096)
def ascii_sign(sign: str) -> str:
    """The ASCII text for a sign, as wide as it is; letters lose their accents."""
    if sign.isascii():
        return sign
    plain = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
    width = cell_len(sign)
    found = _SIGNS.get(sign) or plain or "?"
    return found[:width].ljust(width, "?") if width else ""
