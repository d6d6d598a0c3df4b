"""``dllm-tui status``: what runs now."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from backends.split.held import format_in_part
from backends.split.layout import format_range
from backends.state import (
    DEFAULT_CLUSTER,
    ClusterSnapshot,
    ClusterState,
    PeerState,
    ProcessRole,
    ProcessState,
    Transport,
)
from backends.state.requests import KeyCounts, RequestCounts
from backends.units import format_age, format_bytes, format_count, format_ms
from tui.cli.options import any_cluster_option
from tui.cli.output import emit_json, json_option, run, show
from tui.cli.session import cluster_json, measured_text, prompts_text
from tui.work.draft_words import auto_text, trials_text
from tui.work.fallbacks import fallback_text
from tui.work.launch_settings import draft_text
from tui.work.peer_words import role_word, since_text, state_words
from tui.work.quantities import (
    acceptance_text,
    crossed_text,
    shared_text,
    silence_text,
    way_text,
    weights_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from backends.state import ClusterBrief, Link, Peer, Plan, ProcessInfo


EXAMPLES = """
\b
Examples:
  dllm-tui status
  dllm-tui status --cluster second
  dllm-tui status --json | jq .api_url

Exit code 1 means that a cluster failed, or that the controller is silent.
"""


@click.command(epilog=EXAMPLES)
@any_cluster_option
@json_option
def status(cluster: str | None, as_json: bool) -> None:
    """Show what runs: state, API, split, machines, processes.

    Without --cluster that is the default cluster, and the others in a line each.
    """
    snapshot = run(current_snapshot(cluster or DEFAULT_CLUSTER))
    others = () if cluster else _others(snapshot)
    if as_json:
        emit_json(cluster_json(snapshot))
    else:
        show("\n".join(status_lines(snapshot, time.time()) + list(map(_brief, others))))
    states = {snapshot.state, *(other.state for other in others)}
    if ClusterState.FAILED in states:
        raise click.exceptions.Exit(1)


async def current_snapshot(cluster: str) -> ClusterSnapshot:
    """The controller's snapshot; an idle one when nothing was ever started.

    A controller is started only to adopt processes an earlier one left running.
    """
    from backends.client.client import ControllerClient

    client = ControllerClient(cluster=cluster)
    if await client.running() or client.left_processes():
        return await client.snapshot()
    return ClusterSnapshot(cluster=cluster)


def status_lines(snapshot: ClusterSnapshot, now: float) -> list[str]:
    """What runs, a line for each thing."""
    lines = [f"state    {snapshot.state.value}"]
    if snapshot.cluster != DEFAULT_CLUSTER:
        lines.insert(0, f"cluster  {snapshot.cluster}")
    if snapshot.message:
        lines.append(f"         {snapshot.message}")
    if snapshot.api_url:
        lines.append(f"api      {snapshot.api_url}")
    lines += _drained(snapshot, now)
    lines += _requests(snapshot.requests)
    lines += [*_plan(snapshot), *(_peer(peer, now) for peer in _machines(snapshot))]
    lines += [
        f"without  {one.lost:16} {fallback_text(one, snapshot.plan)}"
        for one in snapshot.fallbacks
    ]
    lines += [_process(process) for process in _of_this_run(snapshot)]
    lines += _tokens(snapshot.links)
    lines += [_link(link) for link in snapshot.links if link.why]
    lines += [_silence(link) for link in snapshot.links if silence_text(link)]
    lines += [f"left     {x.name} on {x.peer}: {x.why}" for x in snapshot.leftovers]
    return lines


def _drained(snapshot: ClusterSnapshot, now: float) -> list[str]:
    since = snapshot.drained_since
    if since is None:
        return []
    age = format_age(max(now - since, 0.0))
    return [f"drained  for {age}: requests wait (dllm-tui drain --off)"]


def _requests(counts: RequestCounts | None) -> list[str]:
    """What clients asked of the API, once they asked anything."""
    if counts is None or counts == RequestCounts():
        return []
    now = f"{counts.waiting} waiting · {counts.in_flight} in flight"
    ended = f"{counts.passed} answered · {counts.failed} failed"
    again = f" · {counts.replayed} asked again" if counts.replayed else ""
    further = f" · {counts.continued} continued" if counts.continued else ""
    refused = f" · {counts.refused} refused" if counts.refused else ""
    keys = [_key(name, of_key) for name, of_key in sorted(counts.keys.items())]
    return [f"requests {now} · {ended}{again}{further}{refused}", *keys]


def _key(name: str, counts: KeyCounts) -> str:
    """What was asked with one API key."""
    limited = f" · {counts.limited} over its limit" if counts.limited else ""
    asked = format_count(counts.requests, "request")
    return f"key      {name:16} {asked} · {counts.in_flight} in flight{limited}"


def _plan(snapshot: ClusterSnapshot) -> list[str]:
    plan = snapshot.plan
    if plan is None:
        return []
    n_layer = plan.split.n_layer
    return [
        f"model    {plan.model}",
        *(
            f"layers   {r.device:24} {format_range(r, n_layer)}"
            for r in snapshot.planned
        ),
        *_split(snapshot),
        *_draft(snapshot, plan),
        *_prompts(snapshot),
    ]


def _draft(snapshot: ClusterSnapshot, plan: Plan) -> list[str]:
    """The draft and its acceptance."""
    if plan.speculation is None and snapshot.draft_now is None:
        return []
    acceptance = snapshot.speed.acceptance
    shared = shared_text(acceptance.tokens_per_pass) if acceptance else ""
    told = (draft_text(plan), acceptance_text(acceptance), shared)
    auto = filter(None, (auto_text(snapshot), *trials_text(snapshot)))
    return [
        f"draft    {' · '.join(filter(None, told)).removeprefix('draft ')}",
        *(f"         {text}" for text in auto),
    ]


def _prompts(snapshot: ClusterSnapshot) -> list[str]:
    """What llama-server may keep of earlier prompts."""
    servers = (p for p in snapshot.processes if p.role is ProcessRole.SERVER)
    told = (prompts_text(server.argv) for server in servers)
    return [f"memory   {text}" for text in told if text]


def _split(snapshot: ClusterSnapshot) -> list[str]:
    """Whether it is, or was, as planned; nothing of one that never came to that."""
    if snapshot.state is ClusterState.FAILED and snapshot.measured is None:
        return []
    lines = [f"split    {measured_text(snapshot)}"]
    if snapshot.plan and snapshot.measured and snapshot.measured.in_part:
        n_layer = snapshot.plan.split.n_layer
        parts = format_in_part(snapshot.measured.in_part, n_layer)
        lines.append(f"         {parts}")
    return lines


def _machines(snapshot: ClusterSnapshot) -> list[Peer]:
    """Other machines: what works on this one stands among the processes."""
    return [peer for peer in snapshot.peers if peer.transport != Transport.LOCAL]


def _peer(peer: Peer, now: float) -> str:
    silent = peer.state is PeerState.UNREACHABLE and peer.since is not None
    age = since_text(now - peer.since) if silent and peer.since is not None else ""
    rtt = "" if peer.rtt_ms is None else format_ms(peer.rtt_ms)
    words = f"{state_words(peer, age):16} {role_word(peer):6}"
    line = f"peer     {peer.name:16} {words} {peer.transport:5} {rtt:>8}  {peer.note}"
    return line.rstrip()


def _of_this_run(snapshot: ClusterSnapshot) -> list[ProcessInfo]:
    """What lives, and what of the plan has ended; not what earlier runs left."""
    plan = snapshot.plan
    workers = {(w.peer, w.name) for w in plan.workers} if plan else set()
    peers = {peer for peer, _ in workers}

    def wanted(process: ProcessInfo) -> bool:
        if process.role is ProcessRole.WORKER:
            return (process.peer, process.name) in workers
        if process.role is ProcessRole.WORKER_RELAY:
            return process.peer in peers
        return plan is not None and process.peer == plan.head

    return [
        process
        for process in snapshot.processes
        if process.state is not ProcessState.EXITED or wanted(process)
    ]


def _process(process: ProcessInfo) -> str:
    memory = format_bytes(process.rss_bytes) if process.rss_bytes else ""
    ended = process.state is ProcessState.EXITED
    where = "ended" if ended else f"pid {process.pid}"
    name = process.name if process.peer == "local" else f"{process.name}@{process.peer}"
    return f"process  {name:24} {process.state.value:9} {where:12} {memory}".rstrip()


def _tokens(links: Sequence[Link]) -> list[str]:
    """How many were generated, and whose word that is: the figures rest on it."""
    counted = [link.generation for link in links if link.generation.tokens]
    if not counted:
        return []
    made = counted[-1]
    by_wire = made.tokens_from == "wire"
    counter = "the relay before the last layer" if by_wire else "llama-server itself"
    return [f"tokens   {made.tokens} generated, counted by {counter}"]


def _link(link: Link) -> str:
    """How it is met, by what, and what that leaves on the wire."""
    told = (way_text(link), link.reason, weights_text(link), crossed_text(link))
    parts = filter(None, (*told, link.why))
    return f"link     {link.worker:24} {link.mode:9} {' · '.join(parts)}"


def _silence(link: Link) -> str:
    return f"link     {link.worker:24} {silence_text(link)}"


def _others(snapshot: ClusterSnapshot) -> tuple[ClusterBrief, ...]:
    return tuple(b for b in snapshot.clusters if b.name != snapshot.cluster)


def _brief(brief: ClusterBrief) -> str:
    line = f"cluster  {brief.name:16} {brief.state.value:9} {brief.model}"
    return f"{line}  {brief.api_url or ''}".rstrip()
