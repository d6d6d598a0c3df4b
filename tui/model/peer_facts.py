"""All that is known about a peer, in rows of a label and a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.units import (
    format_bytes,
    format_count,
    format_mb_s,
    format_ms,
    format_offset,
    format_percent,
    format_seconds,
)
from tui.model.peer_words import (
    data_text,
    hint_of,
    note_text,
    path_words,
    role_word,
    since_text,
    state_words,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.state import Device, EngineInfo, Peer, PeerFacts

    Row = tuple[str, str]

MODELS_SHOWN = 12
CLOCK_MATTERS_S = 2.0


def peer_rows(peer: Peer, now: float, *, hints: bool = True) -> list[Row]:
    """State, transport and devices, then the findings of the last probe.

    Args:
        peer: The peer.
        now: Seconds of the same clock as its times.
        hints: Whether to name the console's keys that help.
    """
    facts = () if peer.facts is None else _facts(peer.facts, now)
    return [*_state(peer, now, hints=hints), *_devices(peer), *facts]


def _state(peer: Peer, now: float, *, hints: bool) -> Iterator[Row]:
    age = since_text(now - peer.since) if peer.since is not None else ""
    hint = hint_of(peer) if hints else None
    words = state_words(peer)
    yield "state", f"{words}, for {age}" if age else words
    if note := note_text(peer) if hints else peer.note:
        yield "", note
    if hint:
        yield "", f"{hint.key} {hint.text}"
    yield from _work(peer)
    yield "role", role_word(peer)
    yield "address", " · ".join(filter(None, (peer.address, path_words(peer))))
    if peer.data is not None:
        went = data_text(peer) or "none went yet"
        yield "data", f"{went} · set to {peer.data.wanted}"


def _work(peer: Peer) -> Iterator[Row]:
    work = peer.work
    if work is None:
        return
    done = "" if work.progress is None else f" {format_percent(work.progress)}"
    yield "work", f"{work.title}{done}"
    yield from (("", text) for text in (work.detail, *work.log_tail) if text)


def _devices(peer: Peer) -> Iterator[Row]:
    for index, device in enumerate(peer.devices):
        yield "" if index else "devices", _device(device)


def _device(device: Device) -> str:
    free, total = format_bytes(device.free_bytes), format_bytes(device.total_bytes)
    budget = device.budget_bytes
    limit = "" if budget is None else f", at most {format_bytes(budget)} for us"
    named = f"{device.name} {device.description}".rstrip()
    return f"{named}: {free} of {total} free{limit}"


def _facts(facts: PeerFacts, now: float) -> Iterator[Row]:
    machine = (facts.system or facts.os, facts.arch, facts.libc, facts.hostname)
    yield "system", " · ".join(filter(None, machine)) or "unknown"
    if not facts.cores:
        yield "helper", "not installed yet: nothing more is known"
        return
    cores, fast = format_count(facts.cores, "core"), facts.performance_cores
    some_fast = 0 < fast < facts.cores
    yield "processor", f"{cores}, {fast} of them fast" if some_fast else cores
    memory = format_bytes(facts.memory_bytes)
    yield "memory", f"{format_bytes(facts.memory_free_bytes)} of {memory} free"
    yield "disk", f"{format_bytes(facts.disk_free_bytes)} free"
    for index, engine in enumerate(facts.engines):
        yield "" if index else "engines", _engine(engine)
    if not facts.engines:
        yield "engines", "none"
    helper = f"dllm-relay {facts.relay_version} in {facts.relay_path}"
    yield "helper", helper if facts.relay_version else "none"
    tools = " · ".join(filter(None, (facts.compiler, facts.cmake)))
    yield "compiler", tools or "none"
    yield from _models(facts)
    yield from _link(facts)
    age = since_text(now - facts.at)
    probed = f"{age} ago" if age else "just now"
    yield "probed", f"{probed}, in {format_seconds(facts.seconds)}"


def _engine(engine: EngineInfo) -> str:
    ours = ", installed by us" if engine.source == "provisioned" else ""
    version = engine.version or "llama.cpp"
    return f"{version} · RPC {engine.rpc_protocol or '?'} in {engine.directory}{ours}"


def _models(facts: PeerFacts) -> Iterator[Row]:
    for index, model in enumerate(facts.models[:MODELS_SHOWN]):
        size = f"{format_bytes(model.size_bytes):>9}"
        yield "" if index else "models", f"{size}  {model.path}"
    if not facts.models:
        yield "models", "none"
    more = len(facts.models) - MODELS_SHOWN
    if more > 0:
        yield "", f"and {more} more"


def _link(facts: PeerFacts) -> Iterator[Row]:
    rtt = "" if facts.rtt_ms is None else f"{format_ms(facts.rtt_ms)} there and back"
    rate = "" if facts.bandwidth_mb_s is None else format_mb_s(facts.bandwidth_mb_s)
    if rtt or rate:
        yield "link", " · ".join(filter(None, (rtt, rate)))
    offset = facts.clock_offset_s
    if abs(offset) >= CLOCK_MATTERS_S:
        side = "ahead of" if offset > 0 else "behind"
        yield "clock", f"{format_seconds(abs(offset))} {side} ours"
    else:
        yield "clock", f"as ours ({format_offset(offset)})"
