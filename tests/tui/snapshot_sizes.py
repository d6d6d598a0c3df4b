"""The sizes at which snapshots are kept.

Every screen and dialog in one dark theme; one screen in every other theme and size.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tui.app.app import DllmApp

MakeApp = Callable[..., DllmApp]
Look = Callable[..., None]
"""Of a cluster, at a size, after a run: see the fixture ``look``."""
Size = tuple[int, int]
SIZES = [(80, 24), (120, 36)]


def name_of(size: Size) -> str:
    return f"{size[0]}x{size[1]}"


at_both_sizes = pytest.mark.parametrize("size", SIZES, ids=name_of)
