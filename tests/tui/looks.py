"""The sizes at which looks are kept.

Every screen and dialog in one dark theme; one screen in every other theme and size.
"""

from __future__ import annotations

from collections.abc import Callable

from tui.app.app import DllmApp

MakeApp = Callable[..., DllmApp]
Compare = Callable[..., bool]
SIZES = [(80, 24), (120, 36)]
EVERY_SIZE = [(60, 18), *SIZES, (160, 48)]


def name_of(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
