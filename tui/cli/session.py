"""What several commands do with a cluster: launch it, follow it, ask it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from backends.errors import ControllerError, DllmError, ProcessFailed
from backends.planning.prompt_cache import prompts_kept_mib
from backends.state import (
    AUTO_DRAFT,
    DEFAULT_CLUSTER,
    MTP_DRAFT,
    NGRAM_DRAFT,
    NO_DRAFT,
    ChatDelta,
    ChatTimings,
    ClusterState,
)
from backends.units import format_bytes, format_count, format_seconds, format_speed
from tui.cli.ending import end_cluster
from tui.cli.output import say
from tui.cli.progress import StepPrinter, ticking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from backends.client.client import ControllerClient
    from backends.state import Answering, ChatRequest, ClusterSnapshot, Failure, Plan

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

    Unless ``keep``, the cluster ends with the block, also when we are killed, at any
    moment: the controller sees the stream break that was there before the launch.

    Raises:
        ControllerError: something else runs and is not to be replaced, or was launched
            meanwhile.
        ProcessFailed: the launch failed.
    """
    now = await client.snapshot()
    replaced = now.wanted_generation
    if now.state in BUSY and not replace:
        raise _runs_already(now)
    holder = "" if keep else secrets.token_hex(8)
    async with aclosing(client.snapshots(holder=holder)) as snapshots:
        # From the first on the stream is there, and we with it.
        first = await anext(snapshots, now)
        ours = await _launch(client, plan, replaced, holder)
        if ours.generation == replaced:
            say("The same plan runs already: it is left as it is.")
        try:
            serving = await _until_serving(ours, _from(first, snapshots))
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
            yield serving, snapshots
        finally:
            if not keep:
                await _end_ours(client, ours.generation)


def _runs_already(now: ClusterSnapshot) -> ControllerError:
    """What runs and is not to be replaced."""
    return ControllerError(
        f"A cluster is already running {now.plan.model if now.plan else 'a model'}",
        f"End it with dllm-tui stop{_named(now.cluster)}, or use up --replace.",
    )


async def _launch(
    client: ControllerClient, plan: Plan, replaces: int, holder: str
) -> ClusterSnapshot:
    """Ask for a plan; the snapshot from which on it is ours.

    Interrupted, without a holder: the controller does to the end what it was asked for,
    so that this is ended then.
    """
    asked = client.launch(plan, replaces=replaces, holder=holder)
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


def _named(cluster: str) -> str:
    """The option that names a cluster, where that is needed."""
    return "" if cluster == DEFAULT_CLUSTER else f" --cluster {cluster}"


async def _end_ours(client: ControllerClient, generation: int) -> None:
    """End the cluster, unless it is another's by now."""
    if await client.running() and (await client.snapshot()).generation == generation:
        await end_cluster(client)


async def _until_serving(
    ours: ClusterSnapshot, snapshots: AsyncIterator[ClusterSnapshot]
) -> ClusterSnapshot:
    """Print the steps as they go until it serves.

    Raises:
        ControllerError: another goal took its place.
        ProcessFailed: the launch failed.
    """
    printer = StepPrinter()
    async with ticking(printer.line):
        return await _followed(printer, ours, snapshots)


async def _from(
    first: ClusterSnapshot, later: AsyncIterator[ClusterSnapshot]
) -> AsyncIterator[ClusterSnapshot]:
    yield first
    async for snapshot in later:
        yield snapshot


async def _followed(
    printer: StepPrinter,
    ours: ClusterSnapshot,
    snapshots: AsyncIterator[ClusterSnapshot],
) -> ClusterSnapshot:
    async for snapshot in snapshots:
        if snapshot.seq < ours.seq or snapshot.generation < ours.generation:
            continue
        back = snapshot.rolled_back
        if back is not None and back.generation == ours.generation:
            raise ProcessFailed(_rolled_back(back.failure))
        if snapshot.generation > ours.generation:
            raise _superseded(snapshot)
        printer.show(snapshot)
        if snapshot.state is ClusterState.FAILED and snapshot.failure is not None:
            raise ProcessFailed(snapshot.failure)
        if snapshot.state is ClusterState.SERVING:
            return snapshot
    raise ControllerError("The controller went away during the launch")


def _rolled_back(failure: Failure) -> Failure:
    """Why the launch failed, and what serves instead."""
    hint = f"{failure.hint} The plan before it is brought back."
    return msgspec.structs.replace(failure, hint=hint.lstrip())


def _superseded(snapshot: ClusterSnapshot) -> ControllerError:
    """Who took our place."""
    if snapshot.plan is None or snapshot.state not in BUSY:
        return ControllerError("Somebody stopped the cluster during the launch")
    return ControllerError(
        f"Another launch took the place of this one: {snapshot.plan.model}",
        "dllm-tui status shows it; up --replace launches this one instead.",
    )


async def until_ended(
    serving: ClusterSnapshot, snapshots: AsyncIterator[ClusterSnapshot]
) -> None:
    """Wait until somebody stops or replaces the cluster.

    Raises:
        ControllerError: another launch took its place.
        ProcessFailed: it broke.
    """
    async for snapshot in snapshots:
        if snapshot.wanted_generation > serving.generation:
            raise _superseded(snapshot)
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
    last, told = ChatDelta(), ""
    async with aclosing(client.chat(request)) as deltas:
        async for delta in deltas:
            if delta.failure is not None:
                raise ProcessFailed(delta.failure)
            if first_s is None and (delta.text or delta.reasoning):
                first_s = time.monotonic() - started
            text += delta.text
            reasoning += delta.reasoning
            on_text(delta.text)
            told = tell_wait(delta, told)
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


def tell_wait(now: ChatDelta | Answering, told: str) -> str:
    """Say what an answer waits for, once for each change."""
    others = "request is" if now.ahead == 1 else "requests are"
    text = f"{now.ahead} {others} ahead…" if now.ahead else ""
    if now.waiting:
        text = f"Waiting: {now.waiting}…"
    if text and text != told:
        say(text)
    return text


def answer_text(answer: Answer) -> str:
    """``21.3 tok/s · first token 0.88 s · 42 tokens``."""
    timings = answer.timings
    first = format_seconds(timings.first_token_s or 0.0)
    speed = format_speed(timings.tok_per_s)
    return f"{speed} · first token {first} · {format_count(timings.tokens, 'token')}"


def cluster_json(snapshot: ClusterSnapshot) -> dict[str, Any]:
    """A snapshot as ``--json`` shows it: the plan carries its layer ranges too."""
    value: dict[str, Any] = msgspec.to_builtins(snapshot)
    if snapshot.plan is not None:
        value["plan"]["layers"] = msgspec.to_builtins(snapshot.planned)
    return value


def measured_text(snapshot: ClusterSnapshot) -> str:
    """Whether llama-server did what the plan says, in one sentence."""
    measured, state = snapshot.measured, snapshot.state
    if measured is None:
        begun = state in (ClusterState.STARTING, ClusterState.LOADING)
        return f"the split {'is not measured yet' if begun else 'was not measured'}"
    is_or_was = "is" if state is ClusterState.SERVING else "was"
    if not measured.mismatches:
        return f"the measured split {is_or_was} the planned one"
    return f"it {is_or_was} NOT as planned: {'; '.join(measured.mismatches)}"


def prompts_text(argv: Sequence[str]) -> str:
    """What a llama-server may keep of earlier prompts; empty where it was not told."""
    most_mib = prompts_kept_mib(argv)
    if most_mib is None:
        return ""
    if not most_mib:
        return "llama-server keeps no earlier prompts"
    most = format_bytes(most_mib << 20)
    return f"llama-server keeps at most {most} of earlier prompts on the head"


def require_model(path: str) -> str:
    """The absolute path of a model given by its path or its catalogue name.

    ``peer:/path`` is a model that a peer holds, and stays as it is.

    Raises:
        DllmError: there is no such file.
    """
    from backends.places import at_peer, beside_a_peer
    from tui.cli.inspect import resolve

    if at_peer(path):
        return path
    if (there := beside_a_peer(path)) and not Path(path).is_file():
        raise DllmError(
            f"{path} is not a whole path: where on {there[0]} is {there[1]}?",
            f"Give it from the root: {there[0]}:/…/{there[1]}.",
        )
    found = resolve(path)
    if not found.is_file():
        raise DllmError(f"There is no model file {found}", "Check the path.")
    return str(found.absolute())


def required_draft(draft: str) -> str:
    """The same for a draft, which need not be a model.

    Raises:
        DllmError: there is no such file.
    """
    ways = (NO_DRAFT, NGRAM_DRAFT, MTP_DRAFT, AUTO_DRAFT)
    return draft if draft in ways else require_model(draft)
