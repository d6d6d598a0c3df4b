"""What several commands do with a cluster: launch it, follow it, ask it."""

from __future__ import annotations

import time
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from backends.errors import ControllerError, DllmError, ProcessFailed
from backends.state import ChatDelta, ChatTimings, ClusterState
from backends.units import format_seconds
from tui.cli.output import StepPrinter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from backends.controller.client import ControllerClient
    from backends.state import ChatRequest, ClusterSnapshot, Plan

BUSY = frozenset({ClusterState.STARTING, ClusterState.LOADING, ClusterState.SERVING})


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer."""

    text: str
    reasoning: str
    finish_reason: str
    timings: ChatTimings


@asynccontextmanager
async def launched(
    client: ControllerClient, plan: Plan, *, keep: bool, replace: bool = False
) -> AsyncIterator[tuple[ClusterSnapshot, AsyncIterator[ClusterSnapshot]]]:
    """A serving cluster and its further snapshots.

    Unless ``keep``, the cluster and its controller end with the block, also when we are
    killed: the controller sees the held stream break.

    Raises:
        ControllerError: something else runs and is not to be replaced.
        ProcessFailed: the launch failed.
    """
    await _refuse_if_busy(client, replace=replace)
    async with aclosing(client.snapshots(hold=not keep)) as snapshots:
        try:
            await anext(snapshots)
            await client.launch(plan)
            began = (await client.snapshot()).seq
            yield await _until_serving(began, snapshots), snapshots
        finally:
            if not keep:
                await client.shutdown()


async def _refuse_if_busy(client: ControllerClient, *, replace: bool) -> None:
    now = await client.snapshot()
    if now.state in BUSY and not replace:
        model = now.plan.model if now.plan else "a model"
        raise ControllerError(
            f"A cluster is already running {model}",
            "End it with dllm-tui stop, or use up --replace.",
        )


async def _until_serving(
    began: int, snapshots: AsyncIterator[ClusterSnapshot]
) -> ClusterSnapshot:
    """Print the steps as they go until it serves.

    Snapshots before number ``began`` are of what was there before the launch.
    """
    printer = StepPrinter()
    async for snapshot in snapshots:
        if snapshot.seq < began:
            continue
        printer.show(snapshot)
        if snapshot.state is ClusterState.FAILED and snapshot.failure is not None:
            raise ProcessFailed(snapshot.failure)
        if snapshot.state is ClusterState.SERVING:
            return snapshot
    raise ControllerError("The controller went away during the launch")


async def until_ended(snapshots: AsyncIterator[ClusterSnapshot]) -> None:
    """Wait until somebody stops the cluster.

    Raises:
        ProcessFailed: it broke.
    """
    async for snapshot in snapshots:
        if snapshot.state is ClusterState.FAILED and snapshot.failure is not None:
            raise ProcessFailed(snapshot.failure)
        if snapshot.state not in BUSY:
            return


async def ask(
    client: ControllerClient, request: ChatRequest, on_text: Callable[[str], None]
) -> Answer:
    """Ask what is serving; ``on_text`` gets the answer as it comes.

    Raises:
        ProcessFailed: the answer broke off.
    """
    started = time.monotonic()
    text, reasoning, first_s = "", "", None
    last = ChatDelta()
    async with aclosing(client.chat(request)) as deltas:
        async for delta in deltas:
            if delta.failure is not None:
                raise ProcessFailed(delta.failure)
            if first_s is None and (delta.text or delta.reasoning):
                first_s = time.monotonic() - started
            text += delta.text
            reasoning += delta.reasoning
            on_text(delta.text)
            last = delta if delta.done else last
    if not last.done:
        raise ControllerError("The answer broke off", "dllm-tui status says why.")
    timings = last.timings or ChatTimings()
    return Answer(
        text=text,
        reasoning=reasoning,
        finish_reason=last.finish_reason,
        timings=msgspec.structs.replace(timings, first_token_s=first_s),
    )


def figures(answer: Answer) -> str:
    """``21.3 tok/s · first token 0.88 s · 42 tokens``."""
    timings = answer.timings
    first = format_seconds(timings.first_token_s or 0.0)
    return (
        f"{timings.tok_per_s:.1f} tok/s · first token {first} · {timings.tokens} tokens"
    )


def cluster_json(snapshot: ClusterSnapshot) -> dict[str, Any]:
    """A snapshot as ``--json`` shows it: the plan carries its layer ranges too."""
    value: dict[str, Any] = msgspec.to_builtins(snapshot)
    if snapshot.plan is not None:
        value["plan"]["layers"] = msgspec.to_builtins(snapshot.planned)
    return value


def verdict(snapshot: ClusterSnapshot) -> str:
    """Whether llama-server did what the plan says, in one sentence."""
    if snapshot.measured is None:
        return "the split was not measured"
    if not snapshot.measured.mismatches:
        return "the measured split is the planned one"
    return "NOT as planned: " + "; ".join(snapshot.measured.mismatches)


def require_model(path: str) -> str:
    """The absolute path of a model given by its path or its catalogue name.

    ``peer:/path`` is a model that a peer holds, and stays as it is.

    Raises:
        DllmError: there is no such file.
    """
    from backends.controller.places import at_peer
    from tui.cli.inspect import resolve

    if at_peer(path):
        return path
    found = resolve(path)
    if not found.is_file():
        raise DllmError(f"There is no model file {found}", "Check the path.")
    return str(found.absolute())
