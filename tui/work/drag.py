"""A boundary being dragged: the only split that is not the desk's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backends.split.layout import move_boundary

if TYPE_CHECKING:
    from backends.state import Split


@dataclass(frozen=True)
class Drag:
    """Where a drag began and where it is; it counts when it is let go."""

    boundary: int
    start: Split
    """What it began with; it has no meaning for any other split."""
    split: Split
    """What it would make of it now."""
    grab_x: int = 0
    """The column that was pressed."""

    @classmethod
    def of(cls, split: Split, boundary: int, grab_x: int = 0) -> Drag:
        """A drag that has not moved yet."""
        return cls(boundary, split, split, grab_x)

    @property
    def moved(self) -> bool:
        """Whether letting go would change anything."""
        return self.split != self.start

    def to(self, position: int) -> Drag:
        """With so many layers before the boundary, held between its neighbours."""
        return replace(self, split=move_boundary(self.start, self.boundary, position))

    def back(self) -> Drag:
        """Where it began."""
        return replace(self, split=self.start)
