"""The lines of one peer in the list of peers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from backends.state import MemorySource, PeerState
from backends.units import format_percent
from tui.model.names import letter
from tui.model.peer_words import (
    data_text,
    hint_of,
    look_of,
    note_text,
    path_words,
    role_word,
    state_words,
)
from tui.model.quantities import short_part_of
from tui.widgets.blocks import memory_bar
from tui.widgets.sources import style_of, told
from tui.widgets.strips import Part, clip, line, spread, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.strip import Strip

    from backends.state import Device, Peer
    from tui.model.draft import Draft
    from tui.widgets.palette import Palette

DEVICE_WIDTH = 7
INDENT = 3
NOTE_LINES = 6
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


def fill_of(device: Device, draft: Draft | None) -> Fill:
    """The memory that the split shown takes of a device, else the memory in use now."""
    for load in draft.loads if draft else ():
        if load.device == device.id and draft:
            return Fill(
                load.total_bytes,
                device.usable_bytes,
                draft.mark(device.id),
                device.id in draft.misfits,
                load.source,
            )
    taken = device.total_bytes - device.free_bytes
    return Fill(taken, device.total_bytes, None)


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
    """The time since the state began, coarsely."""
    without: str = ""
    """The cluster's fallback if this peer were lost; empty if it is unknown."""
    with_keys: Callable[[str], str] = field(default=str, compare=False)
    """Puts the keys into a text that names actions."""

    @property
    def n_rows(self) -> int:
        """Lines it takes."""
        return 1 + len(self.peer.devices) + len(self._below())

    def strips(self, palette: Palette) -> list[Strip]:
        """Its lines."""
        width = self.width
        return [
            self._name(palette),
            *(
                _device_row(device, fill, width, palette)
                for device, fill in zip(self.peer.devices, self.fills, strict=True)
            ),
            *(line(self._styled(row, palette), width) for row in self._below()),
        ]

    def _name(self, palette: Palette) -> Strip:
        peer = self.peer
        look = look_of(peer)
        away = peer.state is PeerState.UNREACHABLE
        left: list[Part] = [
            ("▸" if self.cursor else " ", palette.key),
            (f"{look.sign} ", getattr(palette, look.tone)),
            (
                clip(peer.name, max(6, self.width - 23)) + " ",
                palette.dim if away else palette.strong,
            ),
            (clip(role_word(peer), 6), palette.text),
        ]
        return spread(left, [self._state(palette)], self.width)

    def _state(self, palette: Palette) -> Part:
        if self.peer.state in _STEADY:
            return path_words(self.peer), palette.dim
        tone = look_of(self.peer).tone
        return state_words(self.peer, self.age), getattr(palette, tone)

    def _below(self) -> list[tuple[str, str]]:
        """The peer's work, its trouble or a hint: style and text."""
        if self.peer.work is not None:
            return self._work()
        hint = hint_of(self.peer)
        key = [("hint", f"{hint.key} {hint.text}")] if hint else []
        if key and not self.selected:
            return key
        data = data_text(self.peer) if self.selected else ""
        rest = self.without if self.selected else ""
        told = (
            note_text(self.peer),
            data and f"data: {data}",
            rest and f"if lost: {rest}",
        )
        return [row for text in told for row in self._wrapped(text)] + key

    def _work(self) -> list[tuple[str, str]]:
        work = self.peer.work
        assert work is not None
        bar = [] if work.progress is None else [("bar", "")]
        title = work.title if self.selected else ""
        end = [("hint", "{peers.cancel:short} ends it")] if self.selected else []
        return [*self._wrapped(title), *bar, *self._wrapped(work.detail), *end]

    def _wrapped(self, text: str) -> list[tuple[str, str]]:
        room = self.width - INDENT
        if not self.selected:
            return [("dim", text)] if text else []
        return [("dim", piece) for piece in wrapped(text, room, NOTE_LINES)]

    def _styled(self, row: tuple[str, str], palette: Palette) -> list[Part]:
        kind, text = row
        indent = (" " * INDENT, palette.dim)
        if kind == "bar":
            return [indent, *self._bar(palette)]
        if kind == "hint":
            key, _, rest = self.with_keys(text).partition(" ")
            return [indent, (key, palette.key), (f" {rest}", palette.text)]
        return [indent, (text, palette.dim)]

    def _bar(self, palette: Palette) -> list[Part]:
        progress = (self.peer.work.progress if self.peer.work else None) or 0.0
        room = min(max(self.width - INDENT - 6, 4), 30)
        cells = memory_bar(
            progress, 1.0, room, full=palette.accent, empty=palette.track
        )
        return [*cells, (f" {format_percent(progress):>5}", palette.text)]


def _device_row(device: Device, fill: Fill, width: int, palette: Palette) -> Strip:
    """Letter, name, bar, figures; the bar gives way."""
    full = palette.dim if fill.mark is None else palette.device(fill.mark)
    figures = f" {told(short_part_of(fill.taken, fill.whole), fill.source):>12}"
    room = width - INDENT - 2 - DEVICE_WIDTH - len(figures)
    cells = max(room, 0)
    bar = memory_bar(fill.taken, fill.whole, cells, full=full, empty=palette.track)
    mark = "·" if fill.mark is None else letter(fill.mark)
    left = [
        (f"   {mark} ", full),
        (clip(device.name, DEVICE_WIDTH), palette.text),
        *(bar if room >= 4 else ()),
    ]
    tone = palette.bad if fill.misfit else style_of(fill.source, palette)
    return spread(left, [(figures, tone)], width)
