"""The row under a log: whether it follows, how much there is, where it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual.reactive import reactive

from backends.units import format_count
from tui.model.log_levels import LogLevel
from tui.widgets.keys import with_keys
from tui.widgets.strips import Part, StripWidget, parts_width, spread

if TYPE_CHECKING:
    from textual.strip import Strip

    from tui.screens.logs.view import LogStanding

TELLING_CELLS = 16
"""A path cut shorter than this says nothing."""
LEVEL_WORDS = {
    LogLevel.DEBUG: "",
    LogLevel.INFO: "debug hidden",
    LogLevel.WARNING: "warnings and errors",
    LogLevel.ERROR: "errors only",
}


class LogStatus(StripWidget):
    """The state of the log above, on one row."""

    DEFAULT_CSS = """
    LogStatus { height: 1; padding: 0 1; background: $surface; }
    """

    standing: reactive[LogStanding | None] = reactive(None)
    """Counts of the log shown; None without a log."""
    level: reactive[LogLevel] = reactive(LogLevel.DEBUG)
    """The least serious lines shown."""
    path: reactive[str] = reactive("")
    """File the log lies in."""

    def draw(self, width: int, height: int) -> list[Strip]:
        if self.standing is None:
            return []
        left = [
            self._following(self.standing),
            *self._level(),
            self._counts(self.standing),
        ]
        room = width - parts_width(left) - 2
        return [
            spread(left, [(shorten_path(self.path, room), self.palette.dim)], width)
        ]

    def watch_standing(self) -> None:
        self.redraw()

    def watch_level(self) -> None:
        self.redraw()

    def watch_path(self) -> None:
        self.redraw()

    def _following(self, standing: LogStanding) -> Part:
        """The sign that new lines scroll into view, or that the view is paused."""
        if standing.following:
            return "● following  ", self.palette.ok
        follows = with_keys(self.app, "{log.follow:short} follows")
        if not standing.unseen:
            return f"◌ paused, {follows}  ", self.palette.warn
        unseen = format_count(standing.unseen, "new line")
        return f"↓ {unseen}, {follows}  ", self.palette.warn

    def _level(self) -> list[Part]:
        words = LEVEL_WORDS[self.level]
        return [(f"{words}  ", self.palette.warn)] if words else []

    def _counts(self, standing: LogStanding) -> Part:
        counted = format_count(standing.lines, "line")
        if standing.matching != standing.lines:
            shown = format_count(standing.matching, "line").rpartition(" ")[0]
            counted = f"{shown} of {counted}"
        return counted, self.palette.dim


def shorten_path(path: str, room: int) -> str:
    """A path in so many cells, cut on the left; nothing where that says nothing."""
    if cell_len(path) <= room:
        return path
    if room < TELLING_CELLS:
        return ""
    while cell_len(path) >= room:
        path = path[1:]
    return "…" + path
