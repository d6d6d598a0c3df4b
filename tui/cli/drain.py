"""``dllm-tui drain``: let what runs end and what comes wait."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import aclosing
from typing import TYPE_CHECKING

import click

from backends.state.requests import RequestCounts
from tui.cli.options import cluster_option
from tui.cli.output import emit_json, json_option, run, say
from tui.cli.quantity import SECONDS, quantity

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from backends.client.client import ControllerClient
    from backends.state import ClusterSnapshot

EXAMPLES = """
\b
Examples:
  dllm-tui drain                    wait until nothing is being answered
  dllm-tui drain --limit 30s        but no longer than this
  dllm-tui drain --limit 0s         only begin
  dllm-tui drain --off              let the requests that wait go on

What comes waits for api_wait_s at most, and is then told to try again. A drain holds
until --off, or until the cluster is launched anew or stopped. Exit code 1 means that
something was still being answered at the limit; it goes on.
"""


@click.command(epilog=EXAMPLES)
@click.option("--off", is_flag=True, help="End the drain: requests go on.")
@click.option(
    "--limit",
    default="5m",
    show_default=True,
    metavar="TIME",
    help="Wait no longer for what is being answered: 30s, 5m, 1h.",
)
@cluster_option
@json_option
def drain(off: bool, limit: str, cluster: str, as_json: bool) -> None:
    """Finish what is being answered, and let new requests wait."""
    limit_s = quantity(limit, SECONDS, "30s")
    last = run(_drained(cluster, on=not off, limit_s=limit_s))
    counts = last.requests or RequestCounts()
    if as_json:
        emit_json({"drained_since": last.drained_since, "requests": counts})
    else:
        say(_told(last, counts))
    if not off and counts.in_flight:
        raise click.exceptions.Exit(1)


def _drained(
    cluster: str, *, on: bool, limit_s: float
) -> Coroutine[Any, Any, ClusterSnapshot]:
    from backends.client.client import ControllerClient
    from tui.cli.ending import tidily

    client = ControllerClient(cluster=cluster)
    return tidily(client, _drain(client, on=on, limit_s=limit_s))


async def _drain(
    client: ControllerClient, *, on: bool, limit_s: float
) -> ClusterSnapshot:
    """The snapshot in which nothing is being answered, or that at the limit."""
    last = asked = await client.drain(on=on)
    if not on:
        return last
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s), aclosing(client.snapshots()) as snapshots:
            async for last in snapshots:
                if last.seq >= asked.seq and _is_over(last):
                    break
    return last


def _is_over(snapshot: ClusterSnapshot) -> bool:
    """Whether all is answered, or somebody ended the drain."""
    counts = snapshot.requests
    is_done = counts is not None and counts.drains and not counts.in_flight
    return is_done or snapshot.drained_since is None


def _told(last: ClusterSnapshot, counts: RequestCounts) -> str:
    if last.drained_since is None:
        return "Requests go on."
    waiting = f"{counts.waiting} wait until dllm-tui drain --off"
    if counts.in_flight:
        return f"Still being answered: {counts.in_flight}; {waiting}."
    return f"Nothing is being answered; {waiting}."
