"""The outcome of adding a peer: a sentence, and the possible next steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from backends.state import PeerState
from backends.units import format_bytes
from tui.model.peer_words import UNFIT, note_text
from tui.widgets.choice_list import Choice

if TYPE_CHECKING:
    from backends.state import Peer

_LATER = Choice("close", "Later", "c", "it stays among the peers")
_CHOICES = {
    PeerState.READY: (
        Choice("join", "Let it work in the split", "w"),
        Choice("close", "Done", "c"),
    ),
    PeerState.NO_ENGINE: (
        Choice("provision", "Install the engine", "p", "in your own folder there"),
        _LATER,
    ),
    PeerState.ASKING: (Choice("answer", "Answer it", "a"), _LATER),
    PeerState.UNREACHABLE: (
        Choice("again", "Change the address", "e"),
        Choice("close", "Keep it", "c", "it is tried again and again"),
    ),
}
_LIKE = {
    PeerState.MISMATCH: PeerState.NO_ENGINE,
    PeerState.FAILED: PeerState.UNREACHABLE,
    PeerState.STARTING: PeerState.READY,
    PeerState.SERVING: PeerState.READY,
}


class Outcome(NamedTuple):
    """The state of a new peer in words."""

    text: str
    tone: str
    """``busy``, ``good`` or ``wrong``."""
    choices: tuple[Choice, ...] = ()


def outcome_of(peer: Peer) -> Outcome:
    """The sentence and the next steps for a peer just added."""
    state = _LIKE.get(peer.state, peer.state)
    choices = _CHOICES.get(state, ())
    note = note_text(peer)
    if state is PeerState.READY:
        return Outcome(f"{peer.name} is ready{_what_it_has(peer)}.", "good", choices)
    if state in UNFIT:
        return Outcome(f"{peer.name} is reached. {note}", "busy", choices)
    if state is PeerState.ASKING:
        return Outcome(f"{peer.name} needs your input.", "busy", choices)
    if state is PeerState.UNREACHABLE:
        return Outcome(note or f"{peer.name} cannot be reached.", "wrong", choices)
    doing = peer.work.title if peer.work else f"Reaching {peer.name}"
    return Outcome(f"{doing}…", "busy")


def _what_it_has(peer: Peer) -> str:
    devices = ", ".join(
        f"{device.name} {format_bytes(device.usable_bytes)} free"
        for device in peer.devices
    )
    return f": {devices}" if devices else ""
