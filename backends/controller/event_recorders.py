"""Record the events of a cluster, of peers and of the settings as sentences."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from backends.controller.event_log import CONTROLLER, EventLog
from backends.controller.exit_reasons import failed_at
from backends.errors import DllmError
from backends.machine_names import LOCAL
from backends.split.layout import format_range
from backends.state import (
    Actor,
    EventKind,
    EventTone,
    Failure,
    Lab,
    Leftover,
    MeasuredSplit,
    Peer,
    PeerState,
    Plan,
)
from backends.state.snapshots import RequestCounts
from backends.units import format_count, format_lab, format_seconds


class EventRecorder:
    def __init__(self, event_log: EventLog, cluster: str) -> None:
        self._event_log = event_log
        self._cluster = cluster

    def wanted(self, plan: Plan | None, by: Actor, why: str = "") -> None:
        told = f" {why}" if why else ""
        if plan is None:
            self._tell(EventKind.STOP, f"stopped the cluster{told}", by)
            return
        shares = (s for s in plan.split.shares if s.layers)
        split = ", ".join(f"{share.device} {share.layers}" for share in shares)
        text = f"launched {_model(plan)}{told} ({split}; context {plan.ctx_size})"
        self._tell(EventKind.LAUNCH, text, by)

    def serving(
        self, plan: Plan, measured: MeasuredSplit, seconds: float, *, again: bool
    ) -> None:
        how = "serves again" if again else "serves"
        text = f"{_model(plan)} {how} after {format_seconds(seconds)}"
        tone = EventTone.INFORMATION
        if measured.mismatches:
            tone = EventTone.WARNING
            text += f", not as planned: {'; '.join(measured.mismatches)}"
        elif measured.layers:
            n_layer = plan.split.n_layer
            layers = (f"{r.device} {format_range(r, n_layer)}" for r in measured.layers)
            text += f": {', '.join(layers)}"
        self._tell(EventKind.SERVING, text, tone=tone)

    def taken_up(self, plan: Plan) -> None:
        """Report that this controller looks after a cluster that serves already."""
        text = f"Another controller looks after {_model(plan)}, which serves on"
        self._tell(EventKind.TAKEN_UP, text)

    def stopped(self, names: Sequence[str], left: Iterable[Leftover]) -> None:
        if names:
            self._tell(EventKind.STOPPED, f"Stopped: {', '.join(names)}")
        for one in left:
            text = f"{one.name} on {one.peer} could not be stopped: {one.why}"
            self._tell(EventKind.WAITING, text, tone=EventTone.WARNING)

    def failed(self, failure: Failure) -> None:
        ended = failure.exit_code is not None or failure.exit_signal is not None
        kind = EventKind.DIED if ended else EventKind.FAILED
        self._tell(kind, failure.what, tone=EventTone.ERROR, failure=failure)

    def waiting(self, why: str) -> None:
        self._tell(EventKind.WAITING, why, tone=EventTone.WARNING)

    def held(self, before: RequestCounts, after: RequestCounts) -> None:
        """Report the requests that waited at the API, once none waits any more."""
        went_on = after.held - before.held
        refused = after.failed - before.failed
        if went_on > 0:
            waited = format_seconds(after.held_longest_s)
            text = f"{_requests(went_on)} waited up to {waited} and went on"
            if continued := after.continued - before.continued:
                text += f", {continued} in the middle of a stream"
            self._tell(EventKind.WAITING, text)
        if refused > 0:
            text = f"{_requests(refused)} waited in vain, or broke"
            self._tell(EventKind.WAITING, text, tone=EventTone.WARNING)

    def drained(self, by: Actor, *, on: bool) -> None:
        text = "drained the API: new requests wait"
        self._tell(EventKind.DRAIN, text if on else "resumed the API", by)

    def restarted(self, process: str, by: Actor) -> None:
        self._tell(EventKind.PROCESS, f"restarted {process}", by)

    def killed(self, process: str, machine: str, by: Actor) -> None:
        where = "" if machine == LOCAL else f" on {machine}"
        text = f"killed {process}{where}"
        self._tell(EventKind.PROCESS, text, by, tone=EventTone.WARNING)

    def let_end(self, count: int, left: int, seconds: float) -> None:
        """A new split has waited for answers that it would have broken."""
        waited = format_seconds(seconds)
        answers = (
            f"{format_count(left or count, 'answer')} that another split would break"
        )
        if left:
            text = f"{answers} did not end within {waited} (api_drain_s)"
            self._tell(EventKind.DRAIN, text, tone=EventTone.WARNING)
        else:
            self._tell(EventKind.DRAIN, f"{answers} ended first, after {waited}")

    def led(self, worker: str, note: str) -> None:
        """Report what a user is to know of the way to a worker."""
        self._tell(EventKind.WAY, f"{worker}: {note}", tone=EventTone.WARNING)

    def mended(self, how: str) -> None:
        self._tell(EventKind.MENDED, how)

    def rolled_back(self, how: str) -> None:
        self._tell(EventKind.MENDED, how, tone=EventTone.WARNING)

    def tried(self, what: str) -> None:
        self._tell(EventKind.DRAFT, what)

    def tried_in_vain(self, what: str, error: Exception) -> None:
        """A draft could not be measured; what serves goes on."""
        failure = failed_at(what, error, time.time())
        tone = EventTone.WARNING
        self._tell(EventKind.DRAFT, failure.what, tone=tone, failure=failure)

    def lab(self, link: str | None, lab: Lab | None, by: Actor) -> None:
        """Record that a user set or removed a link's lab, once it has settled."""
        where = link or "all links"
        text = f"cleared the lab on {where}"
        if lab:
            text = f"set the lab on {where}: {format_lab(lab)} each way"
        self._event_log.tell_settled(
            f"{self._cluster} {link}", lambda: self._tell(EventKind.LAB, text, by)
        )

    def _tell(
        self,
        kind: EventKind,
        text: str,
        by: Actor = CONTROLLER,
        tone: EventTone = EventTone.INFORMATION,
        failure: Failure | None = None,
    ) -> None:
        self._event_log.tell(
            kind, text, by=by, tone=tone, cluster=self._cluster, failure=failure
        )


class PeerRecorder:
    def __init__(self, event_log: EventLog) -> None:
        self._event_log = event_log
        self._known: dict[str, str] = {}

    def look(self, peers: Iterable[Peer]) -> None:
        """Tell what is other than it was; how one is found at first is no news."""
        there = {peer.name: peer for peer in peers}
        for name, peer in there.items():
            before = self._known.get(name)
            now = _presence(peer) or before
            if now is None:
                continue
            self._known[name] = now
            if before not in (None, now):
                self._tell(peer, now)
        self._known = {name: at for name, at in self._known.items() if name in there}

    def _tell(self, peer: Peer, now: str) -> None:
        text = {
            _GONE: f"{peer.name} is gone" + (f": {peer.note}" if peer.note else ""),
            _SILENT: f"{peer.name} is silent",
            _THERE: f"{peer.name} is back",
        }[now]
        tone = EventTone.INFORMATION if now == _THERE else EventTone.WARNING
        self._event_log.tell(EventKind.PEER, text, tone=tone, peer=peer.name)


class WorkRecorder:
    def __init__(self, event_log: EventLog, by: Actor, peer: str) -> None:
        self._event_log = event_log
        self._by = by
        self._peer = peer

    def did(self, what: str, kind: EventKind = EventKind.PEERS) -> None:
        self._event_log.tell(kind, what, by=self._by, peer=self._peer)

    @contextmanager
    def tries(
        self, what: str, kind: EventKind = EventKind.PEERS
    ) -> Iterator[list[str]]:
        """Tell that something long is done, with remarks on it; if it fails, why."""
        remarks: list[str] = []
        try:
            yield remarks
        except DllmError as error:
            failure = error.failure()
            self._event_log.tell(
                kind,
                f"{what}, which failed: {failure.what}",
                by=self._by,
                peer=self._peer,
                failure=failure,
                tone=EventTone.WARNING,
            )
            raise
        self.did(": ".join((what, *filter(None, remarks))), kind)


_THERE, _SILENT, _GONE = "there", "silent", "gone"


def _presence(peer: Peer) -> str | None:
    if peer.state is PeerState.UNREACHABLE:
        return _GONE
    if peer.state in (PeerState.PROBING, PeerState.ASKING):
        return None
    return _THERE if peer.silent_since is None else _SILENT


def _requests(count: int) -> str:
    return f"{format_count(count, 'request')} to the API"


def _model(plan: Plan) -> str:
    return plan.model.rpartition("/")[2].removesuffix(".gguf")
