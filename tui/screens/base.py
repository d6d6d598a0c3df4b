"""What every screen of the console has: status above, keys below, a least size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.screen import Screen

from tui.widgets.key_bar import KeyBar
from tui.widgets.size_notice import MIN_HEIGHT, MIN_WIDTH, SizeNotice
from tui.widgets.status_line import StatusLine

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from backends.state import ClusterSnapshot, Peer

NARROW_BELOW = 100
SHORT_BELOW = 24


class ConsoleScreen(Screen[None]):
    """A screen one switches to by its number."""

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
        """Make the frame."""
        super().__init__()
        self.status_line = StatusLine()
        self.key_bar = KeyBar()

    def compose(self) -> ComposeResult:
        """Status, what the screen is for, keys, and the notice that hides it all."""
        yield self.status_line
        yield from self.compose_body()
        yield self.key_bar
        yield SizeNotice()

    def compose_body(self) -> ComposeResult:
        """What the screen is for."""
        raise NotImplementedError

    def show_snapshot(self, snapshot: ClusterSnapshot) -> None:
        """Show a newer snapshot."""
        self.status_line.snapshot = snapshot

    def show_link(self, connected: bool) -> None:
        """Say whether the controller answers."""
        self.status_line.connected = connected


class ShowsPeers:
    """A dialog about peers: it follows them while it is open."""

    def show_peers(self, peers: tuple[Peer, ...]) -> None:
        """The peers as they are now."""
        raise NotImplementedError
