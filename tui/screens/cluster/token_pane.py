"""The pane of the latest tokens, where there is room for it beside the chat."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.containers import Container

from backends.state import ClusterState
from tui.actions.keymap import bindings
from tui.widgets.rarely import Rarely
from tui.widgets.strips import resubtitle
from tui.widgets.waterfall import Waterfall

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.binding import BindingType

    from backends.state import ClusterSnapshot, Link

DRAW_GAP_S = 1.0
"""Between two pictures: nobody reads twenty tokens that pass four times a second."""


class TokenPane(Container):
    """The time of each of the latest tokens, as on the Traffic screen."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("token")
    DEFAULT_CSS = """
    TokenPane {
        width: 68;
        height: 1fr;
        padding: 0 1;
    }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, classes="pane")
        self.border_title = "Token"
        self.waterfall = Waterfall()
        self._links: tuple[Link, ...] = ()
        self._running = False
        self._drawing = Rarely(self, DRAW_GAP_S, self._show)

    def compose(self) -> ComposeResult:
        yield self.waterfall

    def show(self, snapshot: ClusterSnapshot) -> None:
        """Show a snapshot."""
        self._links = snapshot.links
        self._running = snapshot.state is not ClusterState.IDLE
        if self.display:
            self._drawing.ask()

    def on_show(self) -> None:
        self._drawing.ask()

    def _show(self) -> None:
        self.waterfall.show(self._links, running=self._running)

    def focus_default(self) -> None:
        """The waterfall takes the keys."""
        self.waterfall.focus()

    @on(Waterfall.Changed)
    def _badge(self, event: Waterfall.Changed) -> None:
        event.stop()
        resubtitle(self, self.waterfall.chosen)

    def action_median(self) -> None:
        self.waterfall.median = not self.waterfall.median

    def action_next_worker(self) -> None:
        self.waterfall.choose_next()
