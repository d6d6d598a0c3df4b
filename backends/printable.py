"""Text out of files is data: made safe to show before it leaves this package."""

from __future__ import annotations

from pathlib import Path

TEXT_CHARS_MAX = 200
PATH_CHARS_MAX = 4096
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def printable(text: str, limit: int = TEXT_CHARS_MAX) -> str:
    """The text with control and unencodable characters replaced, cut at `limit`.

    Escape sequences, line breaks, direction overrides and lone surrogates (file names
    that are not UTF-8) all count as unprintable.
    """
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    if cut.isprintable():
        return cut
    return "".join(char if char.isprintable() else REPLACEMENT for char in cut)


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


def shown_path(path: Path) -> str:
    return printable(str(path.absolute()), PATH_CHARS_MAX)
