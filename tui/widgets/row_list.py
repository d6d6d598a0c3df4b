"""Rows with a cursor: a list that scrolls with it, and the answers to a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from textual import events
from textual.geometry import Offset
from textual.message import Message
from textual.strip import Strip

from tui.actions import bindings
from tui.widgets.strips import Drawn, StripWidget, clip, line

WHEEL_ROWS = 3
LABEL_WIDTH = 24


class RowList(StripWidget):
    """Shows a window of rows around the selected one; the wheel and a click select."""

    MOST = 0
    """Rows shown at most, in a list as high as its rows; 0: the height is given."""
    LEAST = 0
    """The lowest index that can be selected; -1 allows none."""
    CLICKS = 1
    """Clicks that pick a row; the first of two selects it."""

    DEFAULT_CSS = "RowList { height: auto; }"

    rows: Drawn[tuple[Any, ...]] = Drawn((), layout=True)
    selected: Drawn[int] = Drawn(0)
    remark: Drawn[str] = Drawn("")

    @dataclass
    class Picked(Message):
        """The user clicked a row or pressed Enter on it."""

        row: Any

    def row(self, row: Any, here: bool, width: int) -> Strip:
        """Draw a row; ``here`` is True under the cursor."""
        raise NotImplementedError

    @property
    def chosen(self) -> Any:
        at = self.selected
        return self.rows[at] if 0 <= at < len(self.rows) else None

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        return min(len(self.rows), self.MOST)

    def draw(self, width: int, height: int) -> list[Strip]:
        head = [line([(self.remark, self.palette.warn)], width)] if self.remark else []
        top = self._top(height - len(head))
        shown = self.rows[top : top + height - len(head)]
        return head + [
            self.row(row, top + y == self.selected, width)
            for y, row in enumerate(shown)
        ]

    def _top(self, rows: int) -> int:
        last = max(len(self.rows) - rows, 0)
        return min(max(self.selected - rows // 2, 0), last)

    def move(self, by: int) -> None:
        self.selected += by

    def action_select(self, by: int) -> None:
        self.move(by)

    def action_choose(self) -> None:
        if self.chosen is not None:
            self.post_message(self.Picked(self.chosen))

    def validate_selected(self, selected: int) -> int:
        return min(max(selected, self.LEAST), max(len(self.rows) - 1, self.LEAST))

    def watch_rows(self) -> None:
        self.selected = self.LEAST

    def on_mouse_scroll_down(self) -> None:
        self.move(WHEEL_ROWS)

    def on_mouse_scroll_up(self) -> None:
        self.move(-WHEEL_ROWS)

    def press_spots(self) -> list[Offset]:
        head, height = bool(self.remark), self.content_size.height
        n_shown = min(len(self.rows) - self._top(height - head), height - head)
        return [Offset(0, y + head) for y in range(n_shown)]

    def on_click(self, event: events.Click) -> None:
        head = bool(self.remark)
        y = event.get_content_offset_capture(self).y - head
        index = self._top(self.content_size.height - head) + y
        if y >= 0 and index < len(self.rows):
            self.selected = index
            if event.chain >= self.CLICKS:
                self.action_choose()


class Choice(NamedTuple):
    id: str
    label: str
    key: str
    """The letter that picks it at once; empty for none."""
    detail: str = ""


class ChoiceList(RowList, can_focus=True):
    """Answers to a question, the first meant by default; letters pick one, too."""

    BINDINGS = bindings("choice")
    MOST = 100

    def __init__(self, choices: Sequence[Choice]) -> None:
        super().__init__()
        self.set_reactive(RowList.rows, tuple(choices))

    def validate_selected(self, selected: int) -> int:
        return selected % len(self.rows)

    def on_key(self, event: events.Key) -> None:
        for choice in self.rows:
            if choice.key and event.character == choice.key:
                event.stop()
                self.post_message(self.Picked(choice))

    def row(self, row: Choice, here: bool, width: int) -> Strip:
        palette = self.palette
        return line(
            [
                ("▸ " if here else "  ", palette.key),
                (clip(row.key, 2), palette.key),
                (
                    clip(row.label, LABEL_WIDTH),
                    palette.strong if here else palette.text,
                ),
                (row.detail, palette.dim),
            ],
            width,
        )
