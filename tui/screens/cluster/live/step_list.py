"""The steps of a launch or a stop: what is done, how long it took, how far it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.reactive import reactive

from backends.state import StepState
from backends.units import format_percent, format_seconds
from tui.widgets.blocks import memory_bar
from tui.widgets.strips import Part, StripWidget, clip, line, parts_width

if TYPE_CHECKING:
    from rich.style import Style
    from textual.strip import Strip

    from backends.state import Step

TITLE_WIDTH_MAX = 34
TIME_WIDTH = 9
BAR_WIDTH_MAX = 24

_SIGNS = {
    StepState.PENDING: ("·", "dim"),
    StepState.RUNNING: ("◐", "warn"),
    StepState.DONE: ("✓", "ok"),
    StepState.FAILED: ("✗", "bad"),
}


class StepList(StripWidget):
    """One line per step."""

    ALLOW_SELECT = True
    DEFAULT_CSS = """
    StepList {
        height: auto;
    }
    """

    steps: reactive[tuple[Step, ...]] = reactive((), init=False, layout=True)
    """In the order in which they are done."""
    at: reactive[float] = reactive(0.0, init=False)
    """When the steps were as they are: running ones have lasted until then."""

    @property
    def running(self) -> int:
        """Index of the step under way; the last one when none is."""
        states = [step.state for step in self.steps]
        if StepState.RUNNING in states:
            return states.index(StepState.RUNNING)
        return max(len(states) - 1, 0)

    def get_content_height(self, container: object, viewport: object, w: int) -> int:
        return max(1, len(self.steps))

    def draw(self, width: int, height: int) -> list[Strip]:
        if not self.steps:
            return [line([("…", self.palette.dim)], width)]
        longest = max(len(step.title) for step in self.steps)
        title_width = min(TITLE_WIDTH_MAX, longest, max(width - TIME_WIDTH - 20, 12))
        return [self._row(step, title_width, width) for step in self.steps]

    def watch_steps(self) -> None:
        self.redraw()

    def watch_at(self) -> None:
        if any(step.state == StepState.RUNNING for step in self.steps):
            self.redraw()

    def _row(self, step: Step, title_width: int, width: int) -> Strip:
        sign, tone = _SIGNS[step.state]
        pending = step.state == StepState.PENDING
        parts: list[Part] = [
            (f"{sign} ", getattr(self.palette, tone)),
            (clip(step.title, title_width), self._title_style(pending)),
            (f"{self._time(step):>{TIME_WIDTH}}  ", self.palette.dim),
        ]
        room = width - parts_width(parts)
        parts += [*self._progress(step, room), (step.detail, self.palette.dim)]
        return line(parts, width)

    def _title_style(self, pending: bool) -> Style:
        return self.palette.dim if pending else self.palette.text

    def _time(self, step: Step) -> str:
        if step.seconds is not None:
            return format_seconds(step.seconds)
        if step.state == StepState.RUNNING and step.started_at is not None:
            return format_seconds(max(self.at - step.started_at, 0.0))
        return ""

    def _progress(self, step: Step, room: int) -> list[Part]:
        if step.progress is None or step.state != StepState.RUNNING:
            return []
        accent, track = self.palette.accent, self.palette.track
        n_cells = min(BAR_WIDTH_MAX, max(room - 8, 1))
        cells = memory_bar(step.progress, 1.0, n_cells, full=accent, empty=track)
        return [*cells, (f" {format_percent(step.progress):>5}  ", self.palette.text)]
