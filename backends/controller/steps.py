"""The steps of a launch as they go: what runs, what is done, how long it took."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from backends.errors import DllmError
from backends.state import Step, StepState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class StepBoard:
    """An ordered list of steps; every change is reported to ``changed``.

    It ignores changes to a step that is not in the list: they are of an earlier list.
    ``clock`` gives Unix seconds.
    """

    def __init__(self, clock: Callable[[], float], changed: Callable[[], None]) -> None:
        self._clock = clock
        self._changed = changed
        self._steps: dict[str, Step] = {}

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in their order."""
        return tuple(self._steps.values())

    def reset(self, *steps: Step) -> None:
        """Start a new list."""
        self._steps = {step.id: step for step in steps}
        self._changed()

    def update(
        self, step_id: str, *, detail: str | None = None, progress: float | None = None
    ) -> None:
        """Tell more about a running step."""
        told = {"detail": detail, "progress": progress}
        self._change(step_id, **{k: v for k, v in told.items() if v is not None})

    def go_on(self, step_id: str, detail: str, progress: float | None) -> None:
        """Show a step that runs beside others, begun when it first tells something."""
        if self._is_pending(step_id):
            self._begin(step_id)
        self.update(step_id, detail=detail, progress=progress)

    def done_since(self, step_id: str, detail: str) -> None:
        """End such a step."""
        if self._is_pending(step_id):
            self._begin(step_id)
        self._end(step_id, StepState.DONE, detail)

    def done(self, step_id: str, *, detail: str = "") -> None:
        """Mark a step that took no time."""
        self._begin(step_id)
        self._end(step_id, StepState.DONE, detail or None)

    @contextmanager
    def step(self, step_id: str) -> Iterator[None]:
        """Run one step; leaving with an error marks it failed, with the sentence."""
        self._begin(step_id)
        try:
            yield
        except DllmError as error:
            self._end(step_id, StepState.FAILED, error.what)
            raise
        except asyncio.CancelledError:
            self._end(step_id, StepState.FAILED, "cancelled")
            raise
        self._end(step_id, StepState.DONE)

    def _is_pending(self, step_id: str) -> bool:
        step = self._steps.get(step_id)
        return step is not None and step.state is StepState.PENDING

    def _begin(self, step_id: str) -> None:
        now = self._clock()
        self._change(step_id, state=StepState.RUNNING, started_at=now, seconds=None)

    def _end(self, step_id: str, state: StepState, detail: str | None = None) -> None:
        if (old := self._steps.get(step_id)) is None:
            return
        self._change(
            step_id,
            state=state,
            seconds=self._clock() - (old.started_at or 0.0),
            detail=old.detail if detail is None else detail,
            progress=1.0 if state is StepState.DONE else old.progress,
        )

    def _change(self, step_id: str, **changes: Any) -> None:
        old = self._steps.get(step_id)
        if old is None or (new := msgspec.structs.replace(old, **changes)) == old:
            return
        self._steps[step_id] = new
        self._changed()
