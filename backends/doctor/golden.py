"""Golden output: every worker computes a demo model's known answer.

A machine that gives another one has a wrong driver, bad memory or another build. Each
worker computes alone, then all together in their order. Every run has a cluster of its
own: nothing that serves is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

from msgspec.structs import replace

from backends.client.client import ControllerClient
from backends.doctor.known_answers import BUNDLED, KnownAnswer
from backends.engine.server import GreedyToken, ServerClient
from backends.errors import DllmError
from backends.paths import Paths
from backends.places import LOCAL
from backends.split.flags import used_workers
from backends.state import (
    Ask,
    ClusterSnapshot,
    ClusterState,
    Failure,
    Peer,
    PeerState,
    Plan,
    ProcessRole,
    ServerSettings,
    Share,
    Split,
    Value,
)

CTX_SIZE = 256
LAUNCH_S = 60.0
SLOW_BYTES_PER_S = 1 << 20
"""The slowest network over which a known model is waited for."""
ANSWER_S = 30.0
AT_ONCE = 3
LOG_BYTES = 8192
_OUTPUT_TO_HEAD = ("-ot", r"^(output|token_embd)\.weight$=CPU")
_ABLE = (PeerState.READY, PeerState.STARTING, PeerState.SERVING)
_ENDED = (ClusterState.SERVING, ClusterState.FAILED, ClusterState.IDLE)
_NO_OPERATOR = re.compile(
    r"(?:unsupported op|op not supported|does not support op(?:eration)?"
    r"|unimplemented op|not implemented for op)\W+(\w+)",
    re.I,
)


class GoldenRun(Value, frozen=True, kw_only=True):
    machines: tuple[str, ...]
    """In the order of the layers; ``local`` for the head alone."""
    wrong: str = ""
    """The error, a clause; empty if the answer was the known one."""
    operator: str = ""
    """The operator that a device lacks, as its engine calls it."""
    skipped: str = ""
    """Why it was not computed, a clause; then nothing is known."""
    culprit: str = ""
    """The machine whose process ended, if one did."""


async def golden_runs(
    paths: Paths,
    peers: Sequence[Peer],
    order: Sequence[str],
    model: Path,
    known: KnownAnswer,
) -> tuple[GoldenRun, ...]:
    """Every machine alone, a few at once, then all that were right, in ``order``."""
    found = await _each_alone(paths, peers, order, str(model), known)
    right = tuple(
        one.machines[0] for one in found[1:] if not (one.wrong or one.skipped)
    )
    if len(right) > 1:
        found.append(await golden_run(paths, right, "doctor", str(model), known))
    return tuple(found)


async def canary_runs(
    paths: Paths, peers: Sequence[Peer], canary: str
) -> tuple[GoldenRun, ...]:
    """Have every machine compute a canary: it shows the operators that it lacks."""
    return tuple(await _each_alone(paths, peers, (), canary))


async def _each_alone(
    paths: Paths,
    peers: Sequence[Peer],
    order: Sequence[str],
    model: str,
    known: KnownAnswer | None = None,
) -> list[GoldenRun]:
    able = [peer.name for peer in peers if peer.state in _ABLE and peer.devices]
    able.sort(key=lambda name: order.index(name) if name in order else len(order))
    names = [LOCAL, *able]
    limit, at_once = asyncio.Semaphore(AT_ONCE), min(AT_ONCE, len(names))

    async def alone(number: int, name: str) -> GoldenRun:
        async with limit:
            cluster = f"doctor{number}"
            return await golden_run(
                paths, (name,), cluster, model, known, at_once=at_once
            )

    runs = (alone(number, name) for number, name in enumerate(names))
    return list(await asyncio.gather(*runs))


async def golden_run(
    paths: Paths,
    machines: tuple[str, ...],
    name: str,
    model: str,
    known: KnownAnswer | None = None,
    *,
    at_once: int = 1,
) -> GoldenRun:
    """Launch a model on these machines; its answer is compared if it is known."""
    client = ControllerClient(paths, cluster=name)
    run = GoldenRun(machines=machines)
    launch_s = LAUNCH_S + (known.size_bytes // SLOW_BYTES_PER_S if known else 0)
    launch_s *= at_once
    try:
        workers = [one for one in machines if one != LOCAL]
        plan = await _plan(client, workers, model, is_canary=known is None)
        async with _launched(client, plan, launch_s) as serving:
            if serving.failure is not None or serving.state is not ClusterState.SERVING:
                return await _failed(client, run, plan, serving.failure)
            answer = await _answer(serving, known or BUNDLED)
            if answer is None:
                return await _failed(client, run, plan, None)
            return replace(run, wrong=known.difference(answer) if known else "")
    except TimeoutError:
        return replace(run, wrong=f"it did not serve within {launch_s:g} s")
    except DllmError as error:
        return replace(run, skipped=error.what)


async def _plan(
    client: ControllerClient, peers: Sequence[str], model: str, *, is_canary: bool
) -> Plan:
    """A model on these peers alone; without one on this machine alone."""
    # A canary's output is as large as the model's, and computes as any matrix does.
    ask = Ask(
        model=model,
        extra_args=_OUTPUT_TO_HEAD if is_canary and peers else (),
        workers=0,
        peers=tuple(peers),
        head=LOCAL,
        ctx_size=CTX_SIZE,
        server=ServerSettings(threads=1),
        api_port=_free_port(),
    )
    plan = await client.propose(ask)
    plan = replace(plan, keep_awake=False)
    devices = [device for one in plan.workers for device in one.device_ids]
    if not devices:
        return plan
    units = plan.split.n_layer + 1
    parts = [
        (at + 1) * units // len(devices) - at * units // len(devices)
        for at in range(len(devices))
    ]
    layers = dict(zip(devices, parts, strict=True))
    shares = tuple(
        Share(device=share.device, layers=layers.get(share.device, 0))
        for share in plan.split.shares
    )
    return replace(plan, split=Split(n_layer=plan.split.n_layer, shares=shares))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.asynccontextmanager
async def _launched(
    client: ControllerClient, plan: Plan, launch_s: float
) -> AsyncIterator[ClusterSnapshot]:
    """The cluster once it serves or has failed; it ends with the block, or with us."""
    holder = secrets.token_hex(8)
    async with aclosing(client.snapshots(holder=holder)) as snapshots:
        now = await anext(snapshots)
        if now.wanted_generation:
            raise DllmError(f"the cluster {now.cluster} runs already", "Stop it.")
        try:
            async with asyncio.timeout(launch_s):
                ours = await client.launch(
                    plan, replaces=0, holder=holder, listed=False
                )
                async for now in snapshots:
                    if now.generation >= ours.generation and now.state in _ENDED:
                        break
            yield now
        finally:
            with contextlib.suppress(DllmError, TimeoutError):
                await _stopped(client, snapshots)


async def _stopped(
    client: ControllerClient, snapshots: AsyncIterator[ClusterSnapshot]
) -> None:
    asked = await client.stop()
    async with asyncio.timeout(LAUNCH_S):
        async for now in snapshots:
            if now.generation >= asked.generation and now.state is ClusterState.IDLE:
                return


async def _answer(
    serving: ClusterSnapshot, known: KnownAnswer
) -> tuple[GreedyToken, ...] | None:
    servers = (p.port for p in serving.processes if p.role is ProcessRole.SERVER)
    port = next(servers, None)
    if port is None:
        return None
    async with ServerClient(port) as server:
        return await server.greedy(known.prompt, len(known.tokens), ANSWER_S)


async def _failed(
    client: ControllerClient, run: GoldenRun, plan: Plan, failure: Failure | None
) -> GoldenRun:
    """Tell from logs why nothing was computed, and on which machine."""
    what = failure.what if failure else "a process ended while it computed"
    tail = "\n".join(failure.log_tail) if failure else ""
    blamed = failure.process if failure else ""
    for worker in used_workers(plan):
        text = tail if worker.name == blamed else ""
        if not worker.endpoint:
            text += await _log(client, worker.name)
        if found := _NO_OPERATOR.search(text):
            return replace(
                run,
                wrong=f"its device lacks the operator {found[1]}",
                operator=found[1],
                culprit=worker.peer,
            )
    culprits = [w.peer for w in plan.workers if w.name and w.name == blamed]
    return replace(run, wrong=what, culprit=next(iter(culprits), ""))


async def _log(client: ControllerClient, name: str) -> str:
    try:
        return (await client.read_log(name, -LOG_BYTES, LOG_BYTES)).text
    except DllmError:
        return ""
