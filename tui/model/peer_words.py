"""The state of a peer as a sign, a tone and a few words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from backends.split.layout import ranges_text
from backends.state import PeerRole, PeerState, QuestionKind
from backends.units import format_ms

if TYPE_CHECKING:
    from backends.state import Fallback, Peer, Plan


class Look(NamedTuple):
    """The look of a state."""

    sign: str
    tone: str
    """Name of a style of the palette."""
    words: str


LOOKS = {
    PeerState.PROBING: Look("◌", "accent", "probing"),
    PeerState.ASKING: Look("?", "warn", "asks you"),
    PeerState.NO_ENGINE: Look("!", "warn", "no engine"),
    PeerState.PROVISIONING: Look("◑", "accent", "provisioning"),
    PeerState.READY: Look("•", "text", "ready"),
    PeerState.STARTING: Look("◐", "warn", "starting"),
    PeerState.SERVING: Look("●", "ok", "serving"),
    PeerState.FAILED: Look("✗", "bad", "failed"),
    PeerState.MISMATCH: Look("≠", "bad", "mismatch"),
    PeerState.UNREACHABLE: Look("○", "bad", "offline"),
}
_SILENT = Look("◌", "warn", "no answer")


def look_of(peer: Peer) -> Look:
    """The look of a peer; a silent one looks suspect, whatever its last state."""
    return LOOKS[peer.state] if peer.silent_since is None else _SILENT


FINE = frozenset({PeerState.READY, PeerState.STARTING, PeerState.SERVING})
"""States in which a peer can take part in a plan."""
UNFIT = frozenset({PeerState.NO_ENGINE, PeerState.MISMATCH})
"""States that provisioning mends."""

# What the backend's note says for the command line, this console has a key for.
_COMMAND_HINT = " Provision it: dllm-tui"

_WANTS = {
    QuestionKind.HOST_KEY: "its host key trusted",
    QuestionKind.PASSWORD: "a password",
    QuestionKind.PASSPHRASE: "the passphrase of your key",
}


class Hint(NamedTuple):
    """A key and what it does about the state of a peer."""

    key: str
    text: str


_HINTS = {
    PeerState.ASKING: Hint("{peers.open:short}", "answers it"),
    PeerState.NO_ENGINE: Hint("{peers.provision:short}", "provisions it"),
    PeerState.MISMATCH: Hint("{peers.provision:short}", "provisions it"),
    PeerState.PROVISIONING: Hint("{peers.cancel:short}", "ends it"),
}


def hint_of(peer: Peer) -> Hint | None:
    """The key that leads on, where there is one."""
    return _HINTS.get(peer.state)


def role_word(peer: Peer) -> str:
    return "–" if peer.role is PeerRole.IDLE else peer.role.value


def state_words(peer: Peer, age: str = "") -> str:
    """``ready``, ``copying``, ``offline 2 m``."""
    words = look_of(peer).words
    if peer.silent_since is not None:
        return words
    if peer.state is PeerState.PROVISIONING and peer.work and peer.work.title:
        return peer.work.title.split()[0].lower()
    if peer.state is PeerState.UNREACHABLE and age:
        return f"{words} {age}"
    return words


def path_words(peer: Peer) -> str:
    """``ssh  3.1 ms``: the way to a peer and how long it takes."""
    if peer.rtt_ms is None:
        return peer.transport
    return f"{peer.transport} {format_ms(peer.rtt_ms):>7}"


def data_text(peer: Peer) -> str:
    """``direct now``, ``tunnel last time (why)``; empty before data went anywhere."""
    data = peer.data
    if data is None or not data.ways:
        return ""
    why = f" ({data.why})" if data.why else ""
    return f"{' and '.join(data.ways)} {'now' if data.now else 'last time'}{why}"


def note_text(peer: Peer) -> str:
    """The note, without what a key of this console does."""
    if peer.question is not None:
        return f"wants {_WANTS[peer.question.kind]}"
    return peer.note.partition(_COMMAND_HINT)[0]


def since_text(seconds: float) -> str:
    """``40 s``, ``2 m``, ``3 h``, ``5 d``; empty for less than ten seconds.

    Coarse, so that it seldom changes on the screen.
    """
    if seconds < 10:
        return ""
    if seconds < 60:
        return f"{int(seconds) // 10 * 10} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} m"
    if seconds < 48 * 3600:
        return f"{int(seconds) // 3600} h"
    return f"{min(int(seconds) // 86400, 99)} d"


def why_not(peer: Peer) -> str:
    """Why a peer cannot take part now, and what to do; empty when it can."""
    if peer.state in FINE and peer.devices:
        return ""
    note = note_text(peer).rstrip(".")
    why = note or f"it is {state_words(peer)}"
    sentence = f"{peer.name} cannot take part now: {why}"
    hint = hint_of(peer)
    return f"{sentence}. {hint.key} {hint.text}" if hint else sentence


def fallback_text(fallback: Fallback, plan: Plan | None) -> str:
    """``9 | 4 on studio/MTL0, nuc/CPU``; why nothing would do where nothing would."""
    if not fallback.split:
        return f"nothing goes on: {fallback.why}".rstrip(".")
    split = ranges_text(fallback.split)
    shorter = plan is not None and fallback.ctx_size < plan.ctx_size
    return f"{split}, context {fallback.ctx_size}" if shorter else split
