"""``dllm-tui down``, ``drain`` and ``resume``: end a cluster, or let it pause."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import click
import msgspec

from backends.client.client import ControllerClient
from backends.errors import ProcessFailed
from backends.state import ClusterSnapshot, ClusterState, Leftover
from backends.state.snapshots import RequestCounts
from backends.units import format_count
from tui.cli.command import (
    SECONDS,
    Command,
    cluster_option,
    options,
    quantity,
    refuse_with,
)
from tui.cli.output import say, warn

DOWN_EXAMPLES = """
dllm-tui down
dllm-tui down --cluster second
dllm-tui down --all
"""
DRAIN_EXAMPLES = """
dllm-tui drain                    wait until no request is running
dllm-tui drain --limit 30s        wait at most this long
dllm-tui drain --limit 0s         do not wait
dllm-tui resume                   answer the requests that were held
"""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    stopped: tuple[str, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    """Processes on unreachable machines; the controller ends them later."""


@click.command(
    cls=Command,
    fails=lambda ended: bool(ended.leftovers),
    quiet=True,
    examples=DOWN_EXAMPLES,
    notes="Exit code 1: something could not be stopped; stderr says what.",
)
@cluster_option
@options(("--all every", bool, "Stop every cluster."))
async def down(client: ControllerClient, every: bool) -> Ended:
    """Stop a cluster, and with the last one the controller."""
    if every:
        refuse_with("--all", "--cluster")
    ended = await _stopped_all(client, every=every)
    if ended.stopped:
        say(f"Stopped {', '.join(ended.stopped)}.")
    elif not ended.leftovers:
        say("Nothing is running.")
    for left in ended.leftovers:
        why = f": {left.why.rstrip('.')}" if left.why else ""
        warn(
            f"Cannot stop {left.name} on {left.peer}{why}. "
            f"It is stopped as soon as {left.peer} can be reached again."
        )
    return ended


async def _stopped_all(client: ControllerClient, *, every: bool) -> Ended:
    """Stop one cluster, or every one, and what earlier controllers left here."""
    from backends.doctor.installation import end_orphans, find_orphans
    from backends.paths import user_paths

    ended = []
    # Seen before a controller starts: it ends some of them itself.
    lost = await find_orphans(user_paths())
    if await client.running() or client.left_processes():
        briefs = (await client.snapshot()).clusters if every else ()
        for name in [brief.name for brief in briefs] or [client.cluster]:
            client.use(name)
            ended.append(await end_cluster(client))
    lost += await end_orphans(user_paths())
    names = [name for one in ended for name in one.stopped]
    return Ended(
        stopped=(*names, *dict.fromkeys(orphan.name for orphan in lost)),
        leftovers=tuple(left for one in ended for left in one.leftovers),
    )


async def end_cluster(client: ControllerClient) -> Ended:
    """Stop a cluster, and the controller with the last one that it can end."""
    before = await client.snapshot()
    after = await _stopped(client, before)
    ended = Ended(stopped=tuple(_ended(before, after)), leftovers=after.leftovers)
    again = after.wanted_generation != 0
    if not ended.leftovers and not after.others_run and not again:
        await client.shutdown()
    return ended


async def _stopped(
    client: ControllerClient, before: ClusterSnapshot
) -> ClusterSnapshot:
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


def _ended(before: ClusterSnapshot, after: ClusterSnapshot) -> Iterator[str]:
    alive = {(leftover.peer, leftover.name) for leftover in after.leftovers}
    alive |= {(p.peer, p.name) for p in after.processes if p.state != "exited"}
    for process in before.processes:
        if process.state != "exited" and (process.peer, process.name) not in alive:
            yield process.name


def _counts(snapshot: ClusterSnapshot) -> RequestCounts:
    return snapshot.requests or RequestCounts()


def _drain_json(snapshot: ClusterSnapshot) -> dict[str, Any]:
    return {"drained_since": snapshot.drained_since, "requests": _counts(snapshot)}


@click.command(
    cls=Command,
    as_json=_drain_json,
    fails=lambda last: last.drained_since is not None and _counts(last).in_flight > 0,
    quiet=True,
    examples=DRAIN_EXAMPLES,
    notes="New requests wait for api_wait_s at most and are then told to retry. A "
    "drain lasts until dllm-tui resume, a launch or a stop. Exit code 1: requests were "
    "still running at the limit; they go on.",
)
@options(("--limit", "TIME", "Longest wait for running requests: 30s, 5m, 1h.", "5m"))
@cluster_option
async def drain(client: ControllerClient, limit: str) -> ClusterSnapshot:
    """Finish running requests and hold new ones."""
    last = await _drained(client, quantity(limit, SECONDS, "30s"))
    counts = _counts(last)
    waiting = f"{counts.waiting} held until dllm-tui resume"
    if last.drained_since is None:
        say("Resumed meanwhile: requests are answered.")
    elif counts.in_flight:
        say(f"{format_count(counts.in_flight, 'request')} still running; {waiting}.")
    else:
        say(f"Drained: no request is running; {waiting}.")
    return last


async def _drained(client: ControllerClient, limit_s: float) -> ClusterSnapshot:
    last = asked = await client.drain(on=True)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s), aclosing(client.snapshots()) as snapshots:
            async for last in snapshots:
                if last.seq >= asked.seq and _is_over(last):
                    break
    return last


def _is_over(snapshot: ClusterSnapshot) -> bool:
    counts = snapshot.requests
    is_done = counts is not None and counts.drains and not counts.in_flight
    return is_done or snapshot.drained_since is None


@click.command(cls=Command, as_json=_drain_json, quiet=True, examples="dllm-tui resume")
@cluster_option
async def resume(client: ControllerClient) -> ClusterSnapshot:
    """End a drain: answer requests again."""
    last = await client.drain(on=False)
    say("Resumed: requests are answered.")
    return last
