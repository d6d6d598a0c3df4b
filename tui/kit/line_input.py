"""A text field of one row, without a frame."""

from __future__ import annotations

from typing import ClassVar

from textual.widgets import Input


class LineInput(Input):
    """An input that fits where a row is all there is."""

    takes_digits: ClassVar[bool] = True
    """The key bar shows F1 for 1 while this has the focus."""

    DEFAULT_CSS = """
    LineInput {
        width: 1fr;
        height: 1;
        border: none;
        padding: 0 1;
        background: $panel;
        &:focus { border: none; background-tint: $foreground 0%; }
    }
    """
