"""The pane of machines: processors, memory and GPUs, each with its last minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from rich.style import Style
from textual.strip import Strip

from backends.machine_names import LOCAL
from backends.state import MachineHistory, UsageSample
from backends.units import format_count, format_mb_s, format_percent, format_speed
from tui.model.process_words import (
    gpu_name,
    gpu_text,
    history,
    memory_used_text,
    traffic_text,
)
from tui.model.quantities import BYTES_PER_MB, UNKNOWN, tick_text
from tui.widgets.rate_graph import axis_top
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import (
    Drawn,
    Part,
    StripWidget,
    block,
    clip,
    line,
    parts_width,
)

SPANS_S = (60, 300, 600)
LABEL_CELLS = 9
LABEL_CELLS_WIDE = 17
SCALE_CELLS = 9
FIGURE_CELLS = 22
GPU_FIGURE_CELLS = 48
"""All that a driver tells; with less room its end is cut."""
INDENT = 2
WIDE_FROM = 110
CURVE_ROWS_MAX = 4
FRAME_ROWS = 5
"""Around the curves of half a screen: status line, borders, times."""
LOAD_HIGH = 0.9
Figure = Callable[[UsageSample], float | None]
FULL = "100 %"


class Curve(NamedTuple):
    """One figure of a machine over the last minutes."""

    label: str
    scale: str
    """The top in words."""
    top: float
    figure: Figure
    told: str
    """The figure now, in words."""


class UsageView(StripWidget):
    """A block for each machine; a column of a curve is a stretch of time."""

    ALLOW_SELECT = True
    DEFAULT_CSS = "UsageView { height: auto; background: $background; }"

    machines: Drawn[tuple[MachineHistory, ...]] = Drawn(())
    span_s: Drawn[int] = Drawn(SPANS_S[1])

    def __init__(self) -> None:
        super().__init__()
        self._blocks: list[tuple[MachineHistory, list[Curve]]] = []
        """As last shown: each machine with what is known of it."""

    def show(self, machines: tuple[MachineHistory, ...]) -> None:
        before = len(self._blocks), self._n_curves
        self._blocks = self._with_curves(machines)
        if before != (len(self._blocks), self._n_curves):
            self.refresh(layout=True)
        self.machines = machines

    def watch_span_s(self) -> None:
        self._blocks = self._with_curves(self.machines)

    def _with_curves(
        self, machines: Sequence[MachineHistory]
    ) -> list[tuple[MachineHistory, list[Curve]]]:
        return [(one, [*curves_of(one, self.span_s)]) for one in machines]

    @property
    def _n_curves(self) -> int:
        return sum(len(curves) for _, curves in self._blocks)

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        return len(self._blocks) + self._n_curves * self._curve_rows + 1

    @property
    def _curve_rows(self) -> int:
        # As many as leave half of the screen to the processes.
        room = self.app.size.height // 2 - len(self._blocks) - FRAME_ROWS
        return min(max(room // max(self._n_curves, 1), 1), CURVE_ROWS_MAX)

    def draw(self, width: int, height: int) -> list[Strip]:
        if not self._blocks:
            return [line([("No figures yet.", self.palette.dim)], width)]
        rows = []
        for one, curves in self._blocks:
            rows.append(self._head(one, width))
            for curve in curves:
                rows += self._curve(curve, one.samples, width)
        return [*rows, self._times(width)]

    def _head(self, one: MachineHistory, width: int) -> Strip:
        palette = self.palette
        name = "this machine" if one.machine == LOCAL else one.machine
        parts: list[Part] = [(f"{safe_line(name)}  ", palette.strong)]
        if one.now is None:
            return line([*parts, (safe_line(one.why), palette.warn)], width)
        cores = one.now.cores_permille
        if cores:
            parts.append((f"{format_count(len(cores), 'core')} ", palette.dim))
        traffic = traffic_text(one.now)
        room = width - parts_width(parts) - len(traffic) - 2
        if room < min(len(cores), width // 3):
            traffic, room = "", width - parts_width(parts)
        parts += self._cores(cores, room)
        return line([*parts, (f"  {traffic}", palette.dim)], width)

    def _cores(self, cores: Sequence[int], room: int) -> Iterator[Part]:
        # Of more cores than columns, the mean of neighbours.
        together = max(-(-len(cores) // max(room, 1)), 1)
        for at in range(0, len(cores), together):
            some = cores[at : at + together]
            share = sum(some) / len(some) / 1000
            yield block(share, 1.0), self._tone(share)

    def _tone(self, share: float) -> Style:
        return self.palette.warn if share >= LOAD_HIGH else self.palette.graph

    def _curve(
        self, curve: Curve, samples: Sequence[UsageSample], width: int
    ) -> Iterator[Strip]:
        palette, cells = self.palette, self._curve_cells(width)
        values = history(samples, curve.figure, self.span_s, cells)
        blank = " " * (cells - len(values))
        rows = self._curve_rows
        for row in reversed(range(rows)):
            is_first = row == rows - 1
            label = clip(curve.label if is_first else "", _label_cells(width))
            scale = curve.scale if is_first else "0" * (row == 0)
            bars = "".join(block(value, curve.top, row, rows) for value in values)
            parts: list[Part] = [
                (" " * INDENT + label, palette.text),
                (f"{scale:>{SCALE_CELLS - 1}}▕", palette.dim),
                (blank + bars, palette.graph),
                (f" {curve.told}" if is_first else "", palette.text),
            ]
            yield line(parts, width)

    def _curve_cells(self, width: int) -> int:
        has_gpus = any(one.now and one.now.gpus for one in self.machines)
        figures = FIGURE_CELLS
        if has_gpus:
            figures = GPU_FIGURE_CELLS if width >= WIDE_FROM else GPU_FIGURE_CELLS // 2
        room = width - INDENT - _label_cells(width) - SCALE_CELLS - figures
        return max(min(room, self.span_s), 1)

    def _times(self, width: int) -> Strip:
        """``5 min ago       now`` below the curves."""
        cells = self._curve_cells(width)
        step = -(-self.span_s // cells)
        drawn = min(-(-self.span_s // step), cells)
        ago = f"{self.span_s // 60} min ago"
        left = " " * (INDENT + _label_cells(width) + SCALE_CELLS + cells - drawn)
        text = f"╵{ago}{'now':>{max(drawn - len(ago) - 1, 4)}}"
        return line([(left + text, self.palette.dim)], width)


def _label_cells(width: int) -> int:
    return LABEL_CELLS_WIDE if width >= WIDE_FROM else LABEL_CELLS


def curves_of(one: MachineHistory, span_s: int) -> Iterator[Curve]:
    """The figures of a machine that are known, GPUs where drivers tell of them."""
    now, samples = one.now, one.samples
    if now is None:
        return
    cpu = UNKNOWN if now.cpu_share is None else format_percent(now.cpu_share)
    yield Curve("cpu", FULL, 1.0, lambda s: s.cpu, cpu)
    memory = memory_used_text(now)
    yield Curve("memory", FULL, 1.0, lambda s: s.memory, memory)
    for index, gpu in enumerate(now.gpus):
        name = safe_line(gpu_name(gpu))
        yield Curve(name, FULL, 1.0, _load_of(index), gpu_text(gpu))
    shown = [sample for sample in samples if sample.at > samples[-1].at - span_s]
    for label, figure, words, unit in RATES:
        if any(figure(sample) is not None for sample in samples):
            top = axis_top(max(figure(sample) or 0.0 for sample in shown))
            last = figure(samples[-1])
            told = UNKNOWN if last is None else words(last)
            yield Curve(label, f"{tick_text(top)} {unit}", float(top), figure, told)


def _load_of(index: int) -> Figure:
    return lambda s: s.gpus[index] if index < len(s.gpus) else None


def _megabytes(sample: UsageSample) -> float | None:
    rate = sample.link_bytes_per_s
    return None if rate is None else rate / BYTES_PER_MB


RATES: tuple[tuple[str, Figure, Callable[[float], str], str], ...] = (
    ("link", _megabytes, format_mb_s, "MB/s"),
    ("tokens", lambda s: s.tok_per_s, format_speed, "tok/s"),
)
"""Figures without a natural end: label, figure, its words, unit of the scale."""
