"""The steps of a launch as they go: what runs, what is done, how long it took."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from backends.errors import DllmError
from backends.state import Step, StepState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class StepBoard:
    """An ordered list of steps; every change is told to ``changed``."""

    def __init__(self, clock: Callable[[], float], changed: Callable[[], None]) -> None:
        """``clock`` gives Unix seconds."""
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
        old = self._steps[step_id]
        self._put(
            msgspec.structs.replace(
                old,
                detail=old.detail if detail is None else detail,
                progress=old.progress if progress is None else progress,
            )
        )

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

    def _begin(self, step_id: str) -> None:
        self._put(
            msgspec.structs.replace(
                self._steps[step_id],
                state=StepState.RUNNING,
                started_at=self._clock(),
                seconds=None,
            )
        )

    def _end(self, step_id: str, state: StepState, detail: str | None = None) -> None:
        old = self._steps[step_id]
        self._put(
            msgspec.structs.replace(
                old,
                state=state,
                seconds=self._clock() - (old.started_at or 0.0),
                detail=old.detail if detail is None else detail,
                progress=1.0 if state is StepState.DONE else old.progress,
            )
        )

    def _put(self, step: Step) -> None:
        if self._steps.get(step.id) != step:
            self._steps[step.id] = step
            self._changed()
