"""Text out of files is data: made safe to show before it leaves this package."""

from __future__ import annotations

from collections.abc import Iterable
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


PRIVATE_FLAGS = frozenset(
    {"-p", "--prompt", "-sys", "--system-prompt", "--api-key", "--hf-token"}
)
"""The value after such an argument of llama-server is nobody's business."""
HIDDEN = "<hidden>"


def without_secrets(argv: Iterable[str]) -> list[str]:
    """A command line to show: keys and prompts are left out."""
    shown: list[str] = []
    for argument in argv:
        flag, is_joined, _ = argument.partition("=")
        if shown and shown[-1] in PRIVATE_FLAGS and not argument.isdecimal():
            # A number is a port: rpc-server has the same short flag for it.
            shown.append(HIDDEN)
        elif is_joined and flag in PRIVATE_FLAGS:
            shown.append(f"{flag}={HIDDEN}")
        else:
            shown.append(argument)
    return shown
