"""``dllm-tui plan``: what a launch would do. Its options are those of ``up`` too."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import click
import msgspec

from backends.client.client import ControllerClient
from backends.errors import UsageError
from backends.machine_names import LOCAL
from backends.planning.cluster_file import EXAMPLE, FILE_BYTES_MAX, read_cluster
from backends.server_settings import (
    CTX_MIN,
    DRAFT_TOKENS_MAX,
    SLOTS_MAX,
    THREADS_MAX,
    is_by_tensor,
)
from backends.split.buffers import CACHE_TYPES
from backends.split.cost import band_text, first_token_text
from backends.split.experts import experts_text, parse_experts
from backends.split.flags import DEVICES_MAX, parse_split
from backends.split.layout import format_range
from backends.state import (
    AUTO_DRAFT,
    MTP_DRAFT,
    NGRAM_DRAFT,
    NO_DRAFT,
    Alternative,
    Ask,
    FlashAttention,
    Forecast,
    GivenCluster,
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
    format_mean,
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
from tui.cli.model_argument import require_model
from tui.cli.output import Column, show, table_lines
from tui.cli.status import prompts_text
from tui.model.best_choices import FOLDED_FROM, folded
from tui.model.launch_settings import NO_RELAY, RELAYS, unusual
from tui.widgets.sources import told

PLAN_EXAMPLES = """
dllm-tui plan m.gguf --peer mini
dllm-tui plan m.gguf --peer mini --split local/MTL0=38,mini/MTL0=10
dllm-tui plan m.gguf --peer mini --best --explain
dllm-tui plan --example > cluster.toml
dllm-tui plan m.gguf --cluster-file cluster.toml --best throughput --slots 4
dllm-tui plan m.gguf --best context -o json | jq .tok_per_s
"""
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
        click.IntRange(0, DEVICES_MAX),
        "CPU workers to start on this machine; 0 for the head alone. Without --workers "
        "and --peer all peers that are ready take part, or two workers here if there "
        "is none, and no GPU.",
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
    (
        "--experts",
        "DEVICE=N-N",
        "Layers whose experts are on another device than the layer (repeatable).",
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
    value["depth"] = told.get("depth")
    value["first_token_prompt_tokens"] = told.get("prompt_tokens")
    value["band"] = [told["low"], told["high"]] if told else None
    ends = ("first_token_low_s", "first_token_high_s")
    value["first_token_band"] = [told[end] for end in ends] if told else None
    value["residual"] = (value["speeds"] or {}).get("residual")
    del value["token"], value["speeds"]
    return value


def _server_flags(preview: Preview) -> tuple[str, ...]:
    servers = [c.argv for c in preview.commands if c.role is ProcessRole.SERVER]
    return servers[0] if servers else ()


def forecast_text(told: Forecast) -> str:
    """``~20.6 tok/s (18.9 to 22.4), first token 0.88 s …``, for people."""
    source = {
        SpeedSource.PRIOR: "usual speeds",
        SpeedSource.GIVEN: "the speeds of the cluster file",
        SpeedSource.MEASURED: "measured runs",
    }[told.source]
    return (
        f"{band_text(told)} at depth {told.depth}, {first_token_text(told)}, "
        f"{format_bytes(told.bytes_per_token)} and "
        f"{format_mean(told.trips_per_token, 'trip')} a token; from {source}"
    )


def preview_lines(preview: Preview) -> Iterator[str]:
    """The same for people; devices in the order in which ``--split`` counts them."""
    plan = preview.plan
    yield f"{plan.model} · context {plan.ctx_size} · head {plan.head}"
    if settings := unusual(plan):
        yield settings
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
    if any(_is_measurable(preview.plan, device) for device in _unknown(preview)):
        yield "dllm-tui peers measure tells the speed of devices that never ran."
    if preview.undrafted is not None:
        yield f"Without the draft: {band_text(preview.undrafted)}."
    if preview.why:
        yield preview.why
    speeds = preview.speeds
    if speeds is not None and speeds.residual is not None:
        off = format_difference(speeds.residual)
        yield f"The model's last run took {off} a pass against what was predicted then."
    if others := folded([*_others(preview)]):
        yield ""
        yield from table_lines(ALTERNATIVE_COLUMNS, others)


def _unknown(preview: Preview) -> Iterator[str]:
    # Devices with layers whose speed is the usual one of their kind.
    known = preview.speeds.of_device if preview.speeds else {}
    for share in preview.plan.split.shares:
        speed = known.get(share.device)
        if share.layers and speed and speed.source is SpeedSource.PRIOR:
            yield share.device


def _is_measurable(plan: Plan, device: str) -> bool:
    # With as many threads as ``peers measure`` has it run with.
    worker, asked = plan.worker_of.get(device), plan.asked or Ask(model=plan.model)
    if worker is None:
        return plan.head == LOCAL and plan.server.threads is None
    is_usual = asked.workers is None and asked.worker_threads is None
    return worker.peer != LOCAL or is_usual


def _others(preview: Preview) -> Iterator[Alternative]:
    """The alternatives without the plan itself, and without near twins of others."""
    plan, seen = preview.plan, set[object]()
    used = [(share.device, share.layers) for share in plan.split.shares if share.layers]
    own = used, plan.ctx_size, plan.experts, is_by_tensor(plan.extra_args), plan.head
    for one in preview.alternatives:
        held = [(d, n) for d, n in zip(one.devices, one.counts, strict=True) if n]
        is_own = own == (held, one.ctx_size, one.experts, one.by_tensor, one.head)
        figures = *(column.text(one) for column in FIGURES), *sorted(d for d, _ in held)
        is_twin = figures in seen and not one.imagined
        if one.forecast is None or not (is_own or is_twin):
            yield one
        seen.add(figures)


def _told(figure: Callable[[Forecast], str]) -> Callable[[Alternative], str]:
    return lambda one: figure(one.forecast) if one.forecast else ""


FIGURES = [
    Column(
        "TOK/S", _told(lambda f: f"~{format_rate(f.tok_per_s).strip()}"), right=True
    ),
    Column("FIRST", _told(lambda f: f"~{format_seconds(f.first_token_s)}"), right=True),
    Column("PER TOKEN", _told(lambda f: format_bytes(f.bytes_per_token)), right=True),
]
ALTERNATIVE_COLUMNS = [
    Column("PLAN", lambda one: one.name),
    *FIGURES,
    Column("LAYERS", lambda one: _alternative_layers(one) or one.why),
]


def _alternative_layers(one: Alternative) -> str:
    counts = zip(one.devices, one.counts, strict=True)
    text = " | ".join(f"{device} {count}" for device, count in counts if count)
    return "; ".join(filter(None, (text, experts_text(one.experts))))


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
    rows = [*zip(split.shares, preview.memory, strict=True)]
    used = [row for row in rows if row[0].layers or row[1].total_bytes]
    n_idle = len(rows) - len(used)
    if n_idle < FOLDED_FROM:
        return table_lines(columns, rows)
    idle = f"{format_count(n_idle, 'more device')} of the plan hold nothing."
    return [*table_lines(columns, used), idle]


@click.command(
    cls=PlanCommand,
    shows=preview_lines,
    as_json=preview_json,
    watches=True,
    examples=PLAN_EXAMPLES,
)
@plan_options
@options(
    (
        "--depth",
        click.IntRange(1),
        "Tokens in context to predict the speed at; 512, or half of the context.",
    ),
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
    ask = await ask_of(**wish)
    try:
        if given is not None:
            return await client.imagine(given, ask, explain=explain)
        return await prepared(client, ask, explain=explain)
    finally:
        if client.started_controller:
            await client.shutdown(only_if_idle=True)


def _given_cluster(path: str) -> GivenCluster:
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


async def prepared(
    client: ControllerClient, ask: Ask, *, explain: bool = False
) -> Preview:
    """The launch of what is asked for; peers are waited for until they settle."""
    if ask.peers or ask.head or ask.objective:
        await client.settled_peers()
    return await client.prepare(ask, explain=explain)


async def ask_of(
    *,
    path: str | None,
    model: str | None,
    peers: tuple[str, ...],
    split: str | None,
    draft: str,
    relay: str | None,
    objective: str | None,
    experts: tuple[str, ...],
    server_args: tuple[str, ...],
    **wish: Any,
) -> Ask:
    if (path is None) is (model is None):
        what = "Missing argument 'MODEL'." if path is None else "Give one model."
        raise click.UsageError(what, click.get_current_context())
    if objective is not None:
        refuse_with("--best", "--experts")
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
        experts=parse_experts(experts),
        extra_args=server_args,
        directory=os.getcwd(),
        **shares(split),
        **wish,
    )


def shares(split: str | None) -> dict[str, Any]:
    found = parse_split(split) if split is not None else None
    return {"split" if isinstance(found, dict) else "counts": found}
