"""The time of a token as one line: the head, then worker by worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from textual.reactive import reactive

from backends.link.figures import TokenTotals, WorkerTimes, token_totals
from tui.model.draft import marks_for
from tui.model.names import letter
from tui.model.quantities import ms_text, shared_text
from tui.model.token_time import PARTS, cells_of
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import Part, StripWidget, clip, fitting, line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.style import Style
    from textual.strip import Strip

    from backends.state import ClusterSnapshot

LABEL = "token  "
NO_WORKERS = "no workers: a token never leaves this machine"
NO_RELAYS = "no relays: what crosses the links is not measured"
NO_TOKEN = "no token yet"
WIDE_FROM = 70
GLYPHS = {part.name: part.glyph for part in PARTS} | {"head": PARTS[0].glyph}


class Stretch(NamedTuple):
    """One part of a token's time in somebody's colour."""

    part: str
    ms: float
    mark: int | None
    """Number of the device's letter and colour; None for a device unknown."""
    name: str


class TokenBar(StripWidget):
    """The median token as one bar: lettered blocks compute, shades are on the way."""

    DEFAULT_CSS = """
    TokenBar {
        height: 1;
    }
    """

    totals: reactive[TokenTotals | None] = reactive(None, init=False, repaint=False)
    said: reactive[str] = reactive("", init=False, repaint=False)
    """Why there is nothing to draw."""

    def __init__(self) -> None:
        super().__init__()
        self._devices: dict[str, int] = {}

    def show(self, snapshot: ClusterSnapshot, marks: Sequence[str]) -> None:
        """Show a snapshot; ``marks`` are the devices in the order of their colours."""
        devices = device_marks(snapshot, marks)
        if devices != self._devices:
            self._devices = devices
            self.redraw()
        self.totals = token_totals(snapshot.links)
        self.said = why_no_bar(snapshot, self.totals)

    def watch_totals(self) -> None:
        self.redraw_changed()

    def watch_said(self) -> None:
        self.redraw_changed()

    def draw(self, width: int, height: int) -> list[Strip]:
        dim = self.palette.dim
        if self.said or self.totals is None:
            return [line([(LABEL, dim), (self.said, dim)], width)]
        percentiles = self._percentiles(self.totals, width)
        taken = len(LABEL) + sum(len(text) for text, _ in percentiles)
        bar = self._bar(stretches(self.totals, self._devices), max(width - taken, 1))
        return [line([(LABEL, dim), *bar, *percentiles], width)]

    def _bar(self, parts: Sequence[Stretch], room: int) -> list[Part]:
        times = [part.ms for part in parts]
        cells = cells_of(times, max(sum(times), 1e-9), room)
        drawn = [
            (_text(part, count), self._style(part))
            for part, count in zip(parts, cells, strict=True)
            if count
        ]
        return [*drawn, (" " * (room - sum(cells)), self.palette.dim)]

    def _style(self, part: Stretch) -> Style:
        palette = self.palette
        if part.mark is None:
            return palette.dim
        computes = part.part in {"head", "compute"}
        return palette.fill(part.mark) if computes else palette.device(part.mark)

    def _percentiles(self, totals: TokenTotals, width: int) -> list[Part]:
        is_wide = width >= WIDE_FROM
        gap = "   " if is_wide else " "
        median = "pass p50" if is_wide else "p50"
        parts: list[Part] = [(_shared(totals, gap), self.palette.dim)]
        for name, value_ms in ((median, totals.p50_ms), ("p99", totals.p99_ms)):
            parts += [
                (f"{gap}{name} ", self.palette.dim),
                (ms_text(value_ms), self.palette.strong),
                (" ms", self.palette.dim),
            ]
        return parts


def _shared(totals: TokenTotals, gap: str) -> str:
    text = shared_text(totals.tokens_per_pass)
    return f"{gap}{text}" if text else ""


def device_marks(snapshot: ClusterSnapshot, marks: Sequence[str]) -> dict[str, int]:
    """The colour of each worker's device, and of the head's own under its name."""
    plan = snapshot.plan
    if plan is None:
        return {}
    order = marks_for(marks, plan.split)
    found = {
        worker.name: order.index(device)
        for worker in plan.workers
        for device in reversed(worker.device_ids)
        if device in order
    }
    own = [
        share.device
        for share in sorted(plan.split.shares, key=lambda share: -share.layers)
        if share.device.startswith(f"{plan.head}/")
    ]
    return found | ({"": order.index(own[0])} if own else {})


def why_no_bar(snapshot: ClusterSnapshot, totals: TokenTotals) -> str:
    """In few words; empty when there is a token to draw."""
    if snapshot.plan is not None and not snapshot.plan.workers:
        return NO_WORKERS
    if not snapshot.links:
        return NO_RELAYS
    if totals.head_ms is not None:
        return ""
    plain = [link for link in snapshot.links if link.mode == "plain"]
    if len(plain) < len(snapshot.links):
        return NO_TOKEN
    return f"not metered: {safe_line(plain[0].reason) or 'not understood'}"


def stretches(totals: TokenTotals, marks: dict[str, int]) -> list[Stretch]:
    """The parts of a token in the order they happen."""
    name = " + ".join(("head", *map(safe_line, totals.unread)))
    head = Stretch("head", totals.head_ms or 0.0, marks.get(""), name)
    workers = [
        stretch for times in totals.workers for stretch in _of_worker(times, marks)
    ]
    return [head, *workers]


def _of_worker(times: WorkerTimes, marks: dict[str, int]) -> list[Stretch]:
    mark, name = marks.get(times.worker), safe_line(times.worker)
    return [
        Stretch("up", times.up_ms, mark, name),
        Stretch("compute", times.compute_ms, mark, name),
        Stretch("down", times.down_ms, mark, name),
        Stretch("wait", times.wait_ms, mark, name),
    ]


def _text(part: Stretch, cells: int) -> str:
    """A block says whose it is and how long it takes, as far as there is room."""
    if part.part not in {"head", "compute"}:
        return GLYPHS[part.part] * cells
    if part.mark is None:
        return GLYPHS[part.part] * cells
    sign, time_text = letter(part.mark), ms_text(part.ms).strip()
    candidates = (
        f"{sign} {part.name} {time_text}",
        f"{sign} {time_text}",
        sign,
    )
    return clip(fitting(candidates, cells), cells)
