"""The layouts of a screen by name, and the borders between panes that one moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from textual import events
from textual.geometry import NULL_OFFSET, NULL_SPACING, Region, Size
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.layouts.horizontal import HorizontalLayout
from textual.layouts.vertical import VerticalLayout
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
    """By screen and row of panes, the part of the row that its first pane has.

    For panes one above the other the name ends in ``.rows``.
    """
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


def first_cells(share: float, whole: int, least: tuple[int, int]) -> int | None:
    """Columns or rows of the first pane; None without room for both at their least."""
    if whole < sum(least):
        return None
    return min(max(round(share * whole), least[0]), whole - least[1])


class _Shared(Layout):
    """Two panes, the first as large as the user made it."""

    def arrange(
        self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True
    ) -> ArrangeResult:
        row = parent if isinstance(parent, PaneRow) and len(children) == 2 else None
        first = row.cells_of_first(size) if row else None
        if row is None or first is None:
            return super().arrange(parent, children, size, greedy)  # type: ignore[safe-super]
        parent.pre_layout(self)
        whole = Region(0, 0, *size)
        cut = whole.split_horizontal if row.stacked else whole.split_vertical
        regions = cut(first)
        return [
            WidgetPlacement(region, NULL_OFFSET, NULL_SPACING, child)
            for region, child in zip(regions, children, strict=True)
        ]


class SharedRow(_Shared, HorizontalLayout):
    name = "shared row"


class SharedColumn(_Shared, VerticalLayout):
    name = "shared column"


LEAST_ROWS = (5, 5)
_BESIDE, _ABOVE = ("-lit-right", "-lit-left"), ("-lit-bottom", "-lit-top")


class PaneRow(Widget):
    """Two panes, side by side or one above the other; the border between them moves.

    One drags it, or a screen calls ``move``; a double click puts it back.
    """

    DEFAULT_CSS = """
    PaneRow {
        layout: horizontal;
        &.-lit-right { pointer: ew-resize; }
        &.-lit-bottom { pointer: ns-resize; }
    }
    """

    shares: reactive[tuple[float | None, float | None]] = reactive(
        (None, None), init=False, repaint=False
    )
    """The part that the first pane has of the width, and of the height.

    None stands for the usual one.
    """
    least_rows: reactive[tuple[int, int] | None] = reactive(
        LEAST_ROWS, init=False, repaint=False
    )
    """None where the border between upper and lower panes stays where it is."""
    lit: reactive[bool] = reactive(False, init=False)
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
        self._row, self._column = SharedRow(), SharedColumn()
        self._before: float | None = None
        self._grabbed_at = 0
        self.dragging = False

    @property
    def layout(self) -> Layout:
        usual = super().layout
        if isinstance(usual, HorizontalLayout):
            return self._row
        return self._column if isinstance(usual, VerticalLayout) else usual

    @property
    def stacked(self) -> bool:
        """True if one pane is above the other."""
        return self.layout is self._column

    @property
    def share(self) -> float | None:
        """The part that the first pane has, the way that they stand now."""
        return self.shares[self.stacked]

    @share.setter
    def share(self, share: float | None) -> None:
        width, height = self.shares
        self.shares = (width, share) if self.stacked else (share, height)

    def watch_shares(self) -> None:
        self._clear_arrangement_cache()
        self.refresh(layout=True)

    def watch_least_rows(self) -> None:
        if self.shares[1] is not None:
            self.watch_shares()

    def watch_lit(self, lit: bool) -> None:
        # With :first-child, Textual would style all panes twice as they are mounted.
        sides = _ABOVE if self.stacked else _BESIDE
        for pane, side in zip((*self.children, self), (*sides, sides[0]), strict=True):
            pane.remove_class(*_ABOVE, *_BESIDE)
            pane.set_class(lit, side)

    def cells_of_first(self, whole: Size) -> int | None:
        """Columns or rows of the first pane; None where it has the usual ones."""
        least = self._least_now
        if self.share is None or least is None:
            return None
        return first_cells(self.share, whole[self.stacked], least)

    @property
    def _least_now(self) -> tuple[int, int] | None:
        return self.least_rows if self.stacked else self._least

    @property
    def border_at(self) -> int | None:
        """The screen's column, or its row, where the second pane begins.

        None where no border between both can be moved.
        """
        shown = [pane.region for pane in self.displayed_children if pane.region]
        if len(shown) != 2 or self._least_now is None:
            return None
        first, second = shown
        if self.stacked:
            return second.y if first.bottom == second.y else None
        return second.x if first.right == second.x else None

    def _along(self, event: events.MouseEvent) -> int:
        return int(event.screen_y if self.stacked else event.screen_x)

    def move(self, cells: int) -> bool:
        """Move the border by so many columns or rows; False where it cannot."""
        border, before = self.border_at, self.share
        if border is None:
            return False
        # Of several keys at once, the later ones come before the panes are laid out.
        first = self.cells_of_first(self.content_size)
        self._put((border - self._begin if first is None else first) + cells)
        if self.share == before:
            return False
        self.post_message(self.Moved(self))
        return True

    @property
    def _begin(self) -> int:
        return self.content_region.offset[self.stacked]

    def _put(self, first: int) -> None:
        whole, least = self.content_size[self.stacked], self._least_now
        kept = least and first_cells(first / max(whole, 1), whole, least)
        if kept is not None:
            self.share = kept / whole

    def _reaches(self, at: int) -> bool:
        border = self.border_at
        return border is not None and at in (border - 1, border)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        border, at = self.border_at, self._along(event)
        if event.button != 1 or border is None or not self._reaches(at):
            return
        event.stop()
        # Textual began to select text with this button.
        self.screen.clear_selection()
        self._before, self._grabbed_at = self.share, at - border
        self.dragging = self.lit = True
        self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.dragging:
            event.stop()
            self._put(self._along(event) - self._grabbed_at - self._begin)
        else:
            self.lit = self._reaches(self._along(event))

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
        if event.chain == 2 and self._reaches(self._along(event)):
            event.stop()
            self.put_back()

    def put_back(self) -> None:
        """Give the panes their usual widths, or heights."""
        if self.share is not None:
            self.share = None
            self.post_message(self.Moved(self))
