"""Peers as text for a terminal without the console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.units import (
    format_bytes,
    format_mb_s,
    format_ms,
    format_offset,
    format_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from backends.state import Device, Peer, PeerFacts


def peer_lines(peers: Iterable[Peer]) -> list[str]:
    """One line a peer: name, state, way, round trip, memory, note."""
    return [_line(peer) for peer in peers]


def peer_summary(peer: Peer) -> list[str]:
    """Everything known about a peer, a few lines."""
    lines = [_line(peer)]
    if peer.facts is not None:
        lines += [f"  {text}" for text in _facts(peer.facts)]
    return lines


def _line(peer: Peer) -> str:
    rtt = "" if peer.rtt_ms is None else format_ms(peer.rtt_ms)
    memory = sum(d.usable_bytes for d in peer.devices)
    room = f"{format_bytes(memory)} free" if memory else ""
    head = f"{peer.name:16} {peer.state.value:12} {peer.transport:5} {rtt:>8}"
    return f"{head}  {room:14}  {peer.note}".rstrip()


def _facts(facts: PeerFacts) -> list[str]:
    engines = [
        f"{e.version or 'llama.cpp'} (RPC {e.rpc_protocol or '?'}) in {e.directory}"
        for e in facts.engines
    ]
    tools = " · ".join(filter(None, (facts.compiler, facts.cmake)))
    rate = f" · {format_mb_s(facts.bandwidth_mb_s)}" if facts.bandwidth_mb_s else ""
    return [
        f"{facts.system or facts.os} {facts.arch} {facts.libc} · "
        f"{facts.performance_cores or facts.cores} of {facts.cores} cores",
        *(f"device {_device(device)}" for device in facts.devices),
        *(f"engine {text}" for text in engines or ["none"]),
        *facts.problems,
        f"helper {facts.relay_version or 'none'} · tools {tools or 'none'}",
        f"disk   {format_bytes(facts.disk_free_bytes)} free · "
        f"{len(facts.models)} models · "
        f"clock {format_offset(facts.clock_offset_s)}{rate}",
        f"looked at in {format_seconds(facts.seconds)}",
    ]


def _device(device: Device) -> str:
    free, total = format_bytes(device.free_bytes), format_bytes(device.total_bytes)
    return f"{device.name} {device.description}: {free} of {total} free"
