"""The frame of every screen: status above, keys below, a least size."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.screen import Screen
from textual.widget import Widget

from tui.app.key_bar import KeyBar
from tui.app.status_line import StatusLine
from tui.widgets.keys import with_keys
from tui.widgets.strips import StripWidget, line

if TYPE_CHECKING:
    from textual.app import ComposeResult
    from textual.strip import Strip

    from backends.state import ClusterSnapshot, Peer

MIN_WIDTH = 60
MIN_HEIGHT = 18


class SizeNotice(StripWidget):
    """Covers the screen below the smallest size, and names both sizes."""

    DEFAULT_CSS = """
    SizeNotice {
        display: none;
        overlay: screen;
        width: 100vw;
        height: 100vh;
        background: $background;
        layer: notice;
    }
    """

    def draw(self, width: int, height: int) -> list[Strip]:
        texts = [
            ("Make this terminal larger", self.palette.strong),
            (f"it needs {MIN_WIDTH}×{MIN_HEIGHT}", self.palette.text),
            (f"it is    {width}×{height}", self.palette.warn),
        ][-height:]
        blank = line([], width)
        lines = [
            line(
                [(" " * max((width - len(text)) // 2, 0), style), (text, style)], width
            )
            for text, style in texts
        ]
        return [blank] * ((height - len(lines)) // 2) + lines


ZOOMED = "zoomed: {app.zoom} shows all"
NARROW_BELOW = 100
SHORT_BELOW = 24


class ConsoleScreen(Screen[None]):
    """A screen one switches to by its number."""

    FIGURES: ClassVar[bool] = True
    """True if help explains the signs of figures."""
    ALLOW_IN_MAXIMIZED_VIEW = "StatusLine, KeyBar, SizeNotice"
    ESCAPE_TO_MINIMIZE = False
    # Textual declares these two as instance variables, so they cannot be ClassVars.
    HORIZONTAL_BREAKPOINTS = [
        (0, "-tiny"),
        (MIN_WIDTH, "-narrow"),
        (NARROW_BELOW, "-normal"),
        (150, "-wide"),
    ]
    VERTICAL_BREAKPOINTS = [
        (0, "-flat"),
        (MIN_HEIGHT, "-short"),
        (SHORT_BELOW, "-medium"),
        (32, "-tall"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.status_line = StatusLine()
        self.key_bar = KeyBar()
        self.shown: ClusterSnapshot | None = None

    def compose(self) -> ComposeResult:
        yield self.status_line
        yield from self.compose_body()
        yield self.key_bar
        yield SizeNotice()

    def action_zoom(self) -> None:
        panes = self.focused.ancestors_with_self if self.focused else ()
        found = (node for node in panes if node.has_class("pane"))
        pane = next(found, None)
        self.maximized = pane if isinstance(pane, Widget) and not self.zooms else None
        self.key_bar.note = with_keys(self.app, ZOOMED) if self.zooms else ""

    @property
    def zooms(self) -> bool:
        """True if one pane has the whole screen."""
        return self.maximized is not None

    def leave_zoom(self) -> bool:
        """Show all panes again; False when they are."""
        was_zoomed = self.zooms
        if was_zoomed:
            self.action_zoom()
        return was_zoomed

    def compose_body(self) -> ComposeResult:
        raise NotImplementedError

    def show_snapshot(self, snapshot: ClusterSnapshot) -> None:
        """Show a snapshot: the newest, or one that is held."""
        self.shown = self.status_line.snapshot = snapshot

    def hold(self, held: bool) -> None:
        """Stay as it is while data keeps coming, or go on."""
        self.status_line.held = held

    def show_link(self, connected: bool) -> None:
        """Say whether the controller answers."""
        self.status_line.connected = connected


class ShowsPeers:
    """A dialog about peers: it follows them while it is open."""

    def show_peers(self, peers: tuple[Peer, ...]) -> None:
        """The peers as they are now."""
        raise NotImplementedError
