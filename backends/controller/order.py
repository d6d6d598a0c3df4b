"""Whose wish holds: that of whoever asked last, however long its checks took."""

from __future__ import annotations

from itertools import count

from backends.errors import ControllerError


class Order:
    """The order in which wishes of one cluster came."""

    def __init__(self) -> None:
        """None came."""
        self._numbers = count(1)
        self._followed = 0

    def number(self) -> int:
        """That of a wish which comes now."""
        return next(self._numbers)

    def follow(self, number: int) -> None:
        """The wish of that number is about to hold.

        Raises:
            ControllerError: one that came later holds.
        """
        if number < self._followed:
            raise ControllerError(
                "Another request came after this launch, while it was checked, and "
                "holds: nothing was launched",
                "See dllm-tui status; launch again if you still want it.",
            )
        self._followed = number
