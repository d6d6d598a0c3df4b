"""``dllm-tui status``: what runs now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from backends.planning.memory_fit import prompts_kept_mib
from backends.split.layout import format_range
from backends.split.measured import format_in_part
from backends.state import (
    DEFAULT_CLUSTER,
    ClusterBrief,
    ClusterSnapshot,
    ClusterState,
    Link,
    Peer,
    PeerState,
    Plan,
    ProcessInfo,
    ProcessRole,
    ProcessState,
    Transport,
)
from backends.state.snapshots import KeyCounts, RequestCounts
from backends.units import format_age, format_bytes, format_count, format_lab, format_ms
from tui.cli.command import Command, any_cluster_option, cluster_option, options
from tui.cli.output import (
    emit_json,
    redraw_screen,
    require_folder,
    say,
    show,
    write_document,
)
from tui.model.launch_settings import auto_text, draft_text, trials_text
from tui.model.peer_words import fallback_text, role_word, since_text, state_words
from tui.model.quantities import (
    acceptance_text,
    crossed_text,
    shared_text,
    silence_text,
    way_text,
    weights_text,
)
from tui.model.share_card import ShareCard, card_of, card_svg, card_text

EXAMPLES = """
dllm-tui status
dllm-tui status --watch
dllm-tui status --cluster second
dllm-tui status --json | jq .api_url
"""
WATCH_EVERY_S = 1.0


@click.command(
    cls=Command,
    watches=True,
    examples=EXAMPLES,
    notes="Exit code 1: a cluster failed, or the controller does not answer.",
)
@options(("-w --watch", bool, "Keep watching, and show every change."))
@any_cluster_option
async def status(cluster: str | None, watch: bool, as_json: bool) -> None:
    """Show what is running: state, API, split, peers, processes.

    Without --cluster: the default cluster, and a line for each other one. With --json
    and --watch every change is a line of JSON.
    """
    snapshot = await current_snapshot(cluster or DEFAULT_CLUSTER)
    if watch:
        await _watch(snapshot, alone=bool(cluster), as_json=as_json)
    if as_json:
        emit_json(cluster_json(snapshot))
    else:
        show(_text(snapshot, alone=bool(cluster)))
    states = {snapshot.state, *(o.state for o in _others(snapshot) if not cluster)}
    if ClusterState.FAILED in states:
        raise click.exceptions.Exit(1)


SHARE_EXAMPLES = """
dllm-tui share
dllm-tui share --svg card.svg
dllm-tui share --json | jq .tok_per_s
"""


@click.command(
    cls=Command,
    shows=lambda card: [card_text(card).rstrip()],
    watches=True,
    examples=SHARE_EXAMPLES,
)
@options(("--svg", "FILE", "Write the card as a picture, too."))
@cluster_option
async def share(cluster: str, svg: str | None) -> ShareCard:
    """Show a card to share: model, split, speed, command.

    It is for others: without paths, addresses, users and secrets.
    """
    card = card_of(await current_snapshot(cluster))
    if svg is not None:
        require_folder(svg)
        write_document(Path(svg), card_svg(card))
        say(f"Wrote {svg}.")
    return card


async def _watch(snapshot: ClusterSnapshot, *, alone: bool, as_json: bool) -> None:
    shown: object = None
    while True:
        now = cluster_json(snapshot) if as_json else _text(snapshot, alone=alone)
        if now != shown and as_json:
            emit_json(now, indent=0)
        elif now != shown:
            redraw_screen(str(now))
        shown = now
        await asyncio.sleep(WATCH_EVERY_S)
        snapshot = await current_snapshot(snapshot.cluster)


async def current_snapshot(cluster: str) -> ClusterSnapshot:
    """The controller's snapshot; an idle one if no controller was ever started.

    A controller is started only to adopt processes an earlier one left running.
    """
    from backends.client.client import ControllerClient

    client = ControllerClient(cluster=cluster)
    if await client.running() or client.left_processes():
        return await client.snapshot()
    return ClusterSnapshot(cluster=cluster)


def cluster_json(snapshot: ClusterSnapshot) -> dict[str, Any]:
    """A snapshot as ``--json`` shows it: the plan carries its layer ranges too."""
    value: dict[str, Any] = msgspec.to_builtins(snapshot)
    if snapshot.plan is not None:
        value["plan"]["layers"] = msgspec.to_builtins(snapshot.planned)
    return value


def measured_text(snapshot: ClusterSnapshot) -> str:
    """One sentence that compares the measured split with the plan."""
    measured, state = snapshot.measured, snapshot.state
    if measured is None:
        begun = state in (ClusterState.STARTING, ClusterState.LOADING)
        return f"the split {'is not measured yet' if begun else 'was not measured'}"
    is_or_was = "is" if state is ClusterState.SERVING else "was"
    if not measured.mismatches:
        return f"the measured split {is_or_was} the planned one"
    return f"it {is_or_was} NOT as planned: {'; '.join(measured.mismatches)}"


def prompts_text(argv: Sequence[str]) -> str:
    """The memory for earlier prompts; empty if the command line sets no limit."""
    most_mib = prompts_kept_mib(argv)
    if most_mib is None:
        return ""
    if not most_mib:
        return "llama-server keeps no earlier prompts"
    most = format_bytes(most_mib << 20)
    return f"llama-server keeps at most {most} of earlier prompts on the head"


def _text(snapshot: ClusterSnapshot, *, alone: bool) -> str:
    others = () if alone else _others(snapshot)
    return "\n".join([*status_lines(snapshot, time.time()), *map(_brief, others)])


def status_lines(snapshot: ClusterSnapshot, now: float) -> list[str]:
    lines = [f"state    {snapshot.state.value}"]
    if snapshot.cluster != DEFAULT_CLUSTER:
        lines.insert(0, f"cluster  {snapshot.cluster}")
    if snapshot.message:
        lines.append(f"         {snapshot.message}")
    if snapshot.api_url:
        lines.append(f"api      {snapshot.api_url}")
    if snapshot.drained_since is not None:
        age = format_age(max(now - snapshot.drained_since, 0.0))
        lines.append(f"drained  for {age}: requests wait (dllm-tui resume)")
    lines += _requests(snapshot.requests)
    lines += _plan(snapshot)
    others = (peer for peer in snapshot.peers if peer.transport != Transport.LOCAL)
    lines += [_peer(peer, now) for peer in others]
    lines += [
        f"if lost  {one.lost:16} {fallback_text(one, snapshot.plan)}"
        for one in snapshot.fallbacks
    ]
    lines += [_process(process) for process in _of_this_run(snapshot)]
    lines += _tokens(snapshot.links)
    lines += [_link(link) for link in snapshot.links if link.why]
    lines += [
        f"link     {link.worker:24} simulated: {format_lab(link.lab)} (links reset)"
        for link in snapshot.links
        if link.lab
    ]
    silent = ((link.worker, silence_text(link)) for link in snapshot.links)
    lines += [f"link     {worker:24} {said}" for worker, said in silent if said]
    lines += [f"left     {x.name} on {x.peer}: {x.why}" for x in snapshot.leftovers]
    return lines


def _requests(counts: RequestCounts | None) -> list[str]:
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
    limited = f" · {counts.limited} over its limit" if counts.limited else ""
    asked = format_count(counts.requests, "request")
    return f"key      {name:16} {asked} · {counts.in_flight} in flight{limited}"


def _plan(snapshot: ClusterSnapshot) -> list[str]:
    plan = snapshot.plan
    if plan is None:
        return []
    ranges = ((r.device, format_range(r, plan.split.n_layer)) for r in snapshot.planned)
    servers = (p.argv for p in snapshot.processes if p.role is ProcessRole.SERVER)
    return [
        f"model    {plan.model}",
        *(f"layers   {device:24} {layers}" for device, layers in ranges),
        *_split(snapshot),
        *_draft(snapshot, plan),
        *(f"memory   {text}" for text in map(prompts_text, servers) if text),
    ]


def _draft(snapshot: ClusterSnapshot, plan: Plan) -> list[str]:
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


def _split(snapshot: ClusterSnapshot) -> list[str]:
    if snapshot.state is ClusterState.FAILED and snapshot.measured is None:
        return []
    lines = [f"split    {measured_text(snapshot)}"]
    if snapshot.plan and snapshot.measured and snapshot.measured.in_part:
        n_layer = snapshot.plan.split.n_layer
        parts = format_in_part(snapshot.measured.in_part, n_layer)
        lines.append(f"         {parts}")
    return lines


def _peer(peer: Peer, now: float) -> str:
    silent = peer.state is PeerState.UNREACHABLE and peer.since is not None
    age = since_text(now - peer.since) if silent and peer.since is not None else ""
    rtt = "" if peer.rtt_ms is None else format_ms(peer.rtt_ms)
    words = f"{state_words(peer, age):16} {role_word(peer):6}"
    line = f"peer     {peer.name:16} {words} {peer.transport:5} {rtt:>8}  {peer.note}"
    return line.rstrip()


def _of_this_run(snapshot: ClusterSnapshot) -> list[ProcessInfo]:
    """Living processes and ended ones of the plan, without those of earlier runs."""
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
    """The number of tokens and its source, because the speeds depend on it."""
    counted = [link.generation for link in links if link.generation.tokens]
    if not counted:
        return []
    made = counted[-1]
    by_wire = made.tokens_from == "wire"
    counter = "the relay before the last layer" if by_wire else "llama-server itself"
    return [f"tokens   {made.tokens} generated, counted by {counter}"]


def _link(link: Link) -> str:
    told = (way_text(link), link.reason, weights_text(link), crossed_text(link))
    parts = filter(None, (*told, link.why))
    return f"link     {link.worker:24} {link.mode:9} {' · '.join(parts)}"


def _others(snapshot: ClusterSnapshot) -> tuple[ClusterBrief, ...]:
    return tuple(b for b in snapshot.clusters if b.name != snapshot.cluster)


def _brief(brief: ClusterBrief) -> str:
    line = f"cluster  {brief.name:16} {brief.state.value:9} {brief.model}"
    return f"{line}  {brief.api_url or ''}".rstrip()
