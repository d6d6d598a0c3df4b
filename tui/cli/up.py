"""``dllm-tui up``: launch a model, and stay until it ends."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, nullcontext
from typing import Any, NamedTuple

import click
import msgspec

from backends.client.client import ControllerClient
from backends.errors import ControllerError, DllmError, PlanError, ProcessFailed
from backends.state import (
    DEFAULT_CLUSTER,
    Ask,
    ClusterSnapshot,
    ClusterState,
    Lab,
    Plan,
    Preview,
)
from backends.units import format_lab
from tui.cli.command import options
from tui.cli.down import end_cluster
from tui.cli.output import emit_json, say
from tui.cli.plan import PlanCommand, ask_of, forecast_text, plan_options, prepared
from tui.cli.progress import StepPrinter, ticking
from tui.cli.status import cluster_json, measured_text

UP_EXAMPLES = """
dllm-tui up m.gguf --workers 2 --detach
dllm-tui up m.gguf --split 6,7 --context 8192
dllm-tui up m.gguf --peer mini --split local/MTL0=38,mini/MTL0=10
dllm-tui up m.gguf --workers 0
dllm-tui up m.gguf --context 32768 --cache-type-k q8_0 --cache-type-v q8_0
dllm-tui up m.gguf --slots 4 --threads 6 --worker-threads 2
dllm-tui up m.gguf --peer mini --draft small.gguf --draft-max 8
dllm-tui up m.gguf --workers 3 -- --temp 0.2
dllm-tui up m.gguf --peer mini --peer nuc --detach
dllm-tui up m.gguf --head studio --peer mini
dllm-tui up m.gguf --peer mini --best --pin output=local/MTL0
"""
BUSY = frozenset({ClusterState.STARTING, ClusterState.LOADING, ClusterState.SERVING})


@click.command(cls=PlanCommand, quiet=True, examples=UP_EXAMPLES)
@plan_options
@options(
    ("--detach", bool, "Return once it is serving, and leave it running."),
    ("--replace", bool, "Replace the running plan; clients wait."),
)
async def up(
    client: ControllerClient, detach: bool, replace: bool, as_json: bool, **wish: Any
) -> None:
    """Serve MODEL, a GGUF file or a model name.

    Starts llama-server and its workers. Without --detach it stays in the foreground;
    Ctrl-C stops the cluster. See what would be started with dllm-tui plan.
    """
    ask = await ask_of(**wish)
    await serve(client, ask, detach=detach, replace=replace, as_json=as_json)


async def serve(
    client: ControllerClient, ask: Ask, *, detach: bool, replace: bool, as_json: bool
) -> None:
    preview = await prepared(client, ask)
    if preview.refusal is not None:
        raise PlanError(preview.refusal.what, preview.refusal.hint)
    for note in preview.notes:
        say(note)
    if preview.forecast is not None and ask.objective is not None:
        say(f"Predicted: {forecast_text(preview.forecast)}.")
        if preview.why:
            say(preview.why)
    async with launched(client, preview, keep=detach, replace=replace) as (
        serving,
        snapshots,
        _,
    ):
        if as_json:
            emit_json(cluster_json(serving))
        say(f"Serving {serving.api_url}; {measured_text(serving)}.")
        if slowed := [
            f"{link.worker} {format_lab(link.lab)}"
            for link in serving.links
            if link.lab
        ]:
            say(f"Simulated limits stay: {', '.join(slowed)} (links reset).")
        if not detach:
            say("Ctrl-C stops the cluster.")
            await until_ended(serving, snapshots)


class Launched(NamedTuple):
    serving: ClusterSnapshot
    snapshots: AsyncIterator[ClusterSnapshot]
    """The later ones."""
    launch_s: float
    """From the moment at which the controller took the launch."""


@asynccontextmanager
async def launched(
    client: ControllerClient,
    what: Plan | Preview,
    *,
    keep: bool,
    replace: bool = False,
    measures: bool = False,
    lab: Lab | None = None,
) -> AsyncIterator[Launched]:
    """A serving cluster of a plan, prepared or not.

    Unless ``keep``, the cluster ends with the block, also when we are killed, at any
    moment: the controller sees the stream break that was there before the launch.
    One that only ``measures`` prints no steps and is not listed among the launches.
    It loads behind the ``lab``.
    """
    holder = "" if keep else secrets.token_hex(8)
    async with aclosing(client.snapshots(holder=holder)) as snapshots:
        # From the first on the stream is there, and we with it.
        now = await anext(snapshots, None) or await client.snapshot()
        replaced = now.wanted_generation
        if now.state in BUSY and not replace:
            runs = now.plan.model if now.plan else "a model"
            named = (
                "" if now.cluster == DEFAULT_CLUSTER else f" --cluster {now.cluster}"
            )
            raise ControllerError(
                f"A cluster is already running {runs}",
                f"Stop it with dllm-tui down{named}, or use up --replace.",
            )
        ours = await _launch(
            client, what, replaced, holder, listed=not measures, lab=lab
        )
        if ours.generation == replaced:
            say("This plan is already running: nothing to change.")
        began = time.monotonic()
        try:
            serving = await _until_serving(ours, now, snapshots, shows=not measures)
            launch_s = time.monotonic() - began
        except asyncio.CancelledError:
            # What was not wanted to the end is not to go on behind the user's back.
            with contextlib.suppress(DllmError):
                await _end_ours(client, ours.generation)
            raise
        except BaseException:
            if not keep:
                await _end_ours(client, ours.generation)
            raise
        try:
            yield Launched(serving, snapshots, launch_s)
        finally:
            if not keep:
                await _end_ours(client, ours.generation)


async def _launch(
    client: ControllerClient,
    what: Plan | Preview,
    replaces: int,
    holder: str,
    *,
    listed: bool,
    lab: Lab | None,
) -> ClusterSnapshot:
    """Ask for a plan; the snapshot from which on it is ours.

    Interrupted, without a holder: the controller does to the end what it was asked for,
    so that this is ended then.
    """
    asked = client.launch(
        what, replaces=replaces, holder=holder, listed=listed, lab=lab
    )
    asking = asyncio.ensure_future(asked)
    try:
        await asyncio.wait([asking])
    except asyncio.CancelledError:
        if holder:
            asking.cancel()
        with contextlib.suppress(DllmError, asyncio.CancelledError):
            await _end_ours(client, (await asking).generation)
        raise
    return asking.result()


async def _end_ours(client: ControllerClient, generation: int) -> None:
    if await client.running() and (await client.snapshot()).generation == generation:
        await end_cluster(client)


async def _until_serving(
    ours: ClusterSnapshot,
    snapshot: ClusterSnapshot,
    later: AsyncIterator[ClusterSnapshot],
    *,
    shows: bool,
) -> ClusterSnapshot:
    printer = StepPrinter() if shows else None
    async with ticking(printer.line) if printer else nullcontext():
        while not _serves(ours, snapshot, printer):
            following = await anext(later, None)
            if following is None:
                raise ControllerError("The controller exited during the launch")
            snapshot = following
        return snapshot


def _serves(
    ours: ClusterSnapshot, snapshot: ClusterSnapshot, printer: StepPrinter | None
) -> bool:
    """Show how far our launch is; True once it serves."""
    if snapshot.seq < ours.seq or snapshot.generation < ours.generation:
        return False
    back = snapshot.rolled_back
    if back is not None and back.generation == ours.generation:
        hint = f"{back.failure.hint} The plan before it is brought back."
        raise ProcessFailed(msgspec.structs.replace(back.failure, hint=hint.lstrip()))
    if snapshot.generation > ours.generation:
        raise _superseded(snapshot)
    if printer is not None:
        printer.show(snapshot)
    if snapshot.state is ClusterState.FAILED and snapshot.failure is not None:
        raise ProcessFailed(snapshot.failure)
    return snapshot.state is ClusterState.SERVING


def _superseded(snapshot: ClusterSnapshot) -> ControllerError:
    if snapshot.plan is None or snapshot.state not in BUSY:
        return ControllerError("The cluster was stopped during the launch")
    return ControllerError(
        f"Another launch replaced this one: {snapshot.plan.model}",
        "dllm-tui status shows it; up --replace launches this one instead.",
    )


async def until_ended(
    serving: ClusterSnapshot, snapshots: AsyncIterator[ClusterSnapshot]
) -> None:
    """Wait until somebody stops or replaces the cluster."""
    async for snapshot in snapshots:
        if snapshot.wanted_generation > serving.generation:
            raise _superseded(snapshot)
        if snapshot.state is ClusterState.FAILED and snapshot.failure is not None:
            raise ProcessFailed(snapshot.failure)
        if snapshot.state not in BUSY:
            return
