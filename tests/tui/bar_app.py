"""Nothing but a split bar on a desk, and what takes hold of it."""

from __future__ import annotations

import msgspec
from textual.app import ComposeResult
from textual.pilot import Pilot

from backends.split.layout import make_split
from backends.state import ClusterSnapshot, Device, Peer, Plan
from tests.tui import scenes
from tui.app.console import ConsoleApp
from tui.app.theming import DEFAULT_THEME
from tui.model.editor import PlanEditor
from tui.model.theme_folders import BUILTIN_FOLDER
from tui.screens.cluster.split_bar import SplitBar

DEVICES = (scenes.STUDIO, scenes.MINI, scenes.BOX)
IDS = tuple(device.id for device in DEVICES)


def plan_of(*layers: int, ids: tuple[str, ...] = IDS) -> Plan:
    split = make_split(47, ids[: len(layers)], layers)
    return msgspec.structs.replace(scenes.HOMELAB_PLAN, split=split)


def homelab(*devices: Device) -> ClusterSnapshot:
    peers = tuple(Peer(name=d.id.split("/")[0], devices=(d,)) for d in devices)
    return ClusterSnapshot(peers=peers)


class BarApp(ConsoleApp):
    def __init__(self, plan: Plan | None, height: int = 4) -> None:
        super().__init__(
            theme_folders=[BUILTIN_FOLDER],
            theme=DEFAULT_THEME,
            keys={},
            clock=lambda: scenes.NOW,
        )
        self.editor = PlanEditor()
        self.editor.take(homelab(*DEVICES))
        if plan is not None:
            self.editor.put(plan, scenes.GLM)
        self.bar = SplitBar(self.editor, id="bar")
        self.bar.styles.height = height
        self.editor.changed = self._changed
        self.changes: list[tuple[tuple[int, ...], bool]] = []

    def compose(self) -> ComposeResult:
        yield self.bar

    def on_mount(self) -> None:
        self.bar.follow()
        self.bar.focus()

    def _changed(self) -> None:
        assert self.editor.edit is not None
        self.changes.append((self.editor.edit.counts, not self.editor.dragging))

    @property
    def layers(self) -> tuple[int, ...]:
        assert self.bar.edit is not None
        return self.bar.edit.counts

    @property
    def finals(self) -> list[tuple[int, ...]]:
        return [layers for layers, final in self.changes if final]


def x_of(bar: SplitBar, position: int) -> int:
    """The column at which the picked handle stands for so many layers before it."""
    geometry = bar.geometry
    return next(
        x
        for x in range(geometry.width)
        if geometry.position_at(bar.picked, x) == position
    )


async def grab(pilot: Pilot[None], bar: SplitBar) -> None:
    assert await pilot.mouse_down(bar, offset=(bar.handle_x, 1))
