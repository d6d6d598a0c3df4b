"""What is painted again, and what is not: a terminal may be far away."""

from __future__ import annotations

import msgspec
import pytest
from textual.geometry import Region
from textual.widget import Widget

from backends.state import ClusterSnapshot
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import until
from tui.widgets.strips import StripWidget


@pytest.mark.parametrize(("less", "most"), [(1, 0), (scenes.GIB, 100)])
async def test_a_little_less_memory_paints_a_few_cells(
    started: Started, monkeypatch: pytest.MonkeyPatch, less: int, most: int
) -> None:
    """Free memory changes all the time; over a slow link whole panes cost seconds."""
    painted: list[tuple[Widget, Region]] = []
    refresh = Widget.refresh

    def refreshed(self: Widget, *regions: Region, **options: bool) -> Widget:
        painted.extend((self, one) for one in regions or [Region(0, 0, *self.size)])
        return refresh(self, *regions, **options)

    async with started(scenes.homelab_serving()) as (pilot, app, cluster):
        for widget in app.screen.query(StripWidget):
            widget.lines()
        monkeypatch.setattr(StripWidget, "refresh", refreshed)
        later = with_less_memory(scenes.homelab_serving(), 9, less)
        cluster.push(later)
        await until(pilot, lambda: app.editor.snapshot == later)
        assert sum(region.area for _, region in painted) <= most, painted
        assert bool(painted) is bool(most)


def with_less_memory(snapshot: ClusterSnapshot, seq: int, less: int) -> ClusterSnapshot:
    """The same with so many bytes less free on every device."""
    peers = tuple(
        msgspec.structs.replace(
            peer,
            devices=tuple(
                msgspec.structs.replace(device, free_bytes=device.free_bytes - less)
                for device in peer.devices
            ),
        )
        for peer in snapshot.peers
    )
    return msgspec.structs.replace(snapshot, seq=seq, peers=peers)
