"""The pane of the peers: the frame that scrolls their list."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual.containers import VerticalScroll

from tui.widgets.peer_list import PeerList

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from backends.state import Peer
    from tui.widgets.draft import Draft


class PeersPane(VerticalScroll, can_focus=False):
    """The scrolling frame around the peers."""

    DEFAULT_CSS = """
    PeersPane {
        padding: 0 1;
        scrollbar-size-vertical: 1;
    }
    """

    def __init__(
        self,
        *,
        id: str | None = None,  # noqa: A002
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Make an empty pane; ``clock`` gives Unix seconds."""
        super().__init__(id=id, classes="pane")
        self.border_title = "Peers"
        self.peer_list = PeerList(clock)

    def compose(self) -> ComposeResult:
        """The list."""
        yield self.peer_list

    def show(self, peers: tuple[Peer, ...], draft: Draft | None) -> None:
        """Show peers, and what a split would put on them."""
        self.peer_list.peers = peers
        self.show_draft(draft)

    def show_draft(self, draft: Draft | None) -> None:
        """Show what a split would put on the devices."""
        self.peer_list.draft = draft

    def focus_default(self) -> None:
        """The list takes the keys."""
        self.peer_list.focus()
