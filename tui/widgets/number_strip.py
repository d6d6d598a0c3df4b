"""A strip with something to drag by the mouse, or to set by a number typed."""

from __future__ import annotations

from textual import events
from textual.actions import SkipAction

from tui.widgets.strips import Drawn, StripWidget

ENTRY_ACTIONS = ("number", "erase_typed", "cancel")


class NumberStrip(StripWidget):
    """Digits are screens until a key has begun a number; then they are its digits.

    A widget binds ``number`` to the keys that begin and apply, ``erase_typed`` and
    ``cancel``, and takes the number in ``take_number``. What the mouse takes hold of is
    moved in ``drag_to``, and let go in ``drop``.
    """

    TYPED_MAX = 4
    """Characters a number can have."""
    HAS_POINT = False

    dragging = False
    typed: Drawn[str | None] = Drawn(None)
    """The number so far; None while none is being typed."""

    @property
    def takes_number(self) -> bool:
        raise NotImplementedError

    def take_number(self, text: str) -> None:
        """A number was typed: digits, and one point at most."""
        raise NotImplementedError

    def drag_to(self, x: int) -> None:
        raise NotImplementedError

    def drop(self, *, cancel: bool = False) -> None:
        """End the drag; ``cancel`` leaves all as it was before."""
        raise NotImplementedError

    def grab(self) -> None:
        self.dragging = True
        self.capture_mouse()
        self.redraw()

    def release(self) -> None:
        self.dragging = False
        self.release_mouse()
        self.redraw()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self.dragging:
            event.stop()
            self.drag_to(event.get_content_offset_capture(self).x)

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self.dragging:
            event.stop()
            self.drop()

    def on_mouse_release(self) -> None:
        if self.dragging:
            self.drop(cancel=True)

    def action_cancel(self) -> None:
        if self.dragging:
            self.drop(cancel=True)
        elif self.typed is not None:
            self.typed = None
        else:
            raise SkipAction

    @property
    def takes_digits(self) -> bool:
        """True if a digit belongs to a number now, and changes no screen."""
        return self.typed is not None

    def watch_typed(self) -> None:
        self.refresh_bindings()

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self.typed = None

    def action_number(self) -> None:
        if not self.takes_number:
            raise SkipAction
        text, self.typed = self.typed, "" if self.typed is None else None
        if text and text != ".":
            self.take_number(text)

    def action_erase_typed(self) -> None:
        if not self.typed:
            raise SkipAction
        self.typed = self.typed[:-1]

    def on_key(self, event: events.Key) -> None:
        # A letter has its usual meaning again once the number is taken or cancelled.
        if self.typed is None or not event.is_printable or self._ends(event.key):
            return
        event.stop()
        event.prevent_default()
        character = event.character or ""
        if self._belongs(character) and len(self.typed) < self.TYPED_MAX:
            self.typed += character

    def _ends(self, key: str) -> bool:
        active = self.screen.active_bindings.get(key)
        return active is not None and active.binding.action in ENTRY_ACTIONS

    def _belongs(self, character: str) -> bool:
        if character == ".":
            return self.HAS_POINT and "." not in (self.typed or "")
        return character.isascii() and character.isdigit()
