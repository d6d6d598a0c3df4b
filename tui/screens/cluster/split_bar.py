"""The split bar: layers over devices, with boundaries one drags or moves by key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate, groupby, pairwise

import msgspec
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Offset, Region
from textual.reactive import reactive
from textual.strip import Strip
from textual.timer import Timer

from backends.split.device_memory import DeviceLoad
from backends.split.layout import counts, devices, format_range
from backends.state import LayerRange, Split
from backends.units import MS_PER_S
from tui.actions import bindings
from tui.app.console import console_of
from tui.model.edit import Edit, runs_now
from tui.model.editor import PlanEditor
from tui.model.names import device_label, letter
from tui.model.quantities import common_unit, in_unit, part_of
from tui.model.token_time import BarSegment, Leg, leg_shares, pass_legs, place_of
from tui.widgets.keys import with_keys
from tui.widgets.number_strip import NumberStrip
from tui.widgets.palette import Palette
from tui.widgets.sources import OVER, TIGHT, style_of, tick_of
from tui.widgets.strips import Drawn, Part, clip, fitting, line, selected

REACH = 1
"""Columns beside a handle that still take hold of it."""


class BarGeometry(msgspec.Struct, frozen=True, dict=True):
    """A bar of ``width`` columns that shows these whole-layer counts.

    Every segment keeps one column, if there is room for that, so that a device without
    layers stays visible; every boundary has a column of its own for its handle.
    """

    width: int
    counts: tuple[int, ...]

    @cached_property
    def total(self) -> int:
        return sum(self.counts)

    @cached_property
    def positions(self) -> tuple[int, ...]:
        return tuple(accumulate(self.counts))[:-1]

    @cached_property
    def least(self) -> int:
        """Columns every segment has at least."""
        return 1 if self.width >= 2 * len(self.counts) - 1 else 0

    @cached_property
    def spare(self) -> int:
        """Columns shared out by layers."""
        handles = len(self.counts) - 1
        return max(0, self.width - handles - self.least * len(self.counts))

    def handle_x(self, index: int) -> int:
        return self._handle_offset(index) + self._scaled(self.positions[index])

    def span(self, index: int) -> tuple[int, int]:
        """Columns of a segment: first, and one past the last."""
        start = self.handle_x(index - 1) + 1 if index else 0
        if index < len(self.positions):
            return start, self.handle_x(index)
        return start, max(start, self.width)

    def position_at(self, index: int, x: float) -> int:
        if not self.spare:
            return self.positions[index]
        position = (x - self._handle_offset(index)) * self.total / self.spare
        return min(max(round(position), 0), self.total)

    def boundary_near(self, x: int) -> int | None:
        """The boundary whose handle is at a column or beside it."""
        near = min(
            range(len(self.positions)),
            key=lambda index: abs(self.handle_x(index) - x),
            default=None,
        )
        if near is None or abs(self.handle_x(near) - x) > REACH:
            return None
        return near

    def segment_at(self, x: int) -> int:
        return sum(self.handle_x(index) < x for index in range(len(self.positions)))

    def layer_edges(self, index: int) -> frozenset[int]:
        """Columns of a segment that end a layer, where layers are wide enough."""
        start, end = self.span(index)
        count, width = self.counts[index], end - start
        if not count or width < 2 * count:
            return frozenset()
        return frozenset(start + width * n // count - 1 for n in range(1, count))

    def _handle_offset(self, index: int) -> int:
        return (index + 1) * self.least + index

    def _scaled(self, position: int) -> int:
        if not self.total:
            return 0
        return (2 * position * self.spare + self.total) // (2 * self.total)


def layer_span(load: DeviceLoad, n_layer: int) -> str:
    """``0–38``, ``39–46 + output``, or ``—`` for none."""
    if not load.n_layers:
        return "—"
    return format_range(LayerRange(load.device, load.first, load.last), n_layer)


def short_span(load: DeviceLoad, n_layer: int) -> str:
    """Like ``layer_span``, the output as ``+o``: for narrow places."""
    return layer_span(load, n_layer).replace(" + output", "+o").replace("output", "o")


def span_width(n_layer: int, *, short: bool = False) -> int:
    digits = len(str(n_layer - 1))
    return 2 * digits + 1 + (2 if short else len(" + output"))


def _of_available(load: DeviceLoad, available_bytes: int | None) -> str:
    if available_bytes is not None:
        return part_of(load.total_bytes, available_bytes)
    unit = common_unit(load.total_bytes)
    return f"{in_unit(load.total_bytes, unit)} {unit}"


def _fitted(texts: Iterable[str], span: tuple[int, int], style: Style) -> Part:
    cells = span[1] - span[0]
    return clip(fitting(texts, cells), cells), style


HANDLE = "┃"
PICKED = "▼"
LAYER_EDGE = "▕"
HATCH = "╱"
GHOST = "┊"
"""A boundary of the split that runs."""
EMPTY = "·"


PULSE_HZ = 5.0
"""Frames of the token pulse; many tokens a second are one pulse that runs."""
PULSE_S, PULSE_MAX_S = 2.5, 8.0
"""A pass is shown in no less and no more."""
PULSE_CELLS = 2
TRAIL = 0.4
"""Part of the way to the text's colour that the ground of the longest stretch goes."""
TRAIL_STEPS = 8
"""So many grounds are mixed, and kept."""
LATE_MAX = 4
"""Frames in a row that the terminal was not ready for, before the pulse rests."""


class SplitBar(NumberStrip, can_focus=True):
    """One bar of layers per device, its boundaries draggable.

    Mouse and keys do the same: they change the editor, and the bar follows the edit.
    """

    HELP = """\
## Split

Which device holds which layers. The **output** (norm and head) counts as one layer
more. Drag a boundary `┃`, or use the keys: they move the *picked* boundary, marked `▼`.

Press **{split.set:or}**, type a number and press it again to give the device left of
the boundary that many layers; a number alone changes screens.

`┊` are the boundaries of the split that runs. `✗` and hatching mean: more than the
device has; `!`: next to nothing is left there. Nothing runs until you launch.

While tokens come, a **pulse** runs over the bar: one typical pass, slowed down, slowest
where its time goes. It stands at an edge as long as the link takes, and leaves a trail,
brightest where a pass takes longest. **{cluster.pulse}** turns it off or on. With
`NO_MOTION` it never runs, and it rests while the terminal is slow to take what is
written.

The **predicted** speed is that of one client with *depth* tokens in its context, with
the band that holds nine of ten runs. It comes from measured runs, and before the first
from usual speeds. The last answer is compared at its own depth. Below the pane stands,
before a launch, how fast the best plan is, and one device alone, if that is faster.
"""
    BINDINGS = bindings("split")
    DEFAULT_CSS = "SplitBar { height: 4; width: 1fr; pointer: ew-resize; }"

    edit: reactive[Edit | None] = reactive(None, init=False, repaint=False)
    picked: reactive[int] = reactive(0, init=False)
    running: Drawn[Split | None] = Drawn(None)
    """The split that runs, whose boundaries stay on the bar; None for none."""

    def __init__(self, editor: PlanEditor, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._editor = editor
        self._grab_x = 0
        """The column at which the mouse took a boundary."""
        self._legs: tuple[Leg, ...] = ()
        """The way of the pulse; none while it rests."""
        self._phase = 0.0
        self._period_s = PULSE_S
        self._late = 0
        self._lit: tuple[int, int] | None = None
        """Columns of the pulse: the first, and one past the last."""
        self._shares: tuple[float, ...] = ()
        """Brightness of the trail in each column."""
        self._passed = 0
        """Columns that the pulse has left behind in this pass."""
        self._looks: dict[int, tuple[Strip, tuple[float, ...], Strip, Strip]] = {}
        """By line of the bar: the row, the brightness, and how both make it look."""
        self._frames: Timer | None = None

    def on_mount(self) -> None:
        self._frames = self.set_interval(1 / PULSE_HZ, self._frame, pause=True)

    def follow(self) -> None:
        """Show the edit beside the running split.

        A number being typed goes on while the split is the one it began with: news
        about devices come all the time.
        """
        edit, running = self._editor.edit, runs_now(self._editor.snapshot)
        self.running = running.split if running else None
        if self.dragging and not self._editor.dragging:
            self.release()
        before, split = self.edit and self.edit.split, edit and edit.split
        if split != before:
            self.typed = None
        if split and not (before and _same_shape(before, split)):
            self.edit = edit
            self.picked = _first_shared(split)
        self.edit = edit
        self._follow_pass()

    # --- the token pulse ----------------------------------------------------------

    def _follow_pass(self) -> None:
        snapshot, edit = self._editor.snapshot, self.edit
        comes = snapshot is not None and snapshot.speed.tok_per_s is not None
        if not comes:
            self._late = 0
        self._legs = ()
        shown = console_of(self).pulses and self._late < LATE_MAX
        if comes and shown and edit and self._editor.unchanged and not self.dragging:
            owner = edit.plan.worker_of
            spans = enumerate(edit.split.shares)
            totals = self._editor.facts.totals
            self._legs = pass_legs(
                [
                    BarSegment(
                        *self.geometry.span(at),
                        share.layers,
                        owner[share.device].name if share.device in owner else "",
                    )
                    for at, share in spans
                ],
                totals,
            )
            pass_s = (totals.p50_ms or 0.0) / MS_PER_S
            self._period_s = min(max(pass_s, PULSE_S), PULSE_MAX_S)
            shares = leg_shares(self._legs, self.content_size.width)
            self._shares = tuple(
                round(share * TRAIL_STEPS) / TRAIL_STEPS * TRAIL for share in shares
            )
        if self._frames is not None and self._legs:
            self._frames.resume()
        elif self._frames is not None:
            self._rest()

    def _frame(self) -> None:
        console = console_of(self)
        if not console.is_watched(self):
            self._rest()
        elif console.writes_wait:
            self._late += 1
            if self._late >= LATE_MAX:
                self._rest()
        else:
            self._late = 0
            self._phase = (self._phase + 1 / (PULSE_HZ * self._period_s)) % 1.0
            self._light(place_of(self._legs, self._phase))

    def _rest(self) -> None:
        if self._frames is not None:
            self._frames.pause()
        self._light(None)

    def _light(self, column: float | None) -> None:
        """Show the pulse there, painting only the cells that it leaves and enters.

        Those that it leaves stay a little brighter until the pass ends.
        """
        before, width = self._lit, self.content_size.width
        passed = self._passed
        self._lit, self._passed = None, 0
        if column is not None:
            start = min(max(int(column), 0), max(width - PULSE_CELLS, 0))
            self._lit, self._passed = (start, min(start + PULSE_CELLS, width)), start
        if (self._lit, self._passed) != (before, passed):
            spans = [span for span in (before, self._lit) if span]
            if self._passed < passed:
                spans.append((0, passed))
            first, end = min(s for s, _ in spans), max(e for _, e in spans)
            top, rows = self._bar_rows(self.content_size.height)
            self.refresh(Region(first, top, end - first, rows))

    def render_line(self, y: int) -> Strip:
        row = super().render_line(y)
        top, rows = self._bar_rows(self.content_size.height)
        if self._lit is None or not top <= y < top + rows:
            return row
        start, end = self._lit
        trail, pulse = self._looks_of(row, y)
        parts = trail.crop(0, start), pulse.crop(start, end), row.crop(end)
        return Strip.join(parts)

    def _looks_of(self, row: Strip, y: int) -> tuple[Strip, Strip]:
        """All of a row as the pulse leaves it behind, and as the pulse passes it.

        Rows and brightness are the same for many passes of many frames.
        """
        known = self._looks.get(y)
        if known is None or known[0] is not row or known[1] != self._shares:
            left = trailed(row, self._shares, self.palette)
            pulse = selected(row, (0, -1), self.palette.pulse)
            self._looks[y] = known = row, self._shares, left, pulse
        return known[2:]

    def _bar_rows(self, height: int) -> tuple[int, int]:
        return int(height > 1), max(1, height - 2)

    @property
    def geometry(self) -> BarGeometry:
        counts = self.edit.counts if self.edit else (1,)
        return BarGeometry(self.content_size.width, counts)

    @property
    def handle_x(self) -> int:
        return self.geometry.handle_x(self.picked)

    @property
    def n_boundaries(self) -> int:
        return len(self.edit.split.shares) - 1 if self.edit else 0

    @property
    def takes_number(self) -> bool:
        return self.n_boundaries > 0 and not self.dragging

    def take_number(self, text: str) -> None:
        if self.edit is None:
            return
        most = self._most(self.edit)
        if int(text) > most:
            what = f"At most {most} layers here: set to {most}"
            console_of(self).tell(what, "warning")
        self._editor.give(self.picked, int(text))
        self.follow()

    def _most(self, edit: Edit) -> int:
        return sum(edit.counts[self.picked : self.picked + 2])

    def press_spots(self) -> list[Offset]:
        """Give the boundaries, which a click picks."""
        top, _ = self._bar_rows(self.content_size.height)
        bar = self.geometry
        return [Offset(bar.handle_x(at), top) for at in range(self.n_boundaries)]

    def draw(self, width: int, height: int) -> list[Strip]:
        if self.edit is None or width < 1:
            return []
        edit, bar = self.edit, self.geometry
        n_bar = self._bar_rows(height)[1]
        plain, lettered = self._bars(edit, bar)
        lines = [plain] * n_bar
        lines[(n_bar - 1) // 2] = lettered
        if height > 1:
            lines.insert(0, self._names(edit, bar))
        if height > 2:
            typing = self.typed is not None
            lines.append(self._entry(edit) if typing else self._ranges(edit, bar))
        return lines[:height]

    def _bars(self, edit: Edit, bar: BarGeometry) -> tuple[Strip, Strip]:
        """The bar, and the same with each device's letter."""
        ghost, palette = self._ghost(), self.palette
        plain: list[Part] = []
        letters: list[tuple[int, Part]] = []
        for index, share in enumerate(edit.split.shares):
            start, end = bar.span(index)
            mark = edit.mark(share.device)
            fill, edge = palette.fill(mark), palette.edge(mark)
            if not share.layers:
                fill = palette.device(mark)
                plain += [(EMPTY, fill)] * (end - start)
                letters += [(x, (letter(mark), fill)) for x in range(start, end)]
            else:
                free = (HATCH, edge) if share.device in edit.misfits else (" ", fill)
                cells = [free] * (end - start)
                edges = bar.layer_edges(index)
                for x in edges:
                    cells[x - start] = (LAYER_EDGE, edge)
                for x in ghost & set(range(start, end)):
                    cells[x - start] = (GHOST, fill)
                plain += cells
                if cells:
                    middle = start + (end - start - 1) // 2
                    middle -= middle in edges | ghost
                    letters.append((middle, (letter(mark), fill)))
            plain.append((HANDLE, self._handle_style(index)))
        lettered = plain.copy()
        for x, cell in letters:
            lettered[x] = cell
        return _joined(plain[:-1], bar.width), _joined(lettered[:-1], bar.width)

    def _names(self, edit: Edit, bar: BarGeometry) -> Strip:
        """Letter and name over each device's segment; the pick over its handle."""
        parts: list[Part] = []
        for index, share in enumerate(edit.split.shares):
            mark, label = edit.mark(share.device), device_label(share.device)
            own = letter(mark)
            texts = f"{own} {label}", f"{own} {label.split()[0]}", own
            parts.append(_fitted(texts, bar.span(index), self.palette.device(mark)))
            pick = PICKED if index == self.picked else " "
            parts.append((pick, self._handle_style(index)))
        return line(parts[:-1], bar.width)

    def _ranges(self, edit: Edit, bar: BarGeometry) -> Strip:
        """Layers and bytes under each device's segment, and whether they fit."""
        parts: list[Part] = []
        for index, load in enumerate(edit.loads):
            over, tight = load.device in edit.misfits, load.device in edit.tight
            span = short_span(load, edit.model.n_layer)
            size = _of_available(load, edit.available.get(load.device))
            total = size.partition(" of ")[0]
            # The tick is for what was checked, not for a prediction.
            mark = OVER if over else TIGHT if tight else tick_of(load.source)
            texts = f"{span} · {size} {mark}", f"{span} · {total} {mark}"
            least = f"{span} {mark}", mark if over or tight else span
            style = style_of(load.source, self.palette)
            if over or tight:
                style = self.palette.bad if over else self.palette.warn
            parts.append(_fitted((*texts, *least), bar.span(index), style))
            parts.append((" ", self.palette.dim))
        return line(parts[:-1], bar.width)

    def _entry(self, edit: Edit) -> Strip:
        mark = edit.mark(edit.split.shares[self.picked].device)
        plain, key, dim = self.palette.text, self.palette.key, self.palette.dim
        typed, most = self.typed or "", self._most(edit)
        parts = [
            (f"{letter(mark)} gets ", plain),
            (f"{typed}▏", key),
            (
                f" of {most} layers   ",
                self.palette.bad if int(typed or 0) > most else plain,
            ),
            (with_keys(self.app, "{split.set:or}"), key),
            (" applies   ", dim),
            (with_keys(self.app, "{split.cancel}"), key),
            (" cancels", dim),
        ]
        return line(parts, self.content_size.width)

    def _handle_style(self, index: int) -> Style:
        if index != self.picked:
            return self.palette.dim
        active = self.has_focus or self.dragging
        return self.palette.key if active else self.palette.handle

    def _ghost(self) -> frozenset[int]:
        runs, edit = self.running, self.edit
        if runs is None or edit is None or devices(edit.split) != devices(runs):
            return frozenset()
        there, here = BarGeometry(self.content_size.width, counts(runs)), self.geometry
        pairs = enumerate(zip(there.positions, here.positions, strict=True))
        return frozenset(there.handle_x(i) for i, (one, two) in pairs if one != two)

    def validate_picked(self, picked: int) -> int:
        return min(max(picked, 0), max(self.n_boundaries - 1, 0))

    def watch_edit(self) -> None:
        self.picked = self.validate_picked(self.picked)
        self.redraw_changed()

    def watch_picked(self) -> None:
        self.typed = None
        self.redraw()

    def action_move(self, by: int) -> None:
        if not self.dragging:
            self._editor.move(self.picked, by)
            self.follow()

    def action_move_to_end(self, direction: int) -> None:
        self.action_move(direction * (self.geometry.total + 1))

    def action_pick(self, by: int) -> None:
        if self.n_boundaries and not self.dragging:
            self.picked = (self.picked + by) % self.n_boundaries

    def action_reorder(self, by: int) -> None:
        if self.dragging:
            return
        if self._editor.exchange(self.picked, by):
            self.follow()
            self.picked += by
        else:
            self.app.bell()

    def action_undo(self) -> None:
        self._step(self._editor.undo)

    def action_redo(self) -> None:
        self._step(self._editor.redo)

    def _step(self, step: Callable[[], bool]) -> None:
        if self.dragging or not step():
            self.app.bell()
        self.follow()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in {"move", "move_to_end", "pick", "reorder"}:
            return self.n_boundaries > 0
        return True

    def on_mouse_down(self, event: events.MouseDown) -> None:
        if event.button != 1 or self.edit is None or not self.n_boundaries:
            return
        event.stop()
        x = event.get_content_offset_capture(self).x
        near = self.geometry.boundary_near(x)
        if near is None:
            self.picked = min(self.geometry.segment_at(x), self.n_boundaries - 1)
            return
        self.picked = near
        self._editor.grab(near)
        self._grab_x = x
        self.grab()

    def drag_to(self, x: int) -> None:
        at = self.geometry.position_at(self.picked, x)
        # Bar and figures follow together when the app tells of the edit: one paint.
        self._editor.drag_to(None if x == self._grab_x else at)

    def drop(self, *, cancel: bool = False) -> None:
        self.release()
        if cancel:
            self._editor.cancel_drag()
        else:
            self._editor.drop()
        self.follow()


def _joined(cells: Iterable[Part], width: int) -> Strip:
    segments = [
        Segment("".join(text for text, _ in group), style)
        for style, group in groupby(cells, key=lambda cell: cell[1])
    ]
    return Strip(segments).adjust_cell_length(width)


def trailed(row: Strip, shares: Sequence[float], palette: Palette) -> Strip:
    """A row whose first cells have a ground so far on its way to the text's colour."""
    # The bar may have become narrower since the pass began.
    shares = shares[: row.cell_length]
    if not shares:
        return row
    groups = [(share, len([*cells])) for share, cells in groupby(shares)]
    cuts = [*accumulate(cells for _, cells in groups), row.cell_length]
    plain = palette.text
    lit = [
        segment
        if not share
        else Segment(segment.text, palette.lit(segment.style or plain, share))
        for (share, _), part in zip([*groups, (0.0, 0)], row.divide(cuts), strict=True)
        for segment in part
    ]
    return Strip(lit, row.cell_length)


def _first_shared(split: Split) -> int:
    pairs = enumerate(pairwise(split.shares))
    return next((index for index, (a, b) in pairs if a.layers and b.layers), 0)


def _same_shape(one: Split, other: Split) -> bool:
    return one.n_layer == other.n_layer and {s.device for s in one.shares} == {
        s.device for s in other.shares
    }
