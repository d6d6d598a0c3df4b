"""The pane of the peers: the frame that scrolls their list."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from textual import on
from textual.containers import VerticalScroll

from tui.screens.cluster.peers.list import PeerList
from tui.widgets.filter_bar import FilterBar
from tui.widgets.strips import retitle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual.app import ComposeResult

    from backends.state import Peer
    from tui.model.draft import Draft


class PeersPane(VerticalScroll, can_focus=False):
    """The scrolling frame around the peers."""

    DEFAULT_CSS = """
    PeersPane {
        padding: 0 1;
        scrollbar-size-vertical: 1;
        & FilterBar { dock: bottom; }
    }
    """

    def __init__(
        self,
        *,
        id: str | None = None,  # noqa: A002
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(id=id, classes="pane")
        self.border_title = "Peers"
        self.peer_list = PeerList(clock)
        self._filter_bar = FilterBar("words to keep", id="peers-filter")
        self._peers: tuple[Peer, ...] = ()

    def compose(self) -> ComposeResult:
        yield self.peer_list
        yield self._filter_bar

    def show(self, peers: tuple[Peer, ...], draft: Draft | None) -> None:
        """Show peers, and what a split would put on them."""
        self._peers = peers
        self._list()
        self.show_draft(draft)

    def _list(self) -> None:
        """List the peers that have all the words of the filter."""
        words = self._filter_bar.text.casefold().split()
        shown = tuple(peer for peer in self._peers if has_words(peer, words))
        self.peer_list.filtered = bool(words)
        self.peer_list.peers = shown
        note = f"{len(shown)} of {len(self._peers)}" if words else ""
        self._filter_bar.note = note
        retitle(self, f"Peers ── {note}" if note else "Peers")

    @on(PeerList.FilterWanted)
    def _filter_wanted(self, event: PeerList.FilterWanted) -> None:
        event.stop()
        if event.wanted:
            self._filter_bar.open()
        else:
            self._filter_bar.action_clear()

    @on(FilterBar.Changed)
    def _filter_changed(self, event: FilterBar.Changed) -> None:
        event.stop()
        self._list()

    @on(FilterBar.Left)
    def _filter_left(self, event: FilterBar.Left) -> None:
        event.stop()
        self.focus_default()

    def show_draft(self, draft: Draft | None) -> None:
        """Show what a split would put on the devices."""
        self.peer_list.draft = draft

    def show_fallbacks(self, fallbacks: dict[str, str]) -> None:
        """Show what the cluster would go on with, by what it would lose."""
        self.peer_list.fallbacks = fallbacks

    def focus_default(self) -> None:
        """The list takes the keys."""
        self.peer_list.focus()


def has_words(peer: Peer, words: Sequence[str]) -> bool:
    """True if the peer's names contain all words, given in lower case."""
    devices = " ".join(device.name for device in peer.devices)
    told = f"{peer.name} {peer.role} {peer.state} {peer.transport} {peer.address}"
    text = f"{told} {devices}".casefold()
    return all(word in text for word in words)
