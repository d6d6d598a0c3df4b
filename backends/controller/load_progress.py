"""Measure how much of the weights each worker has, by the bytes its relay carried.

If a pair of relays leaves weights at home, the bytes from the worker's own disk count.
There too they arrive at the pace of the slowest part.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from backends.split.flags import used_workers
from backends.split.loads import plan_loads
from backends.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from backends.state import ModelInfo, Plan

# Below this the estimate of what is left jumps too much to be of use.
ETA_AFTER_S = 1.0
HEADERS_BYTES = 64 << 10


class WorkerLoad(NamedTuple):
    """Weights of one worker."""

    arrived_bytes: int
    total_bytes: int
    bytes_per_s: float | None
    """Mean since its first byte; None while that says little."""
    home_bytes: int | None = None
    """The arrived bytes from its own disk; None if the head sends all of them."""

    @property
    def fraction(self) -> float | None:
        """0…1; None if no bytes are expected."""
        return self.arrived_bytes / self.total_bytes if self.total_bytes else None

    @property
    def text(self) -> str:
        """``1.2 GiB of 9.8 GiB · 85.0 MiB/s · 1 m 44 s left``, and what stayed home."""
        return " · ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        got, total = format_bytes(self.arrived_bytes), format_bytes(self.total_bytes)
        yield f"{got} of {total}"
        if self.home_bytes is not None:
            sent = format_bytes(self.arrived_bytes - self.home_bytes)
            yield f"{format_bytes(self.home_bytes)} home, {sent} sent"
        left_bytes = self.total_bytes - self.arrived_bytes
        if self.bytes_per_s and left_bytes:
            yield f"{format_bytes(self.bytes_per_s)}/s"
            yield f"~{format_seconds(left_bytes / self.bytes_per_s)} left"


class LoadProgress:
    """Measures one load of a plan's weights, for any kind of worker.

    ``carried`` gives the bytes that each worker's relay passed on. ``home`` gives the
    part of them that came from the worker's own disk, if that is known.
    """

    def __init__(
        self,
        plan: Plan,
        model: ModelInfo,
        carried: Callable[[], Mapping[str, int]],
        home: Callable[[], Mapping[str, int]] = dict,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._carried = carried
        self._home = home
        self._clock = clock
        self._zero: dict[str, int] = {}
        self._home_zero: dict[str, int] = {}
        self._first_at: dict[str, float] = {}
        loads = plan_loads(model, plan)
        self._expected = {
            worker.name: sum(
                load.weight_bytes for load in loads if load.device in worker.device_ids
            )
            for worker in used_workers(plan)
        }

    def measure(self) -> dict[str, WorkerLoad]:
        """Return the progress of each worker; its first reading is its zero point."""
        home = self._home()
        return {
            worker: self._arrived(worker, carried, home.get(worker))
            for worker, carried in self._carried().items()
            if worker in self._expected
        }

    def _arrived(self, worker: str, carried: int, home: int | None) -> WorkerLoad:
        total = self._expected[worker]
        zero = self._zero.setdefault(worker, carried)
        kept = self._kept(worker, home)
        # Requests carry headers and questions besides the weights, and before them.
        got = max(0, min(carried - zero, total))
        if got < min(HEADERS_BYTES, total):
            return WorkerLoad(0, total, None)
        now = self._clock()
        elapsed = now - self._first_at.setdefault(worker, now)
        rate = got / elapsed if elapsed > ETA_AFTER_S else None
        return WorkerLoad(got, total, rate, None if kept is None else min(kept, got))

    def _kept(self, worker: str, home: int | None) -> int | None:
        if home is None:
            return None
        return home - self._home_zero.setdefault(worker, home)


def overall(arrived: Mapping[str, WorkerLoad]) -> WorkerLoad:
    """All workers together: the slowest decides what is left, so rates add up."""
    kept = [one.home_bytes for one in arrived.values() if one.home_bytes is not None]
    rates = [one.bytes_per_s for one in arrived.values() if one.bytes_per_s]
    return WorkerLoad(
        sum(one.arrived_bytes for one in arrived.values()),
        sum(one.total_bytes for one in arrived.values()),
        sum(rates) if rates else None,
        sum(kept) if kept else None,
    )
