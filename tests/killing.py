"""Ending what a test, or whatever it tested, left running."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psutil

from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """kill -9 each; one may have ended since it was found, also because of another."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def kill_until_none(find: Callable[[], list[psutil.Process]]) -> None:
    """kill -9 whatever is found until nothing is: one may just have begun another."""

    def none_is_left() -> bool:
        found = find()
        kill_all(found)
        return not found

    wait_until(none_is_left, "the end of all that was killed")
