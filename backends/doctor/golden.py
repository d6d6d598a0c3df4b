"""Golden output: every worker computes a demo model's known answer.

A machine that gives another one has a wrong driver, bad memory or another build. Each
worker computes alone, then all together in their order. Every run has a cluster of its
own: nothing that serves is touched.

Each known answer was computed once, greedily, on a CPU. The candidates at each of its
tokens lie so far apart that no rounding changes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import secrets
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from backends.client.client import ControllerClient
from backends.demo import MODEL_PATH, is_bundled
from backends.engine.fit_params import OUTPUT_TO_HEAD
from backends.engine.llama_client import GreedyToken, ServerClient
from backends.errors import DllmError
from backends.machine_names import LOCAL
from backends.models.download import DEMO_PACKAGE, PACKAGES, demo_model
from backends.paths import Paths
from backends.planning.proposal import ABLE
from backends.split.flags import used_workers
from backends.state import (
    Ask,
    ClusterSnapshot,
    ClusterState,
    Failure,
    Peer,
    Plan,
    ProcessRole,
    ServerSettings,
    Share,
    Split,
    Value,
)
from backends.units import three_figures

LOGPROB_OFF = 0.05
SECOND_OFF = 0.6
"""Half precision and other orders of addition stay below these."""


class KnownAnswer(NamedTuple):
    """The tokens of a prompt and its answer, with the best two probabilities each."""

    size_bytes: int
    """Of the model, of which workers are sent a part."""
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    second_logprobs: tuple[float, ...]

    def difference(self, answer: Sequence[GreedyToken]) -> str:
        """The first difference of an answer, a clause; empty without one."""
        count = len(self.tokens)
        for at, (token, known) in enumerate(zip(answer, self.tokens, strict=False), 1):
            if token.id != known:
                return f"its answer is another from token {at} of {count} on"
        if len(answer) != count:
            return f"its answer has {len(answer)} tokens instead of {count}"
        firsts = zip(answer, self.logprobs, strict=True)
        first = [abs(token.logprob - known) for token, known in firsts]
        seconds = zip(answer, self.second_logprobs, strict=True)
        second = [abs(token.second_logprob - known) for token, known in seconds]
        # What is not a number is within nothing.
        if all(o <= LOGPROB_OFF for o in first) and all(
            o <= SECOND_OFF for o in second
        ):
            return ""
        off = max((o for o in (*first, *second) if math.isfinite(o)), default=math.inf)
        return f"its probabilities are off by up to {three_figures(off)} (logarithms)"


BUNDLED = KnownAnswer(
    size_bytes=10_213_312,
    # "Who are you?" in its chat template.
    prompt=(1, 456, 273, 201, 57, 274, 471, 299, 33, 2, 201, 1, 67, 585, 301, 389, 201),
    # "I am a tiny llama model that ships with dllm-tui, so that a first launch …"
    tokens=(
        *(43, 491, 262, 973, 484, 316, 453, 1424, 85, 522, 383, 15),
        *(371, 14, 492, 453, 262, 604, 617, 857, 1066, 1182, 268, 405),
    ),
    logprobs=(
        *(-0.0166, -0.0421, -0.0935, -0.0, -0.0007, -0.0001, -0.0001, -0.0),
        *(-0.0, -0.0, -0.0, -0.0001, -0.0001, -0.0002, -0.0, -0.0),
        *(-0.0, -0.0001, -0.0003, -0.0, -0.0003, -0.0004, -0.0001, -0.0005),
    ),
    second_logprobs=(
        *(-4.68, -3.69, -2.54, -12.38, -7.84, -10.44, -10.39, -10.94),
        *(-11.56, -12.18, -12.97, -11.07, -9.27, -9.35, -11.01, -10.7),
        *(-11.45, -10.82, -10.07, -10.96, -9.93, -8.72, -9.71, -9.03),
    ),
)


SMOLLM2 = KnownAnswer(
    size_bytes=PACKAGES[DEMO_PACKAGE].size_bytes,
    # "1, 2, 3" and so on to "12,"
    prompt=(
        *(33, 28, 216, 34, 28, 216, 35, 28, 216, 36, 28, 216),
        *(37, 28, 216, 38, 28, 216, 39, 28, 216, 40, 28, 216),
        *(41, 28, 216, 33, 32, 28, 216, 33, 33, 28, 216, 33),
        *(34, 28),
    ),
    # " 13, 14, 15, 16, 17, 18,"
    tokens=(
        *(216, 33, 35, 28, 216, 33, 36, 28, 216, 33, 37, 28),
        *(216, 33, 38, 28, 216, 33, 39, 28, 216, 33, 40, 28),
    ),
    logprobs=(
        *(-0.0288, -0.0016, -0.0112, -0.0513, -0.0132, -0.0009, -0.0013, -0.0435),
        *(-0.0076, -0.0013, -0.0112, -0.1109, -0.018, -0.0033, -0.0074, -0.0344),
        *(-0.0054, -0.0021, -0.0022, -0.0279, -0.0051, -0.0037, -0.0023, -0.0597),
    ),
    second_logprobs=(
        *(-4.21, -6.8, -5.21, -4.47, -5.03, -7.3, -7.45, -4.47),
        *(-5.65, -6.87, -4.66, -3.95, -5.08, -5.85, -5.35, -4.91),
        *(-6.06, -6.33, -6.59, -5.21, -6.54, -5.71, -6.27, -4.53),
    ),
)


def known_model(model_dirs: Iterable[str]) -> tuple[Path, KnownAnswer] | None:
    """A model here whose answer is known: the smallest; None if there is none."""
    if is_bundled():
        return MODEL_PATH, BUNDLED
    got = demo_model(model_dirs)
    return (got, SMOLLM2) if got else None


CTX_SIZE = 256
LAUNCH_S = 60.0
SLOW_BYTES_PER_S = 1 << 20
"""The slowest network over which a known model is waited for."""
ANSWER_S = 30.0
AT_ONCE = 3
LOG_BYTES = 8192
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


async def operator_runs(
    paths: Paths, peers: Sequence[Peer], truncated: str
) -> tuple[GoldenRun, ...]:
    """Compute a truncated model on every machine: it shows the operators it lacks."""
    return tuple(await _each_alone(paths, peers, (), truncated))


async def _each_alone(
    paths: Paths,
    peers: Sequence[Peer],
    order: Sequence[str],
    model: str,
    known: KnownAnswer | None = None,
) -> list[GoldenRun]:
    able = [peer.name for peer in peers if peer.state in ABLE and peer.devices]
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
        plan = await _plan(client, workers, model, is_truncated=known is None)
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
    client: ControllerClient, peers: Sequence[str], model: str, *, is_truncated: bool
) -> Plan:
    """A model on these peers alone; without one on this machine alone."""
    # Its output is as large as the model's, and computes as any matrix does.
    ask = Ask(
        model=model,
        extra_args=OUTPUT_TO_HEAD if is_truncated and peers else (),
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
