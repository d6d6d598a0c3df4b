"""Work that is done at most so often, whatever asks for it."""

from __future__ import annotations

from collections.abc import Callable

from textual.timer import Timer
from textual.widget import Widget


class Throttle:
    """Does something at once; a second request waits until a gap has passed.

    What is asked for last is always done: the work looks at what there is by then.
    """

    def __init__(self, widget: Widget, gap_s: float, work: Callable[[], None]) -> None:
        self._widget = widget
        self._gap_s = gap_s
        self._work = work
        self._timer: Timer | None = None
        self._asked = False

    def ask(self, *, at_once: bool = False) -> None:
        """Do it now, or when the gap is over; ``at_once`` never waits."""
        self._asked = True
        if at_once or self._timer is None:
            self._do()

    def _do(self) -> None:
        self._asked = False
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._widget.set_timer(self._gap_s, self._gap_over)
        self._work()

    def _gap_over(self) -> None:
        self._timer = None
        if self._asked:
            self._do()
