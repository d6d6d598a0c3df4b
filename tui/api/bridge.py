"""Deliver the controller's newest snapshot to the app, at a pace that can be drawn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from textual.message import Message

from backends.errors import DllmError
from backends.state import ClusterSnapshot
from tui.api.services import ClusterService


@dataclass
class SnapshotTaken(Message):
    """A newer snapshot arrived; the app shows it."""

    snapshot: ClusterSnapshot

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, SnapshotTaken)


@dataclass
class LinkLost(Message):
    """The controller went away; the bridge is trying to reach it again."""

    reason: str


class LinkRestored(Message):
    """The controller answers again."""


DRAW_INTERVAL_S = 0.25
RETRY_MIN_S = 0.5
RETRY_MAX_S = 5.0
BROKE = "Lost the controller; what it started keeps running"
UNWATCHED_SLOWER = 8.0
"""A terminal without the focus is painted so many times less often."""


class Bridge:
    """Turns the cluster's snapshots into messages, and its absence into one.

    ``retry_s`` is the first pause before it asks a lost controller again; it doubles.
    """

    def __init__(
        self,
        cluster: ClusterService,
        post: Callable[[Message], object],
        *,
        interval_s: float = DRAW_INTERVAL_S,
        retry_s: float = RETRY_MIN_S,
    ) -> None:
        self._cluster = cluster
        self._post = post
        self._interval_s = interval_s
        self._pace = 1.0
        self._retry_s = retry_s
        self.newest: ClusterSnapshot | None = None
        self._fresh = asyncio.Event()
        self._lost = False

    def slow_down(self, times: float) -> None:
        """Post that many times more rarely: 1 is the pace it was made with."""
        self._pace = times

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._listen())
            tasks.create_task(self._deliver())

    async def _listen(self) -> None:
        """Follow the stream; begin again, ever slower, when it ends."""
        pause_s = self._retry_s
        while True:
            began = False
            try:
                async for snapshot in self._cluster.snapshots():
                    began, pause_s = True, self._retry_s
                    self._arrived(snapshot)
            except DllmError as error:
                self._went(BROKE if began else str(error))
            except Exception as error:
                # Whatever it is, a console that shows old figures as new is worse.
                self._went(f"Unexpected {type(error).__name__}: {error}")
            else:
                # A controller that ends takes its leave: everything was stopped, or
                # another release takes over. Only one that never speaks is a loss.
                if not began:
                    self._went(BROKE)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, RETRY_MAX_S)

    async def _deliver(self) -> None:
        while True:
            await self._fresh.wait()
            self._fresh.clear()
            if self.newest is not None:
                self._post(SnapshotTaken(self.newest))
            await asyncio.sleep(self._interval_s * self._pace)

    def _arrived(self, snapshot: ClusterSnapshot) -> None:
        if self._lost:
            self._lost = False
            self._post(LinkRestored())
        self.newest = snapshot
        self._fresh.set()

    def _went(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            self._post(LinkLost(reason))
