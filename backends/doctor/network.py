"""The ways of data between all machines, as a table and as a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backends.doctor.check import (
    Check,
    Finding,
    Repair,
    RepairKind,
    Verdict,
    check_of,
    columns,
)
from backends.machines.ways import BARE, DIRECT, LOOPBACK, TUNNEL
from backends.places import LOCAL
from backends.state import Peer, Transport
from backends.state.health import MeasuredWay
from backends.units import format_mb_s, format_ms

SLOW_MB_S = 12.0
"""A network of 100 Mbit/s, or a weak Wi-Fi."""
FAR_MS = 20.0
"""With such a round trip a worker costs more than most compute."""


def network_checks(ways: Sequence[MeasuredWay], peers: Sequence[Peer]) -> list[Check]:
    """The table of ways, what is blocked, and what is slow."""
    bare = [
        MeasuredWay(head=LOCAL, worker=peer.name, way=BARE, rtt_ms=peer.rtt_ms)
        for peer in peers
        if peer.transport == Transport.BARE
    ]
    found = [*ways, *bare]
    return [_table(found), _ports(ways), _speeds(found)] if found else []


def _table(ways: Sequence[MeasuredWay]) -> Check:
    by_pair = {(way.head, way.worker): way for way in ways}
    heads = list(dict.fromkeys([LOCAL, *(way.head for way in ways)]))
    workers = list(dict.fromkeys([*heads, *(way.worker for way in ways)]))
    cells = [["head \\ worker", *workers]]
    for head in heads:
        row = [_cell(head, worker, by_pair) for worker in workers]
        cells.append([head, *row])
    kinds = {DIRECT: "direct (TLS)", TUNNEL: "SSH tunnel", BARE: "bare rpc-server"}
    counts = [
        f"{sum(way.way == kind for way in ways)} {text}"
        for kind, text in kinds.items()
        if any(way.way == kind for way in ways)
    ]
    return Check(name="network", detail="\n".join([", ".join(counts), *columns(cells)]))


def _cell(head: str, worker: str, ways: Mapping[tuple[str, str], MeasuredWay]) -> str:
    if head == worker:
        return LOOPBACK
    way = ways.get((head, worker))
    if way is None:
        return "-"
    rtt = "" if way.rtt_ms is None else format_ms(way.rtt_ms)
    rate = "" if way.rate_mb_s is None else format_mb_s(way.rate_mb_s)
    return " ".join(filter(None, (way.way, rtt, rate)))


def _ports(ways: Sequence[MeasuredWay]) -> Check:
    """Check the ports for data: where one is blocked the tunnel is used."""
    findings = [
        Finding(
            machine=way.worker,
            what=f"{way.head} cannot reach it directly at {way.address} ({_why(way)}): "
            "data go through the SSH tunnel",
            repair=Repair(
                kind=RepairKind.USE_TUNNEL,
                machine=way.worker,
                text=f"Send data to {way.worker} through the SSH tunnel without trying",
            ),
        )
        for way in ways
        if way.blocked
    ]
    told = [
        f"{way.worker}: {way.why}, so data from {way.head} go through the SSH tunnel"
        for way in ways
        if way.way == TUNNEL and not way.blocked and way.head == LOCAL and way.why
    ]
    return check_of(
        "firewall",
        "every direct port that was tried can be reached",
        findings,
        fix='Open the port in its firewall (data = "ADDRESS:PORT" in [peers.NAME] '
        "fixes the number), or leave it: the tunnel costs about 1 ms a token.",
        unread="\n".join(told),
    )


def _why(way: MeasuredWay) -> str:
    return way.why.rpartition(": ")[2] or "no answer"


def _speeds(ways: Sequence[MeasuredWay]) -> Check:
    findings = []
    for way in ways:
        if way.rate_mb_s is not None and way.rate_mb_s < SLOW_MB_S:
            findings.append(
                Finding(
                    machine=way.worker,
                    what=f"the link from {way.head} carries "
                    f"{format_mb_s(way.rate_mb_s)}",
                    verdict=Verdict.WARN,
                )
            )
        if way.rtt_ms is not None and way.rtt_ms > FAR_MS:
            findings.append(
                Finding(
                    machine=way.worker,
                    what=f"a round trip from {way.head} takes {format_ms(way.rtt_ms)}",
                )
            )
    known = [way.rate_mb_s for way in ways if way.rate_mb_s is not None]
    rate = f", {format_mb_s(min(known))} or more" if known else ", no rate measured"
    rtts = [way.rtt_ms for way in ways if way.rtt_ms is not None]
    rtt = f"{format_ms(max(rtts))} or less" if rtts else "no round trip measured"
    return check_of(
        "links",
        rtt + rate,
        findings,
        fix="Use a cable, or copy the model there (dllm-tui models copy) so that no "
        "weights cross; every token pays the round trip.",
    )
