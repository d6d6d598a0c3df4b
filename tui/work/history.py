"""Undo and redo of anything, bounded; each step is a value of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

DEPTH_MAX = 1000
"""Steps that can be taken back."""


@dataclass(frozen=True)
class History(Generic[T]):
    """What is, what was (oldest first) and what was undone (nearest first)."""

    present: T
    past: tuple[T, ...] = ()
    future: tuple[T, ...] = ()

    @property
    def can_undo(self) -> bool:
        """Whether there is something earlier."""
        return bool(self.past)

    @property
    def can_redo(self) -> bool:
        """Whether something undone can come back."""
        return bool(self.future)

    def push(self, present: T) -> History[T]:
        """Make something the present one; the same again is no step."""
        if present == self.present:
            return self
        return History(present, (*self.past, self.present)[-DEPTH_MAX:])

    def undo(self) -> History[T]:
        """One step back, or the same history at its beginning."""
        if not self.past:
            return self
        *past, present = self.past
        return History(present, tuple(past), (self.present, *self.future))

    def redo(self) -> History[T]:
        """One undone step forward again, or the same history."""
        if not self.future:
            return self
        present, *future = self.future
        return History(present, (*self.past, self.present), tuple(future))

    def mapped(self, change: Callable[[T], T]) -> History[T]:
        """Every step changed alike: something was learned about all of them."""
        return History(
            change(self.present),
            tuple(map(change, self.past)),
            tuple(map(change, self.future)),
        )
