"""A menu of what can be done with the selected thing, made of the keys there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from textual.binding import Binding
from textual.dom import DOMNode
from textual.geometry import Offset, Region
from textual.screen import Screen
from textual.strip import Strip

from tui.actions import ACTING, IN_MENUS, action_of, bindings
from tui.app.frame import ConsoleScreen
from tui.app.messages import Copyable, offered
from tui.dialogs.pick import PickDialog
from tui.model.finding import Entry, found
from tui.widgets.keys import key_of
from tui.widgets.row_list import RowList
from tui.widgets.strips import clip, line, retitle

KEY_CELLS = 6
NAME_CELLS = 15
WIDTH = 96
# Two borders, the field, and the row under it.
FRAME_ROWS = 4


@dataclass(slots=True, eq=False)
class MenuEntry(Entry):
    refusal: str = ""
    """Why it would do nothing now; empty if it can be done."""


def menu_entries(
    screen: Screen[Any], do: Callable[[str, DOMNode], object]
) -> list[MenuEntry]:
    """List what the focused widget, and then its screen, can do with the selection.

    ``do`` runs an action for the node that binds it.
    """
    refusals = screen.refusals if isinstance(screen, ConsoleScreen) else {}
    entries: dict[str, MenuEntry] = {}
    for node, binding in _bound(screen):
        id_ = binding.id or ""
        if id_ in entries or not _belongs(id_, screen):
            continue
        refusal = refusals.get(id_, "")
        if getattr(screen.app, "readonly", False) and id_ in ACTING:
            refusal = getattr(screen.app, "refusal", "")
        action = action_of(id_)
        name, detail = action.label, action.tooltip
        if id_ == "app.copy":
            if (copied := offered(screen, "copyable", Copyable)) is None:
                continue
            name, detail = "copy", f"Copy {copied.what}"
        key = key_of(screen.app, id_)
        entries[id_] = MenuEntry(
            action.area,
            name,
            partial(do, binding.action, node),
            detail=detail,
            key=key,
            refusal=refusal,
        )
    possible = [one for one in entries.values() if not one.refusal]
    return possible + [one for one in entries.values() if one.refusal]


def _bound(screen: Screen[Any]) -> Iterator[tuple[DOMNode, Binding]]:
    # Also under a key that something inside takes, as a table takes Enter.
    for node, bound in screen._modal_binding_chain:
        for _, binding in bound:
            if screen.app._check_action_state(binding.action, node):
                yield node, binding


def _belongs(id_: str, screen: Screen[Any]) -> bool:
    if id_ not in IN_MENUS:
        return False
    pane = next((n.id for n in _around(screen) if n.has_class("pane")), "")
    about_plan = pane in ("split", "live", "")
    return about_plan or action_of(id_).area not in ("cluster", "live")


def _around(screen: Screen[Any]) -> Iterator[DOMNode]:
    yield from (screen.focused or screen).ancestors_with_self


def selected_subject(screen: Screen[Any]) -> str:
    """Name what is selected where the focus is; empty if nothing is."""
    told = (getattr(node, "subject", "") for node in _around(screen))
    return next((str(one) for one in told if one), "")


def _title(screen: Screen[Any]) -> str:
    titles = (getattr(node, "border_title", "") for node in _around(screen))
    return selected_subject(screen) or next(filter(None, titles), "Menu")


def _subject_region(screen: Screen[Any]) -> Region:
    for node in _around(screen):
        if region := getattr(node, "subject_region", None):
            return Region(*region)
    return screen.focused.region if screen.focused else Region()


class MenuRows(RowList):
    MOST = 14

    def row(self, row: MenuEntry, here: bool, width: int) -> Strip:
        palette = self.palette
        able = not row.refusal
        name = palette.dim if not able else palette.strong if here else palette.text
        return line(
            [
                ("▸ " if here else "  ", palette.key),
                (clip(row.key, KEY_CELLS), palette.key if able else palette.dim),
                (clip(row.name, NAME_CELLS), name),
                (row.detail, palette.dim) if able else (row.refusal, palette.warn),
            ],
            width,
        )

    def action_choose(self) -> None:
        if self.chosen is not None and self.chosen.refusal:
            self.app.bell()
        else:
            super().action_choose()


class MenuDialog(PickDialog[MenuEntry | None]):
    """Dismisses with what is to be done."""

    HELP = """\
## Menu

What can be done with the selected thing, each with the key that does it without this
menu. Type a part of a name to find it. What cannot be done now says why, and is last.
"""
    BINDINGS = bindings("finder")
    TITLE = "Menu"
    PLACEHOLDER = "part of a name"
    HINTS = (("finder.choose", "does it"), ("finder.cancel", "closes"))
    DEFAULT_CSS = "MenuDialog RowList { margin: 0; }"

    def __init__(self, about: Screen[Any], entries: Sequence[MenuEntry]) -> None:
        super().__init__(MenuRows())
        self._entries = entries
        self._title = _title(about)
        self._near = _subject_region(about)

    def on_mount(self) -> None:
        super().on_mount()
        box = self.query_one(".dialog")
        retitle(box, self._title)
        rows = min(len(self._entries), MenuRows.MOST) + FRAME_ROWS
        box.styles.width = width = min(WIDTH, self.app.size.width)
        box.styles.offset = place_of(self._near, (width, rows), self.app.size)

    def search(self) -> None:
        self.rows.rows = tuple(found(self.input.value, self._entries))


def place_of(near: Region, size: tuple[int, int], room: tuple[int, int]) -> Offset:
    """Place a box below what it is about, above it, or as near as it fits."""
    width, height = size
    x = min(near.x + 2, room[0] - width)
    below = near.bottom
    y = below if below + height <= room[1] else near.y - height
    if y < 0:
        y = min(near.y + 1, room[1] - height)
    return Offset(max(x, 0), max(y, 0))
