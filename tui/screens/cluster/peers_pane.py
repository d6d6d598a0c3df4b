"""The pane of the peers: their state, and how full their devices get."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate
from typing import NamedTuple

from rich.style import Style
from textual import events, on
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.geometry import Offset, Region
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from backends.state import Device, MemorySource, Peer, PeerState
from backends.units import format_ms, format_percent
from tui.actions import bindings
from tui.app.console import console_of
from tui.app.messages import Copyable, Raw
from tui.model.edit import Edit
from tui.model.finding import has_words
from tui.model.names import letter
from tui.model.peer_words import (
    UNFIT,
    data_text,
    hint_of,
    look_of,
    note_text,
    path_words,
    role_word,
    since_text,
    state_words,
    why_not,
)
from tui.model.quantities import short_part_of
from tui.widgets.inputs import FilterBar
from tui.widgets.keys import with_keys
from tui.widgets.palette import Palette
from tui.widgets.sources import style_of, told
from tui.widgets.strips import (
    Drawn,
    Part,
    StripWidget,
    changed_span,
    clip,
    line,
    memory_bar,
    retitle,
    spread,
    wrapped,
)

DEVICE_WIDTH = 7
INDENT = 3
NOTE_LINES = 6
WIDE_CELLS, FIGURES_CELLS = 80, 63
"""A pane wider than the first has names of 40 cells, and the rest beside them."""
_STEADY = frozenset({PeerState.READY, PeerState.SERVING})


class Fill(NamedTuple):
    """The used and the total memory of a device."""

    taken: int
    whole: int
    mark: int | None
    """Its letter in the split; None where the split does not use it."""
    misfit: bool = False
    source: MemorySource | None = None
    """The source of the split's figure; None for the memory in use now."""


def fill_of(device: Device, edit: Edit | None) -> Fill:
    """The memory that the split shown takes of a device, else the memory in use now."""
    if edit is None or (load := edit.load_of.get(device.id)) is None:
        return Fill(device.total_bytes - device.free_bytes, device.total_bytes, None)
    mark, misfit = edit.mark(device.id), device.id in edit.misfits
    return Fill(load.total_bytes, device.usable_bytes, mark, misfit, load.source)


@dataclass(frozen=True)
class PeerBlock:
    """All that decides how a peer looks: equal blocks look the same."""

    peer: Peer
    fills: tuple[Fill, ...]
    width: int
    selected: bool
    cursor: bool
    """True if keys move the selection."""
    age: str
    without: str = ""
    """The cluster's fallback if this peer were lost; empty if it is unknown."""
    with_keys: Callable[[str], str] = field(default=str, compare=False)
    """Puts the keys into a text that names actions."""

    @cached_property
    def n_rows(self) -> int:
        return 1 + len(self.peer.devices) + len(self._below())

    def strips(self, palette: Palette) -> list[Strip]:
        devices = zip(self.peer.devices, self.fills, strict=True)
        return [
            self._name(palette),
            *(_device_row(*each, self.width, palette) for each in devices),
            *(line(self._styled(*row, palette), self.width) for row in self._below()),
        ]

    def _name(self, palette: Palette) -> Strip:
        peer, look = self.peer, look_of(self.peer)
        tone = getattr(palette, look.tone)
        away = peer.state is PeerState.UNREACHABLE
        width = _figures_cells(self.width)
        name = clip(peer.name, max(6, width - 23)) + " "
        left = [
            ("▸" if self.cursor else " ", palette.key),
            (f"{look.sign} ", tone),
            (name, palette.dim if away else palette.strong),
            (clip(role_word(peer), 6), palette.text),
        ]
        if peer.state in _STEADY:
            state = path_words(peer), palette.dim
        else:
            state = state_words(peer, self.age), tone
        return spread(left, [state], width).adjust_cell_length(self.width)

    def _below(self) -> list[tuple[str, str]]:
        """The peer's work, its trouble or a hint: kind and text."""
        peer, work = self.peer, self.peer.work
        if work is not None:
            bar = [] if work.progress is None else [("bar", "")]
            title = work.title if self.selected else ""
            end = [("hint", "{peers.cancel:short} ends it")] if self.selected else []
            return [*self._wrapped(title), *bar, *self._wrapped(work.detail), *end]
        hint = hint_of(peer)
        key = [("hint", hint)] if hint else []
        if key and not self.selected:
            return key
        told = [note_text(peer)]
        if self.selected:
            data = data_text(peer)
            told.append(data and f"data: {data}")
            told.append(self.without and f"if lost: {self.without}")
        return [row for text in told for row in self._wrapped(text)] + key

    def _wrapped(self, text: str) -> list[tuple[str, str]]:
        if not self.selected:
            return [("dim", text)] if text else []
        pieces = wrapped(text, self.width - INDENT, NOTE_LINES)
        return [("dim", piece) for piece in pieces]

    def _styled(self, kind: str, text: str, palette: Palette) -> list[Part]:
        indent = (" " * INDENT, palette.dim)
        if kind == "bar":
            progress = (self.peer.work.progress if self.peer.work else None) or 0.0
            room = min(max(self.width - INDENT - 6, 4), 30)
            full, empty = palette.accent, palette.track
            cells = memory_bar(progress, 1.0, room, full=full, empty=empty)
            return [indent, *cells, (f" {format_percent(progress):>5}", palette.text)]
        if kind == "hint":
            key, _, rest = self.with_keys(text).partition(" ")
            return [indent, (key, palette.key), (f" {rest}", palette.text)]
        return [indent, (text, palette.dim)]


def _figures_cells(width: int) -> int:
    return FIGURES_CELLS if width > WIDE_CELLS else width


def _device_row(device: Device, fill: Fill, width: int, palette: Palette) -> Strip:
    full = palette.dim if fill.mark is None else palette.device(fill.mark)
    across, width = width, _figures_cells(width)
    figures = f" {told(short_part_of(fill.taken, fill.whole), fill.source):>12}"
    cells = max(width - INDENT - 2 - DEVICE_WIDTH - len(figures), 0)
    bar = memory_bar(fill.taken, fill.whole, cells, full=full, empty=palette.track)
    mark = "·" if fill.mark is None else letter(fill.mark)
    left = [
        (f"   {mark} ", full),
        (clip(device.name, DEVICE_WIDTH), palette.text),
        *(bar if cells >= 4 else ()),
    ]
    tone = palette.bad if fill.misfit else style_of(fill.source, palette)
    return spread(left, [(figures, tone)], width).adjust_cell_length(across)


TICK_S = 5.0


class PeerList(StripWidget, can_focus=True):
    """Peers with their devices; one is selected.

    Only what is visible is drawn, and only peers that look different are drawn again.
    """

    HELP = """\
## Peers

The machines this console knows, and the workers on this one. `•` ready, `●` serving,
`◐` starting, `◌` being looked at, `◑` something goes on there, `?` asks you, `!` has no
engine yet, `≠` its engine does not fit ours, `✗` failed, `○` cannot be reached.

A device's bar and figures say how much of its memory the split shown takes; a device
the split does not use shows what is taken now. The letter is the device's in the split.

**{peers.use}** and **{peers.lead}** change who takes part in the split shown;
**{cluster.launch}** launches it. **{peers.filter}** keeps only peers with some words.
"""
    BINDINGS = bindings("peers")
    DEFAULT_CSS = "PeerList { height: auto; }"

    peers: reactive[tuple[Peer, ...]] = reactive((), init=False, repaint=False)
    edit: Drawn[Edit | None] = Drawn(None)
    fallbacks: Drawn[dict[str, str]] = Drawn({})
    """By peer, what the cluster would go on with if it were lost."""
    selected: reactive[int] = reactive(0, init=False)

    class Selected(Message):
        """Another peer is selected, or the one selected has changed."""

    def __init__(self, filter_bar: FilterBar) -> None:
        super().__init__()
        self._filter = filter_bar
        self._blocks: list[PeerBlock] = []
        self._tops: list[int] = []
        self._pictures: dict[int, tuple[PeerBlock, list[Strip]]] = {}
        self._awaited = ""

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        self._lay_out(w)
        return max(1, sum(block.n_rows for block in self._blocks))

    def lines(self) -> list[Strip]:
        width = self.content_size.width
        if self._strips is None or self._drawn_size.width != width:
            self._lay_out(width)
            blocks = range(len(self._blocks))
            self._strips = [strip for index in blocks for strip in self._drawn(index)]
            self._strips = self._strips or [self._nobody(width)]
            self._drawn_size = self.content_size
        return self._strips

    def render_line(self, y: int) -> Strip:
        width = self.content_size.width
        if not self._blocks or self._blocks[0].width != width:
            self._lay_out(width)
        if not self._blocks:
            return self._nobody(width)
        index = bisect_right(self._tops, y) - 1
        strips = self._drawn(index)
        row = y - self._tops[index]
        return strips[row] if row < len(strips) else Strip.blank(width, self._ground)

    def notify_style_update(self) -> None:
        self._pictures.clear()
        super().notify_style_update()

    def _drawn(self, index: int) -> list[Strip]:
        block = self._blocks[index]
        held = self._pictures.get(index)
        if held is None or held[0] != block:
            drawn = block.strips(self.palette)
            held = block, [strip.apply_style(self._ground) for strip in drawn]
            self._pictures[index] = held
        return held[1]

    @property
    def _ground(self) -> Style:
        return Style(bgcolor=self.background_colors[1].rich_color)

    def _nobody(self, width: int) -> Strip:
        said = "no peer has these words" if self._filter.text else "no peers known yet"
        text = line([(said, self.palette.dim)], width)
        return text.apply_style(self._ground)

    def _lay_out(self, width: int) -> None:
        self._blocks = [self._block(index, width) for index in range(len(self.peers))]
        heights = (block.n_rows for block in self._blocks)
        self._tops = [0, *accumulate(heights)][:-1] if self._blocks else []

    def _block(self, index: int, width: int) -> PeerBlock:
        peer, selected = self.peers[index], index == self.selected
        return PeerBlock(
            peer=peer,
            fills=tuple(fill_of(device, self.edit) for device in peer.devices),
            width=width,
            selected=selected,
            cursor=selected and self.has_focus,
            age=self._age(peer),
            without=self.fallbacks.get(peer.name, ""),
            with_keys=partial(with_keys, self.app),
        )

    def _age(self, peer: Peer) -> str:
        if peer.state is not PeerState.UNREACHABLE or peer.since is None:
            return ""
        return since_text(console_of(self).clock() - peer.since)

    def redraw_changed(self) -> None:
        """Paint the peers that look different now; lay out anew if sizes changed."""
        before, tops = self._blocks, self._tops
        self._lay_out(self.content_size.width)
        changed = [
            index
            for index, block in enumerate(self._blocks)
            if index >= len(before) or before[index] != block
        ]
        if not changed and len(before) == len(self._blocks):
            return
        self._strips = None
        if tops != self._tops or _n_rows(before) != _n_rows(self._blocks):
            self.refresh(layout=True)
            at = self.selected
            both = at < min(len(before), len(self._blocks))
            if both and self._blocks[at].n_rows > before[at].n_rows:
                self.call_after_refresh(self._scroll_to_selected)
            return
        for index in changed:
            self._paint(index)

    def _paint(self, index: int) -> None:
        held = self._pictures.get(index)
        now = self._drawn(index)
        if held is None or len(held[1]) != len(now):
            self.refresh(self._region(index))
            return
        pairs = enumerate(zip(held[1], now, strict=True), start=self._tops[index])
        for row, (old, new) in pairs:
            if span := changed_span(old, new):
                self.refresh(Region(span[0], row, span[1] - span[0], 1))

    # --- news ----------------------------------------------------------------------

    def on_mount(self) -> None:
        self.set_interval(TICK_S, self.redraw_changed)

    def validate_selected(self, selected: int) -> int:
        return min(max(selected, 0), max(len(self.peers) - 1, 0))

    def watch_peers(self, before: tuple[Peer, ...], now: tuple[Peer, ...]) -> None:
        was = before[self.selected] if self.selected < len(before) else None
        names = [peer.name for peer in now]
        if self._awaited in names:
            self.selected = names.index(self._awaited)
            self._awaited = ""
        elif was is not None and was.name in names:
            self.selected = names.index(was.name)
        else:
            self.selected = self.validate_selected(self.selected)
        self.redraw_changed()
        if was != self.peer:
            self.post_message(self.Selected())

    def watch_selected(self) -> None:
        self.redraw_changed()
        self.scroll_visible(animate=False)
        self.call_after_refresh(self._scroll_to_selected)
        self.post_message(self.Selected())

    def _scroll_to_selected(self) -> None:
        frame = self.parent
        if self.selected < len(self._blocks) and isinstance(frame, VerticalScroll):
            frame.scroll_to_region(self._region(self.selected), animate=False)

    def _region(self, index: int) -> Region:
        block = self._blocks[index]
        return Region(0, self._tops[index], block.width, block.n_rows)

    def select(self, name: str) -> None:
        names = [peer.name for peer in self.peers]
        if name in names:
            self.selected = names.index(name)
        else:
            self._awaited = name

    @property
    def peer(self) -> Peer | None:
        return self.peers[self.selected] if self.selected < len(self.peers) else None

    @property
    def subject(self) -> str:
        return f"Peer {self.peer.name}" if self.peer else ""

    @property
    def subject_region(self) -> Region | None:
        if self.peer is None or self.selected >= len(self._blocks):
            return None
        return self._region(self.selected).translate(self.region.offset)

    def copyable(self) -> Copyable | None:
        peer = self.peer
        if peer is None:
            return None
        rtt = "" if peer.rtt_ms is None else f" {format_ms(peer.rtt_ms)}"
        names = ", ".join(device.id for device in peer.devices)
        told = f"{peer.name} {peer.role} {peer.state} {peer.transport}{rtt} {names}"
        return Copyable(f"peer {peer.name}", f"{told} {peer.note}".rstrip())

    def raw(self) -> Raw | None:
        return Raw(f"peer {self.peer.name}", self.peer) if self.peer else None

    def action_select(self, by: int) -> None:
        self.selected += by

    def action_filter(self) -> None:
        self._filter.open()

    def action_unfilter(self) -> None:
        if not self._filter.text:
            raise SkipAction
        self._filter.action_clear()

    def action_ask(self, verb: str) -> None:
        if verb in ("add", "invite"):
            console_of(self).work_at(verb)
        elif self.peer is not None:
            console_of(self).work_at(verb, self.peer)

    def press_spots(self) -> list[Offset]:
        return [Offset(0, top) for top in self._tops]

    def on_click(self, event: events.Click) -> None:
        y = event.get_content_offset_capture(self).y
        if not 0 <= y < _n_rows(self._blocks):
            return
        self.selected = bisect_right(self._tops, y) - 1
        if event.chain == 2:
            self.action_ask("open")


def unfit_actions(peer: Peer | None) -> dict[str, str]:
    """Actions that would refuse the selected peer, and why: they are not offered."""
    if peer is None:
        verbs = ("open", "data", "use", "provision", "cancel")
        return {f"peers.{verb}": "no peer is selected" for verb in verbs}
    found = {}
    if peer.data is None:
        found["peers.data"] = "there is one way only"
    if refusal := why_not(peer):
        found["peers.use"] = refusal
    if peer.state not in UNFIT:
        found["peers.provision"] = "nothing is to be installed there"
    if peer.work is None:
        found["peers.cancel"] = "no task goes on there"
    return found


def _n_rows(blocks: list[PeerBlock]) -> int:
    return sum(block.n_rows for block in blocks)


class PeersPane(VerticalScroll, can_focus=False):
    DEFAULT_CSS = """
    PeersPane {
        padding: 0 1;
        scrollbar-size-vertical: 1;
        & FilterBar { dock: bottom; }
    }
    """

    def __init__(self) -> None:
        super().__init__(id="peers", classes="pane")
        self.border_title = "Peers"
        self._filter_bar = FilterBar("words to keep", id="peers-filter")
        self.peer_list = PeerList(self._filter_bar)
        self._peers: tuple[Peer, ...] = ()

    def compose(self) -> ComposeResult:
        yield self.peer_list
        yield self._filter_bar

    def show(self, peers: tuple[Peer, ...], edit: Edit | None) -> None:
        self._peers = peers
        self._list()
        self.peer_list.edit = edit

    @on(FilterBar.Changed)
    def _list(self) -> None:
        query = self._filter_bar.text
        shown, note = self._peers, ""
        if query.strip():
            shown = tuple(p for p in shown if has_words(_told_of(p), query))
            note = f"{len(shown)} of {len(self._peers)}"
        self.peer_list.peers, self._filter_bar.note = shown, note
        retitle(self, f"Peers ── {note}" if note else "Peers")

    @on(FilterBar.Left)
    def focus_default(self) -> None:
        self.peer_list.focus()


def _told_of(peer: Peer) -> str:
    devices = " ".join(device.name for device in peer.devices)
    told = f"{peer.name} {peer.role} {peer.state} {peer.transport} {peer.address}"
    return f"{told} {devices}"
