"""The split bar: layers over devices, with boundaries one drags or moves by key."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from textual.actions import SkipAction
from textual.message import Message
from textual.reactive import reactive

from backends.split.layout import counts, devices
from tui.actions.keymap import bindings
from tui.app.messages import Notice
from tui.model.drag import Drag
from tui.model.verdict import runs_now
from tui.screens.cluster.split.geometry import BarGeometry
from tui.screens.cluster.split.picture import BarPicture
from tui.widgets.keys import with_keys
from tui.widgets.number_strip import NumberStrip

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual import events
    from textual.binding import BindingType
    from textual.strip import Strip

    from backends.state import Split
    from tui.model.desk import Desk
    from tui.model.draft import Draft


class SplitBar(NumberStrip, can_focus=True):
    """One bar of layers per device, its boundaries draggable.

    Mouse and keys do the same: they ask the desk, which owns the split and its
    history, and the bar shows what lies there then. Its own is only a drag that is
    not let go yet.
    """

    HELP: ClassVar[str | None] = """\
## Split

Which device holds which layers. The **output** (norm and head) counts as one layer
more. Drag a boundary `┃`, or use the keys: they move the *picked* boundary, marked `▼`.

Press **{split.set:or}**, type a number and press it again to give the device left of
the boundary that many layers; a number alone changes screens.

`┊` are the boundaries of the split that runs. `✗` and hatching mean: more than the
device has. Nothing runs until you launch.
"""
    BINDINGS: ClassVar[list[BindingType]] = bindings("split")
    DEFAULT_CSS = """
    SplitBar {
        height: 4;
        width: 1fr;
        pointer: ew-resize;
    }
    """

    draft: reactive[Draft | None] = reactive(None, init=False, repaint=False)
    """The split shown; None before the user chooses a model."""
    picked: reactive[int] = reactive(0, init=False)
    """The boundary the keys move."""
    running: reactive[Split | None] = reactive(None, init=False, repaint=False)
    """The split that runs, whose boundaries stay on the bar; None for none."""

    class Changed(Message):
        """Another split is shown; ``final`` when the desk has it, too.

        Whoever hears of it reads the desk: messages that wait say nothing new.
        """

        def __init__(self, bar: SplitBar, *, final: bool) -> None:
            super().__init__()
            self.bar = bar
            self.final = final

        def can_replace(self, message: Message) -> bool:
            """A newer one of this bar says as much, unless only this is final."""
            return (
                isinstance(message, SplitBar.Changed)
                and message.bar is self.bar
                and (message.final or not self.final)
            )

    def __init__(self, desk: Desk, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._desk = desk
        self._drag: Drag | None = None

    # --- what others use -----------------------------------------------------

    def follow(self) -> None:
        """Show what lies on the desk.

        A drag and a number being typed go on where the split is the one they began
        with: news about devices come all the time.
        """
        draft, running = self._desk.draft, runs_now(self._desk.snapshot)
        self.running = running.split if running else None
        split = draft.split if draft else None
        before = self._drag.start if self._drag else self.draft and self.draft.split
        if split != before:
            self._end_drag()
            self.typed = None
        if draft and not (self.draft and _same_shape(self.draft.split, draft.split)):
            self.draft = draft
            self.picked = _first_shared(draft.split)
        self.draft = draft and draft.with_split(
            self._drag.split if self._drag else draft.split
        )

    @property
    def dragging(self) -> bool:
        """True if the mouse holds a boundary now."""
        return self._drag is not None

    @property
    def geometry(self) -> BarGeometry:
        """The places of segments and handles at the present width."""
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
        return self._desk.editing.can_undo

    @property
    def takes_number(self) -> bool:
        """A layer count, where there is a boundary and nobody drags it."""
        return self.n_boundaries > 0 and not self.dragging

    def take_number(self, text: str) -> None:
        """Give the device left of the boundary so many layers, or what there are."""
        if self.draft is None:
            return
        most = sum(self.draft.counts[self.picked : self.picked + 2])
        if int(text) > most:
            what = f"At most {most} layers here: set to {most}"
            self.post_message(Notice(what, "warning"))
        self._ask(self._desk.editing.give(self.picked, int(text)))

    # --- drawing ---------------------------------------------------------------

    def draw(self, width: int, height: int) -> list[Strip]:
        if self.draft is None or width < 1:
            return []
        picture = BarPicture(
            draft=self.draft,
            geometry=self.geometry,
            palette=self.palette,
            picked=self.picked,
            active=self.has_focus or self.dragging,
            keys=(
                with_keys(self.app, "{split.set:or}"),
                with_keys(self.app, "{split.cancel}"),
            ),
            typed=self.typed,
            ghost=self._ghost(),
        )
        return picture.lines(height)

    def _ghost(self) -> frozenset[int]:
        """Columns of the boundaries that run, where those shown are elsewhere."""
        runs, draft = self.running, self.draft
        if runs is None or draft is None or devices(draft.split) != devices(runs):
            return frozenset()
        there, here = BarGeometry(self.content_size.width, counts(runs)), self.geometry
        pairs = enumerate(zip(there.positions, here.positions, strict=True))
        return frozenset(there.handle_x(i) for i, (one, two) in pairs if one != two)

    # --- watchers ----------------------------------------------------------------

    def validate_picked(self, picked: int) -> int:
        return min(max(picked, 0), max(self.n_boundaries - 1, 0))

    def watch_draft(self) -> None:
        self.picked = self.validate_picked(self.picked)
        self.redraw_changed()

    def watch_running(self) -> None:
        self.redraw_changed()

    def watch_picked(self) -> None:
        self.typed = None
        self.redraw()

    # --- actions -------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        if not self.dragging:
            self._ask(self._desk.editing.move(self.picked, by))

    def action_move_to_end(self, direction: int) -> None:
        self.action_move(direction * (self.geometry.total + 1))

    def action_pick(self, by: int) -> None:
        if self.n_boundaries and not self.dragging:
            self.picked = (self.picked + by) % self.n_boundaries

    def action_reorder(self, by: int) -> None:
        if self.dragging:
            return
        if self._desk.editing.exchange(self.picked, by):
            self._ask(True)
            self.picked += by
        else:
            self.app.bell()

    def action_undo(self) -> None:
        self._step(self._desk.editing.undo)

    def action_redo(self) -> None:
        self._step(self._desk.editing.redo)

    def action_cancel(self) -> None:
        if self.dragging:
            self._restore()
        elif self.typed is not None:
            self.typed = None
        else:
            raise SkipAction

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in {"move", "move_to_end", "pick", "reorder"}:
            return self.n_boundaries > 0
        return True

    # --- events ----------------------------------------------------------------------

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if event.button != 1 or self.draft is None or not self.n_boundaries:
            return
        event.stop()
        x = event.get_content_offset_capture(self).x
        near = self.geometry.boundary_near(x)
        if near is None:
            self.picked = min(self.geometry.segment_at(x), self.n_boundaries - 1)
            return
        self.picked = near
        self._drag = Drag.of(self.draft.split, near, x)
        self.capture_mouse()
        self.redraw()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._drag is None:
            return
        event.stop()
        x = event.get_content_offset_capture(self).x
        at = self.geometry.position_at(self._drag.boundary, x)
        drag = self._drag.back() if x == self._drag.grab_x else self._drag.to(at)
        if drag != self._drag:
            self._drag = drag
            self._show(drag)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self._drag is None:
            return
        event.stop()
        drag = self._drag
        self._end_drag()
        self._ask(self._desk.editing.drop(drag))

    def on_mouse_release(self, event: events.MouseRelease) -> None:
        if self.dragging:
            self._restore()

    # --- inside ---------------------------------------------------------------

    def _ask(self, changed: bool) -> None:
        if changed:
            self.follow()
            self.post_message(self.Changed(self, final=True))

    def _step(self, step: Callable[[], bool]) -> None:
        if self.dragging or not step():
            self.app.bell()
        else:
            self._ask(True)

    def _show(self, drag: Drag) -> None:
        if self.draft is not None:
            self.draft = self.draft.with_split(drag.split)
            self.post_message(self.Changed(self, final=not drag.moved))

    def _restore(self) -> None:
        self._end_drag()
        self.follow()
        self.post_message(self.Changed(self, final=True))

    def _end_drag(self) -> None:
        if self._drag is not None:
            self._drag = None
            self.release_mouse()
        self.redraw()


def _first_shared(split: Split) -> int:
    pairs = enumerate(pairwise(split.shares))
    return next((index for index, (a, b) in pairs if a.layers and b.layers), 0)


def _same_shape(one: Split, other: Split) -> bool:
    return one.n_layer == other.n_layer and {s.device for s in one.shares} == {
        s.device for s in other.shares
    }
