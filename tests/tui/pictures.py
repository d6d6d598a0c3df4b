"""Several pictures of one console: to start another costs more than they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.pilot import Pilot

from tests.tui.helpers import resize
from tests.tui.snapshot_sizes import SIZES, Size

Snap = Callable[..., bool]
"""The fixture ``snap_compare``."""
SMALL, NORMAL = BOTH = tuple(SIZES)


class Picture(App[str]):
    """A console as it was drawn: what running it gives."""

    def __init__(self, svg: str) -> None:
        super().__init__()
        self._svg = svg

    def run(self, **_: Any) -> str:
        return self._svg


async def seen(
    snap_compare: Snap, pilot: Pilot[Any], *sizes: Size, of: str = ""
) -> None:
    """Assert that a console looks as in the test's next pictures, one of each size."""
    for size in sizes or (pilot.app.size,):
        if pilot.app.size != size:
            await resize(pilot, *size)
        await pilot.pause()
        svg = pilot.app.export_screenshot(title=pilot.app.title, simplify=True)
        assert snap_compare(Picture(svg)), (of, size)
