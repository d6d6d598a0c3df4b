"""The layouts of a screen by name, and the borders between panes that one moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from textual import events
from textual.geometry import NULL_OFFSET, NULL_SPACING, Region, Size
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.layouts.horizontal import HorizontalLayout
from textual.message import Message
from textual.reactive import reactive
from textual.widget import Widget


class PaneLayout(NamedTuple):
    """One way to lay out a screen, and the terminal that has room for it."""

    id: str
    label: str
    width_min: int = 0
    height_min: int = 0

    @property
    def style_class(self) -> str:
        """The class of a screen that is laid out so."""
        return f"-as-{self.id}"

    def fits(self, size: Size) -> bool:
        return size.width >= self.width_min and size.height >= self.height_min


BALANCED = PaneLayout("balanced", "balanced")
LIST_AND_DETAIL = (
    BALANCED,
    PaneLayout("below", "detail below", width_min=100, height_min=30),
    PaneLayout("list", "list alone"),
)


class Arrangement(msgspec.Struct):
    """The layouts and borders of all screens, as the user left them."""

    layouts: dict[str, str] = {}
    """By screen, the id of its layout."""
    shares: dict[str, float] = {}
    """By screen and row of panes, the part of the row that its first pane has."""
    changed: Callable[[], None] = lambda: None

    def choose(self, screen: str, layout: PaneLayout) -> None:
        self.layouts[screen] = layout.id
        self.changed()

    def share(self, row: str, share: float | None) -> None:
        """Keep the share of a row; None keeps the usual one."""
        if share is None:
            self.shares.pop(row, None)
        else:
            self.shares[row] = share
        self.changed()


def first_width(share: float, whole: int, least: tuple[int, int]) -> int | None:
    """Columns of the first pane; None without room for both at their least."""
    if whole < sum(least):
        return None
    return min(max(round(share * whole), least[0]), whole - least[1])


class SharedRow(HorizontalLayout):
    """Two panes side by side, the first as wide as the user made it."""

    name = "shared row"

    def arrange(
        self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True
    ) -> ArrangeResult:
        row = parent if isinstance(parent, PaneRow) and len(children) == 2 else None
        width = row.width_of_first(size.width) if row else None
        if width is None:
            return super().arrange(parent, children, size, greedy)
        parent.pre_layout(self)
        regions = Region(0, 0, *size).split_vertical(width)
        return [
            WidgetPlacement(region, NULL_OFFSET, NULL_SPACING, child)
            for region, child in zip(regions, children, strict=True)
        ]


class PaneRow(Widget):
    """Two panes; where they stand side by side, the border between them moves.

    One drags it, or a screen calls ``move``; a double click puts it back.
    """

    DEFAULT_CSS = """
    PaneRow {
        layout: horizontal;
        &.-lit { pointer: ew-resize; }
    }
    """

    share: reactive[float | None] = reactive(None, init=False, repaint=False)
    """The part that the first pane has of the width; None for the usual one."""
    lit: reactive[bool] = reactive(False, init=False, toggle_class="-lit")
    """True if the border is shown as one to take hold of."""

    class Moved(Message):
        """The user has moved the border, or put it back."""

        def __init__(self, row: PaneRow) -> None:
            super().__init__()
            self.row = row

    def __init__(
        self,
        *panes: Widget,
        least: tuple[int, int],
        id: str | None = None,  # noqa: A002
    ) -> None:
        super().__init__(*panes, id=id)
        self._least = least
        self._shared = SharedRow()
        self._before: float | None = None
        self._grabbed_at = 0
        self.dragging = False

    @property
    def layout(self) -> Layout:
        usual = super().layout
        return self._shared if isinstance(usual, HorizontalLayout) else usual

    def watch_share(self) -> None:
        self._clear_arrangement_cache()
        self.refresh(layout=True)

    def watch_lit(self, lit: bool) -> None:
        # With :first-child, Textual would style all panes twice as they are mounted.
        for pane, side in zip(self.children, ("-lit-right", "-lit-left"), strict=True):
            pane.set_class(lit, side)

    def width_of_first(self, whole: int) -> int | None:
        if self.share is None:
            return None
        return first_width(self.share, whole, self._least)

    @property
    def border_x(self) -> int | None:
        """The screen's column where the second pane begins, if beside the first."""
        shown = [pane.region for pane in self.displayed_children if pane.region]
        if len(shown) != 2 or shown[0].right != shown[1].x:
            return None
        return shown[1].x

    def move(self, columns: int) -> bool:
        """Move the border by so many columns; False where it cannot."""
        border, before = self.border_x, self.share
        if border is None:
            return False
        self._put(border + columns)
        if self.share == before:
            return False
        self.post_message(self.Moved(self))
        return True

    def _put(self, x: int) -> None:
        whole = self.content_size.width
        width = x - self.content_region.x
        kept = first_width(width / max(whole, 1), whole, self._least)
        if kept is not None:
            self.share = kept / whole

    def _reaches(self, x: int) -> bool:
        return self.border_x is not None and x in (self.border_x - 1, self.border_x)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        border, x = self.border_x, int(event.screen_x)
        if event.button != 1 or border is None or not self._reaches(x):
            return
        event.stop()
        # Textual began to select text with this button.
        self.screen.clear_selection()
        self._before, self._grabbed_at = self.share, x - border
        self.dragging = self.lit = True
        self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.dragging:
            event.stop()
            self._put(int(event.screen_x) - self._grabbed_at)
        else:
            self.lit = self._reaches(int(event.screen_x))

    def on_leave(self) -> None:
        self.lit = self.dragging

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self.dragging:
            event.stop()
            self.drop()

    def on_mouse_release(self) -> None:
        if self.dragging:
            self.drop(cancel=True)

    def drop(self, *, cancel: bool = False) -> None:
        """End the drag; ``cancel`` puts the border where it was."""
        self.dragging = self.lit = False
        self.release_mouse()
        if cancel:
            self.share = self._before
        elif self.share != self._before:
            self.post_message(self.Moved(self))

    def on_click(self, event: events.Click) -> None:
        if event.chain == 2 and self._reaches(int(event.screen_x)):
            event.stop()
            self.put_back()

    def put_back(self) -> None:
        """Give the panes their usual widths."""
        if self.share is not None:
            self.share = None
            self.post_message(self.Moved(self))
