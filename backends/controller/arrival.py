"""How much of the weights has arrived at the workers, by the memory they occupy.

llama-server prints no progress while it loads; a CPU worker's resident memory grows by
the weights it receives. A GPU worker's does not: then nothing is claimed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from backends.split.memory import device_loads
from backends.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from backends.controller.machines import Machines
    from backends.state import ModelInfo, Plan, WorkerSpec

# Below this the estimate of what is left jumps too much to be of use.
ETA_AFTER_S = 2.0


class Arrival:
    """Measures one load."""

    def __init__(
        self,
        machines: Machines,
        plan: Plan,
        model: ModelInfo,
        workers: Iterable[WorkerSpec],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Expect the plan's weights at those of the workers whose memory we see."""
        self._machines = machines
        self._workers = [w for w in workers if not w.endpoint]
        self._clock = clock
        self._began = clock()
        self._before: dict[str, int] = {}
        weights = {
            load.device: load.weight_bytes
            for load in device_loads(model, plan.split, plan.ctx_size)
        }
        self._expected = {
            w.name: weights[f"{w.name}/{w.device}"] for w in self._workers
        }
        self.total_bytes = sum(self._expected.values())
        self.arrived_bytes = 0

    def measure(self) -> None:
        """Take the workers' memory as last seen; the first look is the zero point."""
        arrived = 0
        for worker in self._workers:
            rss = self._rss_bytes(worker)
            grown = rss - self._before.setdefault(worker.name, rss)
            arrived += max(0, min(grown, self._expected[worker.name]))
        self.arrived_bytes = arrived

    def _rss_bytes(self, worker: WorkerSpec) -> int:
        for record in self._machines.get(worker.peer).records:
            if record.name == worker.name:
                return record.rss_bytes or 0
        return 0

    @property
    def fraction(self) -> float | None:
        """0…1, or None while nothing has been seen to arrive."""
        if not self.arrived_bytes or not self.total_bytes:
            return None
        return self.arrived_bytes / self.total_bytes

    @property
    def text(self) -> str:
        """``1.2 of 9.8 GiB · 85 MiB/s · 1 m 44 s left``."""
        if not self.arrived_bytes:
            return ""
        got, total = format_bytes(self.arrived_bytes), format_bytes(self.total_bytes)
        elapsed = self._clock() - self._began
        if elapsed < ETA_AFTER_S:
            return f"{got} of {total}"
        per_s = self.arrived_bytes / elapsed
        left = format_seconds((self.total_bytes - self.arrived_bytes) / per_s)
        return f"{got} of {total} · {format_bytes(per_s)}/s · {left} left"
