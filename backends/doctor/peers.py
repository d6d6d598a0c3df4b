"""The state of the other machines, and which can work together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.client.client import ControllerClient
from backends.doctor.checks import Check, Verdict
from backends.engine.versions import protocols_match
from backends.state import PeerState, Transport
from backends.units import format_ms, format_offset

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from backends.paths import Paths
    from backends.state import Peer

_FINE = (PeerState.READY, PeerState.STARTING, PeerState.SERVING)
CLOCK_OFF_S = 60.0
"""A clock this far off makes times in logs hard to compare."""


async def peer_checks(paths: Paths, here: str) -> list[Check]:
    """One check a peer, and one of all protocols; ``here`` is our own engine's.

    Raises:
        DllmError: the controller cannot be started.
    """
    peers = await ControllerClient(paths).settled_peers()
    checks = [_peer(peer) for peer in peers]
    spoken = {"local": here} | {
        p.name: p.facts.engines[0].rpc_protocol
        for p in peers
        if p.transport == Transport.SSH and p.facts and p.facts.engines
    }
    return [*checks, *([_protocols(spoken)] if len(spoken) > 1 else [])]


def _peer(peer: Peer) -> Check:
    clock_s = peer.facts.clock_offset_s if peer.facts else 0.0
    rtt = "" if peer.rtt_ms is None else f", {format_ms(peer.rtt_ms)}"
    off = abs(clock_s) > CLOCK_OFF_S
    clock = f", its clock is {format_offset(clock_s)} off" if off else ""
    fine = peer.state in _FINE and not off
    return Check(
        name=f"peer {peer.name}",
        verdict=Verdict.OK if fine else Verdict.WARN,
        detail=f"{peer.state.value}{rtt}{clock}",
        fix=peer.note,
    )


def _protocols(spoken: Mapping[str, str]) -> Check:
    bad = [
        f"{worker} ({theirs}) cannot work for {head} ({ours})"
        for head, ours in spoken.items()
        for worker, theirs in spoken.items()
        if not protocols_match(ours, theirs)
    ]
    if not bad:
        one = ", ".join(sorted({version or "?" for version in spoken.values()}))
        detail = f"every machine can work for every other (RPC {one})"
        return Check(name="protocols", detail=detail)
    return Check(
        name="protocols",
        verdict=Verdict.WARN,
        detail="\n".join(("who can work for whom", *matrix(spoken), *bad)),
        fix="Install this machine's engine there: dllm-tui peers setup NAME.",
    )


def matrix(spoken: Mapping[str, str]) -> Sequence[str]:
    """Heads down, workers across: ``✓`` where the worker's protocol is accepted."""
    width = max(len(name) for name in spoken)
    header = " ".join([" " * width, *(f"{name:>{width}}" for name in spoken)])
    rows = [
        " ".join(
            [
                f"{head:{width}}",
                *(
                    f"{'✓' if protocols_match(ours, theirs) else '✗':>{width}}"
                    for theirs in spoken.values()
                ),
            ]
        )
        for head, ours in spoken.items()
    ]
    return [header, *rows]
