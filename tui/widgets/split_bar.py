"""The split bar: layers over devices, with boundaries one drags or moves by key."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from textual.actions import SkipAction
from textual.message import Message
from textual.reactive import reactive

from backends.split.layout import History, move_boundary, reorder
from tui.actions import bindings
from tui.widgets.bar_geometry import BarGeometry
from tui.widgets.bar_picture import BarPicture
from tui.widgets.strips import StripWidget

if TYPE_CHECKING:
    from textual import events
    from textual.binding import BindingType
    from textual.strip import Strip

    from backends.state import Split
    from tui.widgets.draft import Draft


class SplitBar(StripWidget, can_focus=True):
    """One bar of layers per device, its boundaries draggable.

    Mouse and keys do the same: a move shows at once, and counts (for undo, and for
    whoever listens to ``Changed``) when the handle is let go.
    """

    HELP: ClassVar[str | None] = """\
## Split

Which device holds which layers. The **output** (norm and head) counts as one layer
more. Drag a boundary `┃`, or use the keys: they move the *picked* boundary, marked `▼`.

Type a number and press Enter to give the device left of the boundary that many layers.
While a number can be typed here, F1, F5 and F6 change screens.

`✗` and hatching mean: more than the device has. Nothing runs until you launch.
"""
    BINDINGS: ClassVar[list[BindingType]] = bindings("split")
    DEFAULT_CSS = """
    SplitBar {
        height: 4;
        width: 1fr;
        pointer: ew-resize;
    }
    """
    TAKES_DIGITS: ClassVar[bool] = True

    draft: reactive[Draft | None] = reactive(None, init=False)
    """What is shown; None before a model is chosen."""
    picked: reactive[int] = reactive(0, init=False)
    """The boundary the keys move."""
    typed: reactive[str] = reactive("", init=False)
    """Digits of a layer count not applied yet."""

    class Changed(Message):
        """The user changed the split; not ``final`` while a drag goes on."""

        def __init__(self, bar: SplitBar, split: Split, *, final: bool) -> None:
            """Carry the split as it is now."""
            super().__init__()
            self.bar = bar
            self.split = split
            self.final = final

        @property
        def control(self) -> SplitBar:
            """The bar that was changed."""
            return self.bar

        def can_replace(self, message: Message) -> bool:
            """A newer move of the same bar makes an unfinished one worthless."""
            return (
                not self.final
                and isinstance(message, SplitBar.Changed)
                and message.bar is self.bar
            )

    class NothingToUndo(Message):
        """The user wants a change back that the bar knows nothing of."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        """Make an empty bar."""
        super().__init__(id=id)
        self.dragging = False
        self._start: Split | None = None
        self._grab_x = 0
        self._history: History | None = None

    # --- what others use -----------------------------------------------------

    def show_draft(self, draft: Draft | None) -> None:
        """Show a draft from elsewhere: the history begins anew with other devices.

        News about the devices alone leave a drag and a number being typed as they are.
        """
        if self._only_news(draft):
            return
        self._end_drag()
        self.typed = ""
        self.draft = draft
        if draft is None:
            self._history = None
        elif self._history and _same_shape(self._history.present, draft.split):
            self._history = self._history.push(draft.split)
        else:
            self._history = History(present=draft.split)
            self.picked = _first_shared(draft.split)

    @property
    def geometry(self) -> BarGeometry:
        """Where everything lies at the present width."""
        counts = self.draft.counts if self.draft else (1,)
        return BarGeometry(self.content_size.width, counts)

    @property
    def handle_x(self) -> int:
        """Column of the picked boundary's handle."""
        return self.geometry.handle_x(self.picked)

    @property
    def n_boundaries(self) -> int:
        """Boundaries there are to drag."""
        return len(self.draft.split.shares) - 1 if self.draft else 0

    @property
    def can_undo(self) -> bool:
        """Whether there is a change to take back."""
        return self._history is not None and self._history.can_undo

    # --- drawing ---------------------------------------------------------------

    def draw(self, width: int, height: int) -> list[Strip]:
        """Names, bar, ranges; the outer lines give way where there are few rows."""
        if self.draft is None or width < 1:
            return []
        picture = BarPicture(
            draft=self.draft,
            geometry=self.geometry,
            palette=self.palette,
            picked=self.picked,
            active=self.has_focus or self.dragging,
            typed=self.typed,
        )
        return picture.lines(height)

    # --- watchers ----------------------------------------------------------------

    def validate_picked(self, picked: int) -> int:
        """Keep the pick on a boundary there is."""
        return min(max(picked, 0), max(self.n_boundaries - 1, 0))

    def watch_draft(self) -> None:
        """Another draft may have fewer boundaries."""
        self.picked = self.validate_picked(self.picked)
        self.redraw()

    def watch_picked(self) -> None:
        """The handle's mark moves."""
        self.typed = ""
        self.redraw()

    def watch_typed(self) -> None:
        """The digits show in place of the ranges."""
        self.redraw()

    def watch_has_focus(self, has_focus: bool) -> None:
        """The picked handle is stronger while keys move it."""
        super().watch_has_focus(has_focus)
        self.redraw()

    # --- actions -------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        """Move the picked boundary by some layers."""
        if self.draft and self.n_boundaries and not self.dragging:
            self._commit(self._moved_to(self.geometry.positions[self.picked] + by))

    def action_move_to_end(self, direction: int) -> None:
        """Move the picked boundary as far as its neighbours let it."""
        self.action_move(direction * (self.geometry.total + 1))

    def action_pick(self, by: int) -> None:
        """Pick another boundary; after the last comes the first."""
        if self.n_boundaries and not self.dragging:
            self.picked = (self.picked + by) % self.n_boundaries

    def action_reorder(self, by: int) -> None:
        """Exchange the device left of the boundary with a neighbour."""
        if self.draft is None or self.dragging:
            return
        head = self.draft.head
        split = reorder(self.draft.split, self.picked, by, head=head)
        if split == self.draft.split:
            self.app.bell()
            return
        self._commit(split)
        self.picked += by

    def action_undo(self) -> None:
        """Take the last change back; where there is none, others may have one."""
        if self.can_undo:
            self._step(self._history.undo() if self._history else None)
        else:
            self.post_message(self.NothingToUndo())

    def action_redo(self) -> None:
        """Make the undone change again."""
        self._step(self._history.redo() if self._history else None)

    def action_apply_typed(self) -> None:
        """Give the device left of the boundary the typed number of layers."""
        if not self.typed or not self.draft:
            raise SkipAction
        wanted = int(self.typed)
        before = self.geometry.positions[self.picked] - self._left_count
        self.typed = ""
        self._commit(self._moved_to(before + wanted))

    def action_erase_typed(self) -> None:
        """Erase the last digit."""
        if not self.typed:
            raise SkipAction
        self.typed = self.typed[:-1]

    def action_cancel(self) -> None:
        """Cancel what is under way; with nothing under way the key goes on."""
        if self.dragging:
            self._restore()
        elif self.typed:
            self.typed = ""
        else:
            raise SkipAction

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Without a boundary there is nothing to move."""
        if action in {"move", "move_to_end", "pick", "reorder"}:
            return self.n_boundaries > 0
        return True

    # --- events ----------------------------------------------------------------------

    def on_key(self, event: events.Key) -> None:
        """Digits begin or continue a layer count."""
        if event.character is None or not event.character.isascii():
            return
        if event.character.isdigit() and self.n_boundaries and not self.dragging:
            event.stop()
            event.prevent_default()
            if len(self.typed) < 4:
                self.typed = (self.typed + event.character).lstrip("0") or "0"

    def on_mouse_down(self, event: events.MouseDown) -> None:
        """Grab a handle; elsewhere, pick the boundary after the device pressed."""
        if event.button != 1 or self.draft is None or not self.n_boundaries:
            return
        event.stop()
        x = event.get_content_offset_capture(self).x
        near = self.geometry.boundary_near(x)
        if near is None:
            self.picked = min(self.geometry.segment_at(x), self.n_boundaries - 1)
            return
        self.picked = near
        self._start, self._grab_x = self.draft.split, x
        self.dragging = True
        self.capture_mouse()
        self.redraw()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Follow the pointer, also outside the bar: the mouse is captured."""
        if not self.dragging or self._start is None or self.draft is None:
            return
        event.stop()
        x = event.get_content_offset_capture(self).x
        if x == self._grab_x:
            split = self._start
        else:
            split = self._moved_to(self.geometry.position_at(self.picked, x))
        if split != self.draft.split:
            self._show(split)
            self.post_message(self.Changed(self, split, final=False))

    def on_mouse_up(self, event: events.MouseUp) -> None:
        """Let go: the split counts now."""
        if not self.dragging or self.draft is None:
            return
        event.stop()
        moved = self.draft.split != self._start
        self._end_drag()
        if moved:
            self._commit(self.draft.split)

    def on_mouse_release(self, event: events.MouseRelease) -> None:
        """The capture was taken away in mid-drag (a dialog, another screen)."""
        if self.dragging:
            self._restore()

    # --- inside ---------------------------------------------------------------

    @property
    def _left_count(self) -> int:
        return self.draft.split.shares[self.picked].layers if self.draft else 0

    def _only_news(self, draft: Draft | None) -> bool:
        """Take over all but the split, if that is the one the user started from."""
        if draft is None or self.draft is None:
            return False
        if draft.split != (self._start or self.draft.split):
            return False
        self.draft = draft.with_split(self.draft.split)
        return True

    def _moved_to(self, position: int) -> Split:
        assert self.draft is not None
        return move_boundary(self.draft.split, self.picked, position)

    def _show(self, split: Split) -> None:
        if self.draft is not None:
            self.draft = self.draft.with_split(split)

    def _commit(self, split: Split) -> None:
        """Show a split, make it undoable, and say so."""
        if self._history is not None:
            self._history = self._history.push(split)
        self._show(split)
        self.post_message(self.Changed(self, split, final=True))

    def _step(self, history: History | None) -> None:
        if history is None or history == self._history or self.dragging:
            self.app.bell()
            return
        self._history = history
        self._show(history.present)
        self.post_message(self.Changed(self, history.present, final=True))

    def _restore(self) -> None:
        """End the drag where it began."""
        start = self._start
        self._end_drag()
        if start is not None and self.draft is not None:
            self._show(start)
            self.post_message(self.Changed(self, start, final=True))

    def _end_drag(self) -> None:
        if self.dragging:
            self.dragging = False
            self.release_mouse()
        self._start = None
        self.redraw()


def _first_shared(split: Split) -> int:
    """The first boundary with layers on both sides: the one most likely meant."""
    pairs = enumerate(pairwise(split.shares))
    return next((index for index, (a, b) in pairs if a.layers and b.layers), 0)


def _same_shape(one: Split, other: Split) -> bool:
    """Whether an undo from one to the other makes sense."""
    return one.n_layer == other.n_layer and {s.device for s in one.shares} == {
        s.device for s in other.shares
    }
