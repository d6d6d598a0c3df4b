"""A boundary being dragged: the only split that is not the desk's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backends.split.layout import move_boundary

if TYPE_CHECKING:
    from backends.state import Split


@dataclass(frozen=True)
class Drag:
    """A drag's first and present split; the drag counts when the user lets go."""

    boundary: int
    start: Split
    """The split at the beginning; the drag has no meaning for another split."""
    split: Split
    """The split if the user let go now."""
    grab_x: int = 0
    """The column that was pressed."""

    @classmethod
    def of(cls, split: Split, boundary: int, grab_x: int = 0) -> Drag:
        """A drag that has not moved yet."""
        return cls(boundary, split, split, grab_x)

    @property
    def moved(self) -> bool:
        """True if the drag would change the split."""
        return self.split != self.start

    def to(self, position: int) -> Drag:
        """With so many layers before the boundary, held between its neighbours."""
        return replace(self, split=move_boundary(self.start, self.boundary, position))

    def back(self) -> Drag:
        """Return the drag at its beginning."""
        return replace(self, split=self.start)
