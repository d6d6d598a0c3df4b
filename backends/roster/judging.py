"""Whether a machine can take part, by what a probe found there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.engine.protocols import protocols_match
from backends.state import PeerState

if TYPE_CHECKING:
    from backends.state import PeerFacts


def judged(name: str, facts: PeerFacts, ours: str) -> tuple[PeerState, str]:
    """State and note of a peer; ``ours`` is the RPC protocol of our own engine."""
    hint = f"Provision it: dllm-tui peers provision {name}."
    if not facts.engines:
        return PeerState.NO_ENGINE, f"No llama.cpp with RPC there. {hint}"
    if not facts.relay_version:
        absent = "The helper dllm-relay is not there"
        why = facts.problems[0] if facts.relay_path else absent
        return PeerState.NO_ENGINE, f"{why.rstrip('.')}. {hint}"
    spoken = [engine.rpc_protocol for engine in facts.engines]
    if not any(protocols_match(ours, theirs) for theirs in spoken):
        theirs = ", ".join(spoken)
        what = f"It speaks RPC {theirs}, this machine RPC {ours}."
        return PeerState.MISMATCH, f"{what} {hint}"
    return PeerState.READY, ""
