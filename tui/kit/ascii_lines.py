"""Everything drawn with ASCII signs alone, for terminals and fonts without others."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.segment import Segment
from textual.filter import LineFilter

if TYPE_CHECKING:
    from textual.color import Color

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
    """What stands for a sign, as wide as it is; letters lose their accents."""
    if sign.isascii():
        return sign
    plain = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
    width = cell_len(sign)
    found = _SIGNS.get(sign) or plain or "?"
    return found[:width].ljust(width, "?") if width else ""
