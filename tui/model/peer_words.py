"""A peer in words: its state as a sign and a tone, and all that is known of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from backends.errors import cannot_take_part
from backends.split.layout import ranges_text
from backends.state import (
    Device,
    EngineInfo,
    Fallback,
    Peer,
    PeerFacts,
    PeerPath,
    PeerRole,
    PeerState,
    Plan,
    QuestionKind,
    Transport,
)
from backends.units import (
    format_bytes,
    format_count,
    format_mb_s,
    format_ms,
    format_offset,
    format_percent,
    format_seconds,
)

Row = tuple[str, str]


class Look(NamedTuple):
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
    PeerState.KNOWN: Look("+", "dim", "known"),
}
_SILENT = Look("◌", "warn", "no answer")


def look_of(peer: Peer) -> Look:
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


_HINTS = {
    PeerState.ASKING: "{peers.open:short} answers it",
    PeerState.NO_ENGINE: "{peers.provision:short} provisions it",
    PeerState.MISMATCH: "{peers.provision:short} provisions it",
    PeerState.PROVISIONING: "{peers.cancel:short} ends it",
}


def hint_of(peer: Peer) -> str:
    return _HINTS.get(peer.state, "")


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
    transport = transport_words(peer)
    if peer.rtt_ms is None:
        return transport
    return f"{transport} {format_ms(peer.rtt_ms):>7}"


def transport_words(peer: Peer) -> str:
    """``ssh``; of a lent machine ``tcp``, ``quic`` directly, ``relay`` or ``via``."""
    if peer.path is None:
        is_reached = peer.transport == Transport.INVITED and peer.rtt_ms is not None
        return "tcp" if is_reached else peer.transport
    if peer.path.via:
        return "via"
    return "relay" if peer.path.relayed else "quic"


def way_text(path: PeerPath) -> str:
    """``QUIC direct to 203.0.113.7:5123 · 12 ms · 1 % lost``."""
    if path.via:
        return f"SSH through {path.via} to {path.address}"
    how = "relayed by" if path.relayed else "direct to"
    # QUIC tells whole milliseconds.
    rtt = format_ms(path.rtt_ms).strip() if path.rtt_ms >= 1 else "<1 ms"
    lost = format_percent(path.loss)
    return f"QUIC {how} {path.address} · {rtt} · {lost} lost"


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


def age_text(seconds: float) -> str:
    return since_text(seconds) or "now"


def why_not(peer: Peer) -> str:
    """Why a peer cannot take part now, and what to do; empty when it can."""
    if peer.state in FINE and peer.devices:
        return ""
    why = note_text(peer) or f"it is {state_words(peer)}"
    sentence = cannot_take_part(peer.name, why)
    hint = hint_of(peer)
    return f"{sentence}. {hint}" if hint else sentence


def fallback_text(fallback: Fallback, plan: Plan | None) -> str:
    """``9 | 4 on studio/MTL0, nuc/CPU``; why nothing would do where nothing would."""
    if not fallback.split:
        return f"nothing goes on: {fallback.why}".rstrip(".")
    split = ranges_text(fallback.split)
    shorter = plan is not None and fallback.ctx_size < plan.ctx_size
    return f"{split}, context {fallback.ctx_size}" if shorter else split


# --- all that is known ----------------------------------------------------------

MODELS_SHOWN = 12
CLOCK_MATTERS_S = 2.0


def peer_rows(peer: Peer, now: float, *, hints: bool = True) -> list[Row]:
    """State, transport and devices, then the findings of the last probe."""
    facts = () if peer.facts is None else _facts(peer.facts, now)
    return [*_state(peer, now, hints=hints), *_devices(peer), *facts]


def _state(peer: Peer, now: float, *, hints: bool) -> Iterator[Row]:
    age = since_text(now - peer.since) if peer.since is not None else ""
    hint = hint_of(peer) if hints else ""
    words = state_words(peer)
    yield "state", f"{words}, for {age}" if age else words
    if note := note_text(peer) if hints else peer.note:
        yield "", note
    if hint:
        yield "", hint
    yield from _work(peer)
    yield "role", role_word(peer)
    path = " ".join(path_words(peer).split())
    yield "address", " · ".join(filter(None, (peer.address, path)))
    if peer.path is not None:
        yield "path", way_text(peer.path)
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
