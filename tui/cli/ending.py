"""Ending a cluster, and knowing what became of it."""

from __future__ import annotations

import contextlib
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar

import msgspec

from backends.errors import DllmError, ProcessFailed
from backends.state import ClusterState, Leftover

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from backends.client.client import ControllerClient
    from backends.state import ClusterSnapshot

T = TypeVar("T")


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What a stop did."""

    stopped: tuple[str, ...] = ()
    """Names of the processes that ended."""
    leftovers: tuple[Leftover, ...] = ()
    """What could not be reached; the controller ends it when it can."""


async def end_cluster(client: ControllerClient) -> Ended:
    """Stop a cluster, and the controller with the last one that it can end.

    Raises:
        ProcessFailed: something could not be stopped.
        ControllerError: the controller does not do it, or broke off.
    """
    before = await client.snapshot()
    after = await _stopped(client, before)
    ended = Ended(stopped=_ended(before, after), leftovers=after.leftovers)
    again = after.wanted_generation != 0
    if not ended.leftovers and not after.others_run and not again:
        await client.shutdown()
    return ended


async def tidily(client: ControllerClient, work: Coroutine[Any, Any, T]) -> T:
    """Do some work; where it breaks off, a controller started for it ends if idle."""
    try:
        return await work
    except BaseException:
        if client.started_controller:
            with contextlib.suppress(DllmError):
                await client.shutdown(only_if_idle=True)
        raise


async def _stopped(
    client: ControllerClient, before: ClusterSnapshot
) -> ClusterSnapshot:
    """The snapshot in which the stop is done, or somebody has launched again."""
    asked = await client.stop()
    last = asked
    async with aclosing(client.snapshots()) as snapshots:
        async for last in snapshots:
            if last.seq < asked.seq or last.generation < asked.generation:
                continue
            if last.failure is not None and last.failure != before.failure:
                raise ProcessFailed(last.failure)
            again = last.generation > asked.generation
            if again or last.state is ClusterState.IDLE:
                break
    return last


def _ended(before: ClusterSnapshot, after: ClusterSnapshot) -> tuple[str, ...]:
    """What ran before, and is neither there any more nor out of reach."""
    left = {(leftover.peer, leftover.name) for leftover in after.leftovers}
    alive = left | {(p.peer, p.name) for p in after.processes if p.state != "exited"}
    return tuple(
        process.name
        for process in before.processes
        if process.state != "exited" and (process.peer, process.name) not in alive
    )
