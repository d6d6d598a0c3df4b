"""The base of all dialogs: help on its own keys, none of the keys behind it."""

from __future__ import annotations

from typing import Any, TypeVar

from textual.await_complete import AwaitComplete
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widget import Widget

from backends.state import Peer
from tui.actions import bindings
from tui.widgets.keys import key_link
from tui.widgets.strips import retitle
from tui.widgets.worker_reports import report_worker

Result = TypeVar("Result")


class Dialog(ModalScreen[Result]):
    """Stands before the screen; the app lets no key through to the screen."""

    BINDINGS = bindings("dialogs")
    FIGURES = False
    """True if help explains how figures show their source."""

    TYPING = False
    """True if a text field takes letters here, so that hints name other keys."""

    on_worker_state_changed = report_worker

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("classes", "dialog-screen")
        super().__init__(*args, **options)

    def dismiss(self, result: Result | None = None) -> AwaitComplete:
        """Close with a result, once: fast typing may repeat the key.

        With what stands before it, as help does: it may have come while we asked.
        """
        stack = self.app.screen_stack
        if self not in stack:
            return AwaitComplete()
        for before in reversed(stack[stack.index(self) + 1 :]):
            before.dismiss(None)
        return super().dismiss(result)

    def action_cancel(self) -> None:
        self.dismiss(None)

    def show_peers(self, peers: tuple[Peer, ...]) -> None:
        """Follow the peers, in a dialog about them."""

    def frame(
        self, title: str, *keys: tuple[str, str], box: type[Widget] = Vertical
    ) -> Widget:
        """The box of a dialog, for its content; its frame names these keys."""
        made = box(classes="dialog")
        retitle(made, title)
        self.show_keys(made, *keys)
        return made

    def show_keys(self, box: Widget, *named: tuple[str, str]) -> None:
        """Name keys in the frame: action ids and their effect."""
        hints = [key_link(self.app, *one) for one in named]
        hints.append(key_link(self.app, "dialogs.help", "help", typing=self.TYPING))
        box.border_subtitle = " · ".join(filter(None, hints))
