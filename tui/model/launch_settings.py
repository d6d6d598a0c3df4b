"""The launch settings of a plan: read from it, put into it, and named in one line."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from backends.machine_names import LOCAL
from backends.split.buffers import slot_tokens
from backends.split.experts import experts_text, experts_words, with_kept
from backends.state import (
    AUTO_DRAFT,
    MTP_DRAFT,
    NGRAM_DRAFT,
    NO_DRAFT,
    Ask,
    ClusterSnapshot,
    FlashAttention,
    PairMode,
    Plan,
    ProcessRole,
    ServerSettings,
    WorkerSpec,
)
from backends.units import format_count, format_factor, format_speed
from tui.model.names import model_name

USUAL = ServerSettings()
RELAYS = {PairMode.AUTO: "auto", PairMode.ALWAYS: "pair", PairMode.NEVER: "single"}
"""Values of ``up --relay``; without any relay it is ``NO_RELAY``."""
NO_RELAY = "off"


class LaunchSettings(msgspec.Struct, frozen=True):
    """All of a plan that is neither model, machines nor layers."""

    ctx_size: int
    server: ServerSettings
    workers: int
    """CPU workers on this machine."""
    worker_threads: int | None
    """Threads of each of them; None: the cores shared out, or as configured."""
    extra_args: tuple[str, ...]

    @classmethod
    def of(cls, plan: Plan) -> LaunchSettings:
        return cls(
            ctx_size=plan.ctx_size,
            server=plan.server,
            workers=len(own_cpu_workers(plan)),
            worker_threads=plan.asked.worker_threads if plan.asked else None,
            extra_args=plan.extra_args,
        )

    def reset(self) -> LaunchSettings:
        """As nobody has set them, on as many workers and with the same context."""
        return replace(self, server=USUAL, worker_threads=None, extra_args=())

    def needs_proposal(self, plan: Plan) -> bool:
        """True if only the controller can choose the workers for these settings."""
        now = LaunchSettings.of(plan)
        given_back = self.worker_threads is None and now.worker_threads is not None
        drafted = self._draft_needs() != now._draft_needs()
        return self.workers != now.workers or given_back or drafted

    def _draft_needs(self) -> tuple[object, ...]:
        server = self.server
        if server.draft in (NO_DRAFT, NGRAM_DRAFT):
            return (server.draft,)
        return (server.draft, self.ctx_size, server.slots, server.flash_attention)

    def applied(self, plan: Plan) -> Plan:
        if self == LaunchSettings.of(plan):
            return plan
        workers = tuple(
            replace(worker, threads=self.worker_threads)
            if self.worker_threads and is_own(worker)
            else worker
            for worker in plan.workers
        )
        asked = replace(
            plan.asked or Ask(model=plan.model),
            ctx_size=self.ctx_size,
            server=self.server,
            worker_threads=self.worker_threads,
            extra_args=self.extra_args,
        )
        return replace(
            plan,
            ctx_size=self.ctx_size,
            server=self.server,
            speculation=None if self.server.draft == NO_DRAFT else plan.speculation,
            workers=workers,
            extra_args=self.extra_args,
            asked=asked,
        )


def with_threads_of(proposed: Plan, plan: Plan) -> Plan:
    """A proposal; where its workers are the plan's, the plan with their threads, and
    with the draft that was settled.

    Whoever changes threads keeps the layers and the order.
    """
    threads = {worker.name: worker.threads for worker in proposed.workers}
    if set(threads) != {worker.name for worker in plan.workers}:
        return replace(
            with_kept(proposed, plan),
            api_port=plan.api_port,
            engine=plan.engine,
            relay=plan.relay,
            pair=plan.pair,
        )
    workers = tuple(
        replace(worker, threads=threads[worker.name]) for worker in plan.workers
    )
    return replace(plan, workers=workers, speculation=proposed.speculation)


def own_cpu_workers(plan: Plan) -> tuple[WorkerSpec, ...]:
    return tuple(worker for worker in plan.workers if is_own(worker))


def other_machines(plan: Plan) -> tuple[str, ...]:
    """Machines whose devices work, but for those CPU workers here."""
    found = (worker.peer for worker in plan.workers if not is_own(worker))
    return tuple(dict.fromkeys(found))


def excluded(plan: Plan) -> tuple[str, ...]:
    """Devices that were to take no part, but for those CPU workers here."""
    own = {name for worker in own_cpu_workers(plan) for name in worker.device_ids}
    return tuple(d for d in (plan.asked.exclude if plan.asked else ()) if d not in own)


def is_own(worker: WorkerSpec) -> bool:
    """True for a CPU worker on this machine, started for trials."""
    return worker.peer == LOCAL and not worker.place


def up_command(plan: Plan, *options: str) -> str:
    return shlex.join(["dllm-tui", "up", plan.model, *options, *_options(plan)])


def _options(plan: Plan) -> Iterator[str]:
    if plan.head != LOCAL:
        yield from ("--head", plan.head)
    shares = (f"{share.device}={share.layers}" for share in plan.split.shares)
    yield from ("--split", ",".join(shares), "--context", str(plan.ctx_size))
    for run in experts_words(plan.experts):
        yield from ("--experts", run)
    server = plan.server
    told = (
        ("--cache-type-k", server.cache_type_k, USUAL.cache_type_k),
        ("--cache-type-v", server.cache_type_v, USUAL.cache_type_v),
        ("--slots", server.slots, USUAL.slots),
        ("--flash-attention", server.flash_attention.value, FlashAttention.AUTO.value),
        ("--threads", server.threads, USUAL.threads),
        ("--draft", server.draft, USUAL.draft),
        ("--draft-max", server.draft_max, USUAL.draft_max),
        ("--worker-threads", LaunchSettings.of(plan).worker_threads, None),
    )
    for option, value, usual in told:
        if value != usual:
            yield from (option, str(value))
    # The settings of whoever types it may say otherwise.
    yield from ("--relay", RELAYS[plan.pair] if plan.relay else NO_RELAY)
    if plan.extra_args:
        yield from ("--", *plan.extra_args)


def ctx_text(plan: Plan) -> str:
    """``ctx 4096``, ``ctx 3×1536`` for three slots."""
    slots, tokens = plan.server.slots, slot_tokens(plan.ctx_size, plan.server)
    return f"ctx {slots}×{tokens}" if slots > 1 else f"ctx {tokens}"


def unusual(plan: Plan) -> str:
    """The settings of llama-server that are not the default: ``KV q8_0 · 4 slots``."""
    return " · ".join(_unusual(plan))


def _unusual(plan: Plan) -> Iterator[str]:
    server = plan.server
    types = (server.cache_type_k, server.cache_type_v)
    if types != (USUAL.cache_type_k, USUAL.cache_type_v):
        yield f"KV {'/'.join(dict.fromkeys(types))}"
    yield from _changes(server, USUAL)
    if plan.speculation is not None:
        yield draft_text(plan)
    if plan.extra_args:
        yield shlex.join(plan.extra_args)
    if plan.experts:
        yield experts_text(plan.experts)


def differences(plan: Plan, running: Plan) -> str:
    return ", ".join(_differences(plan, running))


def _differences(new: Plan, old: Plan) -> Iterator[str]:
    if new.ctx_size != old.ctx_size:
        yield f"context {new.ctx_size}"
    if new.server.cache_type_k != old.server.cache_type_k:
        yield f"K {new.server.cache_type_k}"
    if new.server.cache_type_v != old.server.cache_type_v:
        yield f"V {new.server.cache_type_v}"
    yield from _changes(new.server, old.server)
    drafts = draft_text(new), draft_text(old)
    if drafts[0] != drafts[1]:
        yield drafts[0]
    threads = {worker.name: worker.threads for worker in old.workers}
    for worker in new.workers:
        if worker.threads != threads.get(worker.name, worker.threads):
            yield f"{worker.name} {_threads(worker.threads)}"
    if new.extra_args != old.extra_args:
        yield "further arguments"
    if new.experts != old.experts:
        yield experts_text(new.experts) or "experts with their layers"


def _changes(new: ServerSettings, old: ServerSettings) -> Iterator[str]:
    if new.slots != old.slots:
        yield format_count(new.slots, "slot")
    if new.flash_attention is not old.flash_attention:
        yield f"flash attention {new.flash_attention.value}"
    if new.threads != old.threads:
        yield f"head {_threads(new.threads)}"


def draft_text(plan: Plan) -> str:
    """The draft, its device and its length: ``draft small on CUDA0, 8 tokens``."""
    method, server = plan.speculation, plan.server
    if method is None:
        return "no draft"
    if server.draft == AUTO_DRAFT:
        names = [model_name(one.draft) for one in method.methods]
        return f"draft auto: {', '.join(names)} or none, whatever is fastest"
    tokens = format_count(server.draft_max, "token")
    if not method.model:
        where = f"{MTP_DRAFT} on {method.device}" if method.device else method.type
        return f"draft {where}, {tokens}"
    device = method.device.rpartition("/")[2]
    return f"draft {model_name(method.model)} on {device}, {tokens}"


def _threads(count: int | None) -> str:
    return "threads automatic" if count is None else format_count(count, "thread")


def launch_command(snapshot: ClusterSnapshot | None) -> str:
    for process in snapshot.processes if snapshot else ():
        if process.role is ProcessRole.SERVER and process.argv:
            return shlex.join(process.argv)
    return ""


def auto_text(snapshot: ClusterSnapshot) -> str:
    """The draft that ``auto`` runs, and why; empty if the plan says the draft."""
    now = snapshot.draft_now
    if now is None:
        return ""
    chosen = draft_name(*snapshot.drafts_with)
    return " · ".join(filter(None, (f"auto: {chosen}", now.why, now.doing)))


def trials_text(snapshot: ClusterSnapshot) -> tuple[str, ...]:
    texts = []
    for trial in snapshot.draft_now.trials if snapshot.draft_now else ():
        rate = format_speed(trial.tok_per_s)
        times = "" if trial.speedup is None else f" ({format_factor(trial.speedup)})"
        texts.append(f"{draft_name(trial.draft, trial.draft_max)}: {rate}{times}")
    return tuple(texts)


def draft_name(draft: str, draft_max: int) -> str:
    """``with small (8 tokens)``, or ``without a draft``."""
    if draft == NO_DRAFT:
        return "without a draft"
    name = draft if draft == NGRAM_DRAFT else model_name(draft)
    return f"with {name} ({format_count(draft_max, 'token')})"
