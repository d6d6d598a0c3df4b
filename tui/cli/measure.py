"""``dllm-tui peers measure``: the speed of devices on which nothing has run yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click
from msgspec.structs import replace

from backends.client.client import ControllerClient
from backends.errors import DllmError, disk_errors
from backends.machine_names import LOCAL
from backends.models.synthetic import Shape, synthetic_model
from backends.paths import user_paths
from backends.state import (
    Ask,
    ChatRequest,
    ClusterSpeeds,
    PeerState,
    ServerSettings,
    SpeedSource,
    Value,
)
from backends.units import format_count, format_speed
from tui.cli.bench import require_quiet
from tui.cli.chats import asked
from tui.cli.command import Command, Name, options
from tui.cli.output import Column, Table, say, unseen
from tui.cli.plan import prepared
from tui.cli.up import launched

EXAMPLES = """
dllm-tui peers measure             all devices that never ran
dllm-tui peers measure mini local  only these machines
dllm-tui peers measure --again     also those that ran
"""
OF_CPU = Shape(n_layer=32, n_embd=1024, n_ff=2816)
OF_GPU = Shape(n_layer=16, n_embd=2048, n_ff=5632)
"""232 and 460 MB: more than most caches hold, and longer to read than to begin with."""
CTX = 1024
PROMPT_TOKENS, TOKENS, ROUNDS = 200, 32, 2
CLUSTER = "measure"
"""Its own, so that no console is shown the test model."""
COUNTED_S = 2.5
"""After so long the controller has read the last answer's figures."""


class MeasuredDevice(Value, frozen=True, kw_only=True):
    """The speed of the test model on one device alone."""

    device: str
    tok_per_s: float = 0.0
    prompt_tok_per_s: float | None = None
    before_tok_per_s: float | None = None
    """Predicted before it ran."""
    failure: str = ""


def _speed_text(tok_per_s: float | None) -> str:
    return format_speed(tok_per_s) if tok_per_s else ""


MEASURED = Table(
    columns=[
        Column("DEVICE", lambda one: one.device),
        Column("MEASURED", lambda one: _speed_text(one.tok_per_s), right=True),
        Column("PROMPT", lambda one: _speed_text(one.prompt_tok_per_s), right=True),
        Column("PREDICTED", lambda one: _speed_text(one.before_tok_per_s), right=True),
        Column("NOTE", lambda one: one.failure),
    ],
    name=lambda one: one.device,
    none=lambda _: "Every device has run here: nothing to measure. See --again.",
)


@click.command(
    cls=Command,
    shows=MEASURED,
    quiet=True,
    examples=EXAMPLES,
    fails=lambda found: any(one.failure for one in found),
)
@click.argument("names", metavar="[NAME]...", nargs=-1, type=Name("peers"))
@options(("--again", bool, "Measure devices that have run, too."))
async def measure(
    client: ControllerClient, names: tuple[str, ...], again: bool
) -> Sequence[MeasuredDevice]:
    """Measure devices that never ran.

    Then plans on them are predicted from that. Each holds a model of zeros for some
    seconds, through the engine and alone. No cluster may run meanwhile. All machines
    take part if none is named; local is this one. If none but this one is there, the
    workers here are measured, too.
    """
    await require_quiet(client)
    client.use(CLUSTER)
    await client.settled_peers()
    ready = [one.name for one in await client.peers() if one.state is PeerState.READY]
    peers = tuple(name for name in names or ready if name != LOCAL)
    base = await _ask(OF_CPU, peers)
    preview = await prepared(client, base)
    devices = [
        share.device
        for share in preview.plan.split.shares
        if (not names or share.device.partition("/")[0] in names)
        and (again or _never_ran(preview.speeds, share.device))
    ]
    workers = 0
    if not peers and (not names or LOCAL in names):
        usual = await prepared(client, replace(base, peers=None, workers=None))
        workers = len(usual.plan.workers)
        # They are alike, and on one machine.
        alike = [d for worker in usual.plan.workers[:1] for d in worker.device_ids]
        devices += [d for d in alike if again or _never_ran(usual.speeds, d)]
    found = []
    for number, device in enumerate(devices, 1):
        say(f"{device} ({number} of {format_count(len(devices), 'device')}) …")
        found.append(await _measured(client, device, workers))
    return found


def _never_ran(speeds: ClusterSpeeds | None, device: str) -> bool:
    known = speeds.of_device.get(device) if speeds else None
    return known is None or known.source is SpeedSource.PRIOR


async def _ask(
    shape: Shape, peers: tuple[str, ...], split: dict[str, int] | None = None
) -> Ask:
    file = user_paths().cache_dir / "measure" / f"{shape.name}.gguf"
    with disk_errors("write", file):
        await asyncio.to_thread(synthetic_model, file, shape)
    return Ask(
        model=str(file),
        peers=peers,
        workers=0,
        ctx_size=CTX,
        split=split,
        server=ServerSettings(slots=1),
    )


async def _measured(
    client: ControllerClient, device: str, workers: int
) -> MeasuredDevice:
    machine, _, name = device.partition("/")
    shape = OF_CPU if name == "CPU" else OF_GPU
    peers = () if machine == LOCAL or workers else (machine,)
    try:
        ask = await _ask(shape, peers, {device: shape.n_layer + 1})
        ask = replace(ask, workers=0 if machine == LOCAL else workers)
        preview = await prepared(client, ask)
        if preview.refusal is not None:
            return MeasuredDevice(device=device, failure=preview.refusal.sentence)
        async with launched(client, preview, keep=False, measures=True):
            answers = [
                await asked(client, _question(number), unseen)
                for number in range(ROUNDS + 1)
            ][1:]
            await asyncio.sleep(COUNTED_S)
    except DllmError as error:
        return MeasuredDevice(device=device, failure=error.failure().sentence)
    best = max((one.timings for one in answers), key=lambda one: one.tok_per_s)
    before = preview.forecast
    return MeasuredDevice(
        device=device,
        tok_per_s=best.tok_per_s,
        prompt_tok_per_s=best.prompt_tok_per_s,
        before_tok_per_s=before.tok_per_s if before else None,
    )


def _question(number: int) -> ChatRequest:
    # Each begins in its own way, so that no prompt is known already.
    text = f"{number}" + "a" * PROMPT_TOKENS
    return ChatRequest.greedy(text, TOKENS)
