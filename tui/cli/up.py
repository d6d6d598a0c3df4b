"""``dllm-tui up`` and ``plan``: launch a model, or show what a launch would do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shlex
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, nullcontext
from itertools import zip_longest
from typing import Any

import click
import msgspec

from backends.client.client import ControllerClient
from backends.errors import (
    ControllerError,
    DllmError,
    PlanError,
    ProcessFailed,
    UsageError,
)
from backends.planning.cluster_file import EXAMPLE, FILE_BYTES_MAX, read_cluster
from backends.server_settings import (
    CTX_MIN,
    DRAFT_TOKENS_MAX,
    SLOTS_MAX,
    THREADS_MAX,
)
from backends.split.buffers import CACHE_TYPES
from backends.split.cost import band_text
from backends.split.experts import places_text
from backends.split.flags import parse_split
from backends.split.layout import format_range
from backends.state import (
    AUTO_DRAFT,
    DEFAULT_CLUSTER,
    MTP_DRAFT,
    NGRAM_DRAFT,
    NO_DRAFT,
    Alternative,
    Ask,
    ClusterSnapshot,
    ClusterState,
    FlashAttention,
    Forecast,
    GivenCluster,
    Lab,
    Objective,
    Plan,
    Preview,
    ProcessRole,
    ServerSettings,
    SpeedSource,
)
from backends.units import (
    format_bytes,
    format_count,
    format_difference,
    format_rate,
    format_seconds,
)
from tui.cli.command import (
    Command,
    Inherited,
    Name,
    cluster_option,
    options,
    refuse_with,
    refuse_without,
)
from tui.cli.down import end_cluster
from tui.cli.model_argument import require_model
from tui.cli.output import Column, emit_json, say, show, table_lines
from tui.cli.progress import StepPrinter, ticking
from tui.cli.status import cluster_json, measured_text, prompts_text
from tui.model.launch_settings import NO_RELAY, RELAYS, unusual
from tui.widgets.sources import told

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
PLAN_EXAMPLES = """
dllm-tui plan m.gguf --peer mini
dllm-tui plan m.gguf --peer mini --split local/MTL0=38,mini/MTL0=10
dllm-tui plan m.gguf --peer mini --best --explain
dllm-tui plan --example > cluster.toml
dllm-tui plan m.gguf --cluster-file cluster.toml --best throughput --slots 4
dllm-tui plan m.gguf --best context -o json | jq .tok_per_s
"""
BUSY = frozenset({ClusterState.STARTING, ClusterState.LOADING, ClusterState.SERVING})
USUAL = ServerSettings()
PAIRS = {word: mode for mode, word in RELAYS.items()}
TYPES = click.Choice(list(CACHE_TYPES))
BEST = ("--best", "--objective")
OBJECTIVES = click.Choice([one.value for one in Objective])
THREADS = click.IntRange(1, THREADS_MAX)
METHODS = (NO_DRAFT, NGRAM_DRAFT, MTP_DRAFT, AUTO_DRAFT)
SERVER_OPTIONS = (
    *("cache_type_k", "cache_type_v", "slots"),
    *("flash_attention", "threads", "draft_max"),
)

PLAN_OPTIONS: tuple[tuple[Any, ...], ...] = (
    (
        "--workers",
        click.IntRange(0, 16),
        "CPU workers to start on this machine; 0 for the head alone.",
    ),
    ("--peer peers", Name("peers"), "Peer to use as a worker (repeatable)."),
    ("--head", Name("heads"), "Peer to run llama-server on, not this machine."),
    (
        "--split",
        "N,N…|DEVICE=N…",
        "Whole layers per device; the output counts as one more. Name the devices "
        "(mini/MTL0=6,local/CPU=7), or list counts in the order that plan prints, "
        "without the head's CPU (6,7 for 12 layers).",
    ),
    (
        "--best --objective objective",
        OBJECTIVES,
        "Find the best split for an aim: most tokens a second for one client "
        "(decode, if none is named) or for all slots (throughput), the first token "
        "soonest (first-token), least network (network), longest context (context).",
    ),
    (
        "--pin pins",
        "PIN",
        "Condition for --best: output=DEVICE, DEVICE>=LAYERS, DEVICE<=LAYERS, "
        "DEVICE=LAYERS or DEVICE<=12GiB (repeatable).",
    ),
    ("--exclude", Name("devices", "DEVICE"), "Device not to use (repeatable)."),
    ("--context ctx_size", click.IntRange(CTX_MIN), "Context length in tokens."),
    ("--cache-type-k", TYPES, "Type of the K cache.", USUAL.cache_type_k),
    (
        "--cache-type-v",
        TYPES,
        "Type of the V cache; a quantised one needs flash attention.",
        USUAL.cache_type_v,
    ),
    (
        "--slots",
        click.IntRange(1, SLOTS_MAX),
        "Parallel requests; they share the context.",
        USUAL.slots,
    ),
    (
        "--flash-attention",
        click.Choice([choice.value for choice in FlashAttention]),
        "Fused attention; it needs less memory.",
        USUAL.flash_attention.value,
    ),
    ("--threads", THREADS, "Threads of llama-server; its own choice by default."),
    (
        "--draft",
        Name("models", "MODEL|ngram|mtp|auto|none"),
        "Speculative decoding, so that several tokens share a round trip: a small "
        "model of the same vocabulary, earlier text (ngram), layers of the model "
        "itself (mtp), or the fastest of these, predicted and measured once (auto).",
        USUAL.draft,
    ),
    (
        "--draft-max",
        click.IntRange(1, DRAFT_TOKENS_MAX),
        "Longest draft, in tokens.",
        USUAL.draft_max,
    ),
    ("--worker-threads", THREADS, "Threads per CPU worker here; they share the cores."),
    ("--port api_port", click.IntRange(1, 65535), "Port of the API."),
    ("--force", bool, "Launch even if it is predicted not to fit."),
    (
        "--relay",
        click.Choice([*PAIRS, NO_RELAY]),
        "Relays between head and workers: pairs with other machines (auto), pairs "
        "with workers here too (pair), at the head only (single), or none and no "
        "metering (off). The setting decides by default.",
    ),
)


def plan_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = cluster_option(command)
    command = options(*PLAN_OPTIONS)(command)
    for option in (
        click.option("--ctx", "ctx_size", type=click.IntRange(CTX_MIN), hidden=True),
        click.option("--model", cls=Inherited, hidden=True),
        click.argument("path", metavar="MODEL", required=False, type=Name("models")),
    ):
        command = option(command)
    return command


class PlanCommand(Command):
    """A command that passes what follows ``--`` on to llama-server."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take them away before click reads the others."""
        end = args.index("--") if "--" in args else len(args)
        ctx.params["server_args"] = tuple(args[end + 1 :])
        return super().parse_args(ctx, list(_with_objective(args[:end])))

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["MODEL", "[OPTIONS]", "[-- LLAMA_SERVER_ARGS]"]


def _with_objective(args: list[str]) -> Iterator[str]:
    # An aim need not be named: what follows may as well be the model.
    for arg, following in zip_longest(args, args[1:]):
        alone = arg in BEST and following not in OBJECTIVES.choices
        yield f"{arg}={Objective.DECODE.value}" if alone else arg


@click.command(cls=PlanCommand, quiet=True, examples=UP_EXAMPLES)
@plan_options
@options(
    ("--detach", bool, "Return once it is serving, and leave it running."),
    ("--replace", bool, "Replace the running plan; clients wait."),
)
async def up(
    client: ControllerClient,
    detach: bool,
    replace: bool,
    as_json: bool,
    **wish: Any,
) -> None:
    """Serve MODEL, a GGUF file or a model name.

    Starts llama-server and its workers. Without --detach it stays in the foreground;
    Ctrl-C stops the cluster. See what would be started with dllm-tui plan.
    """
    ask = await _ask(**wish)
    await serve(client, ask, detach=detach, replace=replace, as_json=as_json)


async def serve(
    client: ControllerClient, ask: Ask, *, detach: bool, replace: bool, as_json: bool
) -> None:
    """Launch what is asked for; unless ``detach``, stay until it ends.

    Raises:
        PlanError: a device is too small for its share.
    """
    preview = await _prepared(client, ask)
    if preview.refusal is not None:
        raise PlanError(preview.refusal.what, preview.refusal.hint)
    for note in preview.notes:
        say(note)
    if preview.forecast is not None and ask.objective is not None:
        say(f"Predicted: {forecast_text(preview.forecast)}.")
    async with launched(client, preview, keep=detach, replace=replace) as (
        serving,
        snapshots,
    ):
        if as_json:
            emit_json(cluster_json(serving))
        say(f"Serving {serving.api_url}; {measured_text(serving)}.")
        if not detach:
            say("Ctrl-C stops the cluster.")
            await until_ended(serving, snapshots)


def preview_json(preview: Preview) -> dict[str, Any]:
    """A preview as ``--json`` shows it: the plan carries its layer ranges."""
    value: dict[str, Any] = msgspec.to_builtins(preview)
    value["plan"]["layers"] = value["layers"]
    value["flags"] = list(_server_flags(preview))
    told = value["forecast"] or {}
    for name in ("tok_per_s", "first_token_s", "bytes_per_token", "trips_per_token"):
        value[name] = told.get(name)
    undrafted = value["undrafted"] or {}
    value["tok_per_s_without_draft"] = undrafted.get("tok_per_s")
    value["first_token_prompt_tokens"] = told.get("prompt_tokens")
    value["band"] = [told["low"], told["high"]] if told else None
    del value["token"], value["speeds"]
    return value


def _server_flags(preview: Preview) -> tuple[str, ...]:
    servers = [c.argv for c in preview.commands if c.role is ProcessRole.SERVER]
    return servers[0] if servers else ()


def forecast_text(told: Forecast) -> str:
    """``~20.6 tok/s (18.9 to 22.4), first token 0.88 s …``, for people."""
    source = {
        SpeedSource.PRIOR: "usual speeds: not everything has run here yet",
        SpeedSource.GIVEN: "the speeds of the cluster file",
        SpeedSource.MEASURED: "measured runs",
    }[told.source]
    return (
        f"{band_text(told)}, first token "
        f"~{format_seconds(told.first_token_s)} after a prompt of "
        f"{format_count(told.prompt_tokens, 'token')}, "
        f"{format_bytes(told.bytes_per_token)} and "
        f"{format_count(round(told.trips_per_token), 'trip')} a token; from {source}"
    )


def preview_lines(preview: Preview) -> Iterator[str]:
    """The same for people; devices in the order in which ``--split`` counts them."""
    plan = preview.plan
    yield f"{plan.model} · context {plan.ctx_size} · head {plan.head}"
    if settings := unusual(plan):
        yield settings
    if plan.experts:
        yield f"Experts of {places_text(plan.experts)} (-ot)"
    yield ""
    yield from _memory_lines(preview)
    servers = (c.argv for c in preview.commands if c.role is ProcessRole.SERVER)
    yield from filter(None, map(prompts_text, servers))
    yield from _forecast_lines(preview)
    yield from (("", *preview.notes) if preview.notes else ())
    if preview.refusal is not None:
        yield from ("", f"It would be refused: {preview.refusal.sentence}")
    for command in preview.commands:
        yield from ("", f"{command.name} on {command.machine}:")
        words = (w if "<port>" in w else shlex.quote(w) for w in command.argv)
        yield f"  {' '.join(words)}"


def _forecast_lines(preview: Preview) -> Iterator[str]:
    if preview.forecast is None:
        return
    yield from ("", f"Predicted: {forecast_text(preview.forecast)}.")
    if preview.undrafted is not None:
        yield f"Without the draft: {band_text(preview.undrafted)}."
    if preview.why:
        yield preview.why
    speeds = preview.speeds
    if speeds is not None and speeds.residual is not None:
        off = format_difference(speeds.residual)
        yield f"The last run's passes took {off} against what was predicted before it."
    if preview.alternatives:
        yield ""
        yield from table_lines(ALTERNATIVE_COLUMNS, preview.alternatives)


def _told(figure: Callable[[Forecast], str]) -> Callable[[Alternative], str]:
    return lambda one: figure(one.forecast) if one.forecast else ""


ALTERNATIVE_COLUMNS = [
    Column("PLAN", lambda one: one.name),
    Column(
        "TOK/S", _told(lambda f: f"~{format_rate(f.tok_per_s).strip()}"), right=True
    ),
    Column("FIRST", _told(lambda f: f"~{format_seconds(f.first_token_s)}"), right=True),
    Column("PER TOKEN", _told(lambda f: format_bytes(f.bytes_per_token)), right=True),
    Column(
        "LAYERS",
        lambda one: (
            " | ".join(
                f"{device} {count}"
                for device, count in zip(one.devices, one.counts, strict=True)
                if count
            )
            or one.why
        ),
    ),
]


def _memory_lines(preview: Preview) -> list[str]:
    split = preview.plan.split
    which = {r.device: format_range(r, split.n_layer) for r in preview.layers}
    has = preview.available_bytes
    columns = [
        Column("DEVICE", lambda row: row[0].device),
        Column("LAYERS", lambda row: str(row[0].layers), right=True),
        Column("WHICH", lambda row: which.get(row[0].device, "")),
        Column(
            "NEEDS",
            lambda row: told(format_bytes(row[1].total_bytes), row[1].source),
            right=True,
        ),
        Column(
            "HAS",
            lambda row: (
                format_bytes(has[row[0].device]) if row[0].device in has else "?"
            ),
            right=True,
        ),
        Column("SOURCE", lambda row: row[1].source.value),
    ]
    return table_lines(columns, zip(split.shares, preview.memory, strict=True))


@click.command(
    cls=PlanCommand,
    shows=preview_lines,
    as_json=preview_json,
    watches=True,
    examples=PLAN_EXAMPLES,
)
@plan_options
@options(
    ("--explain", bool, "Compare with other plans: alone, without a peer, …"),
    ("--cluster-file", "FILE", "Plan for the machines of a TOML file instead."),
    ("--example", bool, "Print a cluster file to begin with."),
)
async def plan(
    client: ControllerClient,
    explain: bool,
    cluster_file: str | None,
    example: bool,
    **wish: Any,
) -> Preview | None:
    """Show what up would do: layers, memory, speed, commands.

    Starts nothing. Takes the options of dllm-tui up.
    """
    if example:
        show(EXAMPLE.rstrip())
        return None
    if cluster_file is not None:
        refuse_with("--cluster-file", "--workers", "--worker-threads", "--relay")
    given = None if cluster_file is None else _given_cluster(cluster_file)
    ask = await _ask(**wish)
    try:
        if given is not None:
            return await client.imagine(given, ask, explain=explain)
        return await _prepared(client, ask, explain=explain)
    finally:
        if client.started_controller:
            await client.shutdown(only_if_idle=True)


def _given_cluster(path: str) -> GivenCluster:
    """Read a cluster file.

    Raises:
        UsageError: it is not there, too large, or cannot be meant.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise UsageError(f"{path} is too large for a cluster file")
        # Editors of Windows put a mark of three bytes in front.
        return read_cluster(raw.decode("utf-8-sig"), path)
    except OSError as error:
        raise UsageError(
            f"Cannot read {path or 'a file without a name'} ({error.strerror})",
            "See dllm-tui plan --example.",
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no text") from error


async def _prepared(
    client: ControllerClient, ask: Ask, *, explain: bool = False
) -> Preview:
    if ask.peers or ask.head or ask.objective:
        await client.settled_peers()
    return await client.prepare(ask, explain=explain)


async def _ask(
    *,
    path: str | None,
    model: str | None,
    peers: tuple[str, ...],
    split: str | None,
    draft: str,
    relay: str | None,
    objective: str | None,
    server_args: tuple[str, ...],
    **wish: Any,
) -> Ask:
    if (path is None) is (model is None):
        what = "Missing argument 'MODEL'." if path is None else "Give one model."
        raise click.UsageError(what, click.get_current_context())
    if draft == NO_DRAFT:
        refuse_without("--draft", "--draft-max")
    if draft not in METHODS:
        draft = await require_model(draft)
    server = {name: wish.pop(name) for name in SERVER_OPTIONS}
    return Ask(
        model=await require_model(path or model or ""),
        peers=peers or None,
        server=msgspec.convert({**server, "draft": draft}, ServerSettings),
        relay=relay != NO_RELAY,
        pair=PAIRS.get(relay or ""),
        objective=Objective(objective) if objective else None,
        extra_args=server_args,
        directory=os.getcwd(),
        **shares(split),
        **wish,
    )


def shares(split: str | None) -> dict[str, Any]:
    """The fields of an ``Ask`` for what ``--split`` says."""
    found = parse_split(split) if split is not None else None
    return {"split" if isinstance(found, dict) else "counts": found}


# --- launching -----------------------------------------------------------------------


@asynccontextmanager
async def launched(
    client: ControllerClient,
    what: Plan | Preview,
    *,
    keep: bool,
    replace: bool = False,
    measures: bool = False,
    lab: Lab | None = None,
) -> AsyncIterator[tuple[ClusterSnapshot, AsyncIterator[ClusterSnapshot]]]:
    """A serving cluster of a plan, prepared or not, and its further snapshots.

    Unless ``keep``, the cluster ends with the block, also when we are killed, at any
    moment: the controller sees the stream break that was there before the launch.
    One that only ``measures`` prints no steps and is not listed among the launches.
    It loads behind the ``lab``.

    Raises:
        ControllerError: something else runs and is not to be replaced, or was launched
            meanwhile.
        ProcessFailed: the launch failed.
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
        try:
            serving = await _until_serving(ours, now, snapshots, shows=not measures)
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
