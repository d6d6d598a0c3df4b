"""Let the latest request win, however long its checks took."""

from __future__ import annotations

from itertools import count

from backends.errors import ControllerError


class Order:
    """Numbers the requests to one cluster in the order in which they came."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._followed = 0

    def number(self) -> int:
        """Return the number of a request that comes now."""
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
