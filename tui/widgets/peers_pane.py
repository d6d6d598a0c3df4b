"""The pane of the peers: who is there, how they are, how full their devices get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual.containers import VerticalScroll
from textual.geometry import Region
from textual.reactive import reactive

from backends.state import PeerRole, PeerState
from tui.actions import bindings
from tui.messages import Copyable
from tui.widgets.draft import letter
from tui.widgets.figures import short_part_of
from tui.widgets.memory_bar import memory_bar
from tui.widgets.strips import Part, StripWidget, clip, line, spread

if TYPE_CHECKING:
    from rich.style import Style
    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.strip import Strip

    from backends.state import Device, Peer
    from tui.widgets.draft import Draft

_SIGNS = {
    PeerState.READY: ("●", "dim"),
    PeerState.STARTING: ("◐", "warn"),
    PeerState.SERVING: ("●", "ok"),
    PeerState.FAILED: ("✗", "bad"),
    PeerState.UNREACHABLE: ("○", "bad"),
}
DEVICE_WIDTH = 7


@dataclass(frozen=True)
class PeerRow:
    """One line of the list: a peer, one of its devices, or its note."""

    peer: int
    left: tuple[Part, ...]
    right: tuple[Part, ...] = ()


class PeerList(StripWidget, can_focus=True):
    """Peers with their devices; one is selected."""

    HELP: ClassVar[str | None] = """\
## Peers

The machines of this cluster, and the workers on this one. `●` ready (green: serving),
`◐` starting, `✗` failed, `○` cannot be reached.

A device's bar and figures say how much of its memory the split shown takes; a device
the split does not use shows what is taken now. The letter is the device's in the split.
"""
    BINDINGS: ClassVar[list[BindingType]] = bindings("peers")
    DEFAULT_CSS = """
    PeerList {
        height: auto;
    }
    """

    peers: reactive[tuple[Peer, ...]] = reactive((), init=False, layout=True)
    """Who is there."""
    draft: reactive[Draft | None] = reactive(None, init=False)
    """The split shown, for letters and planned bytes."""
    selected: reactive[int] = reactive(0, init=False)
    """Index of the selected peer."""

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        """One line per peer, device and note."""
        return max(1, sum(_n_rows(peer) for peer in self.peers))

    def draw(self, width: int, height: int) -> list[Strip]:
        """All rows."""
        if not self.peers:
            return [line([("no peers known yet", self.palette.dim)], width)]
        return [
            spread(row.left, row.right, width)
            for index, peer in enumerate(self.peers)
            for row in self._rows(index, peer, width)
        ]

    def copyable(self) -> Copyable | None:
        """The selected peer as one line."""
        if not self.peers:
            return None
        peer = self.peers[self.selected]
        rtt = "" if peer.rtt_ms is None else f" {peer.rtt_ms:.1f} ms"
        names = ", ".join(device.id for device in peer.devices)
        return Copyable(
            f"peer {peer.name}",
            f"{peer.name} {peer.role} {peer.state} {peer.transport}{rtt} {names}",
        )

    def validate_selected(self, selected: int) -> int:
        """Keep the selection on a peer."""
        return min(max(selected, 0), max(len(self.peers) - 1, 0))

    def watch_peers(self) -> None:
        """Another list may be shorter."""
        self.selected = self.validate_selected(self.selected)
        self.redraw()

    def watch_draft(self) -> None:
        """Planned bytes follow the split."""
        self.redraw()

    def watch_selected(self) -> None:
        """Show the selection, and scroll to it."""
        self.redraw()
        top = sum(_n_rows(peer) for peer in self.peers[: self.selected])
        height = _n_rows(self.peers[self.selected]) if self.peers else 1
        self.scroll_visible(animate=False)
        if isinstance(self.parent, VerticalScroll):
            region = Region(0, top, self.size.width, height)
            self.parent.scroll_to_region(region, animate=False)

    def watch_has_focus(self, has_focus: bool) -> None:
        """The cursor shows only where keys move it."""
        super().watch_has_focus(has_focus)
        self.redraw()

    def action_select(self, by: int) -> None:
        """Select another peer."""
        self.selected += by

    def _rows(self, index: int, peer: Peer, width: int) -> list[PeerRow]:
        rows = [self._peer_row(index, peer, width)]
        rows += [self._device_row(index, device, width) for device in peer.devices]
        if peer.note:
            rows.append(PeerRow(index, ((f"   {peer.note}", self.palette.dim),)))
        return rows

    def _peer_row(self, index: int, peer: Peer, width: int) -> PeerRow:
        palette = self.palette
        cursor = "▸" if self.has_focus and index == self.selected else " "
        sign, tone = _SIGNS[peer.state]
        away = peer.state == PeerState.UNREACHABLE
        name = clip(peer.name, max(6, width - 22))
        role = "" if peer.role == PeerRole.IDLE else peer.role.value
        return PeerRow(
            index,
            (
                (cursor, palette.key),
                (f"{sign} ", getattr(palette, tone)),
                (f"{name} ", palette.dim if away else palette.strong),
                (clip(role, 6), palette.text),
            ),
            ((self._path(peer), palette.dim),),
        )

    def _path(self, peer: Peer) -> str:
        if peer.state == PeerState.UNREACHABLE:
            return "offline"
        if peer.rtt_ms is None:
            return peer.transport
        return f"{peer.transport} {peer.rtt_ms:4.1f} ms"

    def _device_row(self, index: int, device: Device, width: int) -> PeerRow:
        part, whole, used = self._fill(device)
        full = self.palette.dim if used is None else self.palette.device(used)
        figures = f" {short_part_of(part, whole):>12}"
        room = width - 3 - 2 - DEVICE_WIDTH - len(figures)
        bar = memory_bar(part, whole, max(room, 0), full=full, empty=self.palette.track)
        mark = "·" if used is None else letter(used)
        return PeerRow(
            index,
            (
                (f"   {mark} ", full),
                (clip(device.name, DEVICE_WIDTH), self.palette.text),
                *(bar if room >= 4 else ()),
            ),
            ((figures, self._figure_style(device)),),
        )

    def _fill(self, device: Device) -> tuple[int, int, int | None]:
        """Bytes taken, bytes there are, and the mark if the split uses the device."""
        for load in self.draft.loads if self.draft else ():
            if load.device == device.id and self.draft:
                return load.total_bytes, device.usable_bytes, self.draft.mark(device.id)
        return device.total_bytes - device.free_bytes, device.total_bytes, None

    def _figure_style(self, device: Device) -> Style:
        misfit = self.draft is not None and device.id in self.draft.misfits
        return self.palette.bad if misfit else self.palette.dim


class PeersPane(VerticalScroll, can_focus=False):
    """The scrolling frame around the peers."""

    DEFAULT_CSS = """
    PeersPane {
        padding: 0 1;
        scrollbar-size-vertical: 1;
    }
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        """Make an empty pane."""
        super().__init__(id=id, classes="pane")
        self.border_title = "Peers"
        self._list = PeerList()

    def compose(self) -> ComposeResult:
        """The list."""
        yield self._list

    def show(self, peers: tuple[Peer, ...], draft: Draft | None) -> None:
        """Show peers, and what a split would put on them."""
        self._list.peers = peers
        self.show_draft(draft)

    def show_draft(self, draft: Draft | None) -> None:
        """Show what a split would put on the devices."""
        self._list.draft = draft

    def focus_default(self) -> None:
        """The list takes the keys."""
        self._list.focus()


def _n_rows(peer: Peer) -> int:
    return 1 + len(peer.devices) + bool(peer.note)
