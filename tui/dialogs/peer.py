"""The facts about one peer; the dialog follows the peer while it is open."""

from __future__ import annotations

from collections.abc import Callable

from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from backends.state import Peer
from tui.actions.keymap import bindings
from tui.app.frame import ShowsPeers
from tui.app.messages import Copyable
from tui.dialogs.dialog import Dialog
from tui.model.peer_words import peer_rows
from tui.widgets.palette import palette_from
from tui.widgets.safe_text import safe_line

LABEL_WIDTH = 9


class PeerDialog(ShowsPeers, Dialog[None]):
    """A list to read; ``y`` copies all of it."""

    HELP = """\
## Peer

All that is known of one machine; it follows the machine while it is open.
"""
    BINDINGS = bindings("dialog", "reading")
    DEFAULT_CSS = """
    PeerDialog Static {
        height: auto;
    }
    """

    def __init__(self, peer: Peer, clock: Callable[[], float]) -> None:
        super().__init__()
        self._peer = peer
        self._clock = clock
        self._text = Static(markup=False)

    def compose(self) -> ComposeResult:
        keys = ("reading.copy", "copies"), ("dialog.cancel", "closes")
        title = f"Peer · {self._peer.name}"
        with self.frame(title, *keys, box=VerticalScroll):
            yield self._text

    def on_mount(self) -> None:
        self._text.update(self._table())

    def show_peers(self, peers: tuple[Peer, ...]) -> None:
        for peer in peers:
            if peer.name == self._peer.name and peer != self._peer:
                self._peer = peer
                self._text.update(self._table())

    def copyable(self) -> Copyable | None:
        lines = [f"{label:{LABEL_WIDTH}}  {t}".rstrip() for label, t in self._rows()]
        return Copyable(f"what is known of {self._peer.name}", "\n".join(lines))

    def _rows(self) -> list[tuple[str, str]]:
        rows = peer_rows(self._peer, self._clock())
        return [(label, safe_line(text)) for label, text in rows]

    def _table(self) -> Table:
        palette = palette_from(self.app.theme_variables)
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(style=palette.dim, width=LABEL_WIDTH)
        table.add_column(style=palette.text, ratio=1, overflow="fold")
        for label, text in self._rows():
            # A string could hold markup; a Text holds only itself.
            table.add_row(label, Text(text))
        return table
