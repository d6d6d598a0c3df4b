"""From the controller that runs to the one of the service; what serves goes on."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from backends.client.start import dismiss
from backends.controller.lock import lock_holder
from backends.errors import DllmError

if TYPE_CHECKING:
    from backends.paths import Paths
    from backends.service.manager import Manager, ServiceState

RUNS_WITHIN_S = 30.0
LOOK_S = 0.2


async def hand_over(paths: Paths, manager: Manager) -> ServiceState:
    """See that the service's controller is the one that runs; how it stands then.

    Raises:
        DllmError: it does not come up.
    """
    state = await _running(manager)
    holder = lock_holder(paths.lock)
    if holder is not None and holder.pid != state.pid:
        # The service, which waits for its place, adopts what it leaves.
        await dismiss(paths, holder.pid)
        await _succeeded(paths, manager)
    return state


async def _succeeded(paths: Paths, manager: Manager) -> None:
    deadline = time.monotonic() + RUNS_WITHIN_S
    while lock_holder(paths.lock) is None:
        if time.monotonic() > deadline:
            raise _is_away(manager)
        await asyncio.sleep(LOOK_S)


def _is_away(manager: Manager) -> DllmError:
    return DllmError(
        f"{manager.name} was told to start the service, and it does not run",
        f"See what {manager.file} starts, and its log.",
    )


async def _running(manager: Manager) -> ServiceState:
    deadline = time.monotonic() + RUNS_WITHIN_S
    while True:
        state = await asyncio.to_thread(manager.state)
        if state.running:
            return state
        if time.monotonic() > deadline:
            raise _is_away(manager)
        await asyncio.sleep(LOOK_S)
