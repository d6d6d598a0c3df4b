"""Checks of every machine, and of the ways between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from backends.doctor.check import (
    WITH_AGENT,
    Check,
    Finding,
    Repair,
    RepairKind,
    Verdict,
    check_of,
    columns,
)
from backends.engine.versions import protocols_match
from backends.machine_names import LOCAL
from backends.machines.path_measurement import BARE, DIRECT, LOOPBACK, TUNNEL
from backends.state import (
    EngineInfo,
    Peer,
    PeerState,
    Transport,
)
from backends.state.health import MachineHealth, MeasuredWay
from backends.units import (
    format_bytes,
    format_celsius,
    format_mb_s,
    format_ms,
    format_offset,
    format_percent,
    format_seconds,
)

FINE = (PeerState.READY, PeerState.STARTING, PeerState.SERVING)
GONE = (PeerState.UNREACHABLE,)
CLOCK_OFF_S = 5.0
"""A clock this far off makes times in logs hard to compare."""
# An engine build needs about this much while it runs.
BUILD_DISK_BYTES = 2 << 30
FULL_DISK_BYTES = 64 << 20
"""With less no log, record or engine can be written."""
PRESSURE_PERCENT = {"memory": 10.0, "io": 40.0, "cpu": 60.0}
"""From these shares of the time on, work that stands still is worth a word."""
LITTLE_MEMORY = 0.05
AWAY = (
    "It may sleep, be off or unplugged: wake it, and see that it does not sleep by "
    "itself (keep_awake in config.toml holds it awake while it serves)."
)


def reached(peer: Peer) -> Check:
    rtt = "" if peer.rtt_ms is None else f", {format_ms(peer.rtt_ms)}"
    silent = peer.silent_since is not None
    fine = peer.state in FINE and not silent
    fix = peer.note
    if (peer.state in GONE or silent) and not peer.question:
        note = peer.note if peer.note.endswith(("?", ".")) else f"{peer.note}."
        fix = f"{note} {AWAY}" if peer.note else AWAY
    installs = peer.state in (PeerState.NO_ENGINE, PeerState.MISMATCH)
    return Check(
        name=f"peer {peer.name}",
        verdict=Verdict.OK if fine else Verdict.WARN,
        detail=f"{'silent' if silent else peer.state.value}{rtt}",
        fix=fix,
        machines=() if fine else (peer.name,),
        repairs=(_install(peer.name),)
        if installs and peer.transport == Transport.SSH
        else (),
    )


# --- engines -------------------------------------------------------------------------


def spoken(here: EngineInfo, peers: Sequence[Peer]) -> dict[str, EngineInfo]:
    """The engine that each machine would use, ours first."""
    found = {LOCAL: here}
    for peer in peers:
        if peer.transport in WITH_AGENT and peer.facts and peer.facts.engines:
            engines = peer.facts.engines
            fits = [
                e for e in engines if protocols_match(here.rpc_protocol, e.rpc_protocol)
            ]
            found[peer.name] = (fits or list(engines))[0]
    return found


def protocols(engines: Mapping[str, EngineInfo]) -> Check:
    """Check who can work for whom, with a table if not everybody can."""
    versions = {name: engine.rpc_protocol for name, engine in engines.items()}
    bad = [
        (worker, f"{worker} ({theirs}) cannot work for {head} ({ours})")
        for head, ours in versions.items()
        for worker, theirs in versions.items()
        if not protocols_match(ours, theirs)
    ]
    if not bad:
        one = ", ".join(sorted({version or "?" for version in versions.values()}))
        detail = f"every machine can work for every other (RPC {one})"
        return Check(name="protocols", detail=detail)
    sentences = [sentence for _, sentence in bad]
    marks = {True: "✓", False: "✗"}
    accepted = [
        [head, *(marks[protocols_match(ours, one)] for one in versions.values())]
        for head, ours in versions.items()
    ]
    table = columns([["head \\ worker", *versions], *accepted])
    return Check(
        name="protocols",
        verdict=Verdict.WARN,
        detail="\n".join(("who can work for whom", *table, *sentences)),
        fix="Install this machine's engine there: dllm-tui peers setup NAME.",
        machines=tuple(dict.fromkeys(name for name, _ in bad if name != LOCAL)),
    )


def builds(engines: Mapping[str, EngineInfo]) -> Check:
    """Check that every machine has the same build of llama.cpp as this one.

    The protocol says nothing of the numbers of operators, which move from build to
    build.
    """
    ours = engines[LOCAL].version
    findings = [
        Finding(
            machine=name,
            what=f"llama.cpp {engine.version}, this machine {ours}",
            repair=_install(name),
        )
        for name, engine in engines.items()
        if engine.version and ours and engine.version != ours
    ]
    return check_of(
        "builds",
        f"the same llama.cpp everywhere ({ours})",
        findings,
        fix="Another build may number its operators otherwise, and compute nonsense: "
        "install this machine's with dllm-tui peers setup NAME.",
    )


def several_engines(peers: Sequence[Peer]) -> Check:
    findings = []
    for peer in peers:
        engines = peer.facts.engines if peer.facts else ()
        if len({(e.version, e.rpc_protocol) for e in engines}) < 2:
            continue
        others = ", ".join(f"{_called(e)} in {e.directory}" for e in engines[1:])
        first = f"{_called(engines[0])} in {engines[0].directory}"
        findings.append(
            Finding(machine=peer.name, what=f"{first} comes first, before {others}")
        )
    return check_of(
        "engines",
        "one llama.cpp on each machine",
        findings,
        fix="Remove one, or name the right one: engine in [peers.NAME] of config.toml.",
    )


def _called(engine: EngineInfo) -> str:
    return f"{engine.version or 'unknown build'} (RPC {engine.rpc_protocol or '?'})"


def _install(name: str) -> Repair:
    return Repair(
        kind=RepairKind.INSTALL,
        machine=name,
        text=f"Install this machine's engine and helper on {name}",
    )


# --- health --------------------------------------------------------------------------


def health_checks(
    found: Sequence[MachineHealth], serving: Sequence[str], *, keep_awake: bool
) -> list[Check]:
    """Check the readings of all machines, by topic; ``serving`` ones are at work."""
    read = [one for one in found if not one.unread]
    unread = "\n".join(
        f"{o.machine} is not known: {o.unread}" for o in found if o.unread
    )
    checks = [_clocks(read), _disks(read), _memory(read, serving), _cores(read)]
    checks.append(_sleep(read, serving if keep_awake else None))
    if not unread:
        return checks
    away = [
        Finding(machine=one.machine, what=one.unread) for one in found if one.unread
    ]
    return [
        check_of("readings", "", away, fix="Look at it with dllm-tui peers."),
        *checks,
    ]


def _clocks(found: Sequence[MachineHealth]) -> Check:
    offsets = {o.machine: o.clock_offset_s for o in found if o.machine != LOCAL}
    findings = [
        Finding(machine=name, what=f"its clock is {format_offset(offset_s)} off")
        for name, offset_s in offsets.items()
        if abs(offset_s) > CLOCK_OFF_S
    ]
    widest = max(map(abs, offsets.values()), default=0.0)
    return check_of(
        "clocks",
        f"within {format_seconds(widest)} of this machine's"
        if offsets
        else "only this machine's",
        findings,
        fix="Set it by the network (timedatectl set-ntp true): its logs tell other "
        "times.",
    )


def _disks(found: Sequence[MachineHealth]) -> Check:
    findings = [
        Finding(
            machine=one.machine,
            what=f"{format_bytes(one.disk_free_bytes)} free of "
            f"{format_bytes(one.disk_total_bytes)} where engines and logs go",
            verdict=Verdict.FAIL
            if one.disk_free_bytes < FULL_DISK_BYTES
            else Verdict.WARN,
        )
        for one in found
        if one.disk_free_bytes < BUILD_DISK_BYTES
    ]
    free = min((one.disk_free_bytes for one in found), default=0)
    return check_of(
        "disks",
        f"{format_bytes(free)} free or more",
        findings,
        fix="Free some disk: an engine build needs 2 GiB, and a full disk stops logs "
        "and weights.",
    )


def _memory(found: Sequence[MachineHealth], serving: Sequence[str]) -> Check:
    findings = []
    for one in found:
        for name, limit in PRESSURE_PERCENT.items():
            share = one.pressure_percent.get(name, 0.0)
            # Of a machine that serves the work is ours.
            if share > limit and not (name == "cpu" and one.machine in serving):
                time = format_percent(share / 100)
                what = f"work waits {time} of the time for {_RESOURCES[name]}"
                findings.append(Finding(machine=one.machine, what=what))
        total, available = one.memory_total_bytes, one.memory_available_bytes
        if total and available < total * LITTLE_MEMORY and one.machine not in serving:
            what = f"{format_percent(available / total)} of its memory is available"
            findings.append(Finding(machine=one.machine, what=what))
    return check_of(
        "load",
        "no machine is short of memory or cores",
        findings,
        fix="End other programs there: a token waits for the slowest machine.",
    )


_RESOURCES = {"memory": "memory", "io": "its disk", "cpu": "a core"}


def _cores(found: Sequence[MachineHealth]) -> Check:
    findings = [
        Finding(machine=one.machine, what=what)
        for one in found
        for what in one.throttled
    ]
    hottest = max((o.hottest_c for o in found if o.hottest_c is not None), default=None)
    heat = "" if hottest is None else f", {format_celsius(hottest)} at most"
    return check_of(
        "cores",
        f"none is throttled, for all that can be read{heat}",
        findings,
        fix="Cool it, plug it in, or lift the limit: a token waits for the slowest "
        "machine.",
    )


def _sleep(found: Sequence[MachineHealth], held: Sequence[str] | None) -> Check:
    """Check sleep settings; with keep_awake, whether each of ``held`` is awake."""
    findings = [
        Finding(
            machine=one.machine,
            what=what,
            repair=Repair(
                kind=RepairKind.KEEP_AWAKE,
                text="Set keep_awake in config.toml, for every machine that serves",
            ),
        )
        for one in found
        for what in one.sleeps
        if held is None
    ]
    findings += [
        Finding(
            machine=one.machine,
            what="nothing there holds it awake while it serves (keep_awake)",
        )
        for one in found
        if one.machine in (held or ()) and not one.stays_awake
    ]
    awake = [one.machine for one in found if one.stays_awake]
    now = f"; held awake now: {', '.join(awake)}" if awake else ""
    fine = "none by itself" if held is None else "keep_awake holds those that serve"
    return check_of(
        "sleep",
        fine + now,
        findings,
        fix="Let it stay awake while it serves: dllm-tui config set keep_awake true."
        if held is None
        else "Allow systemd-inhibit there, or end sleep in its own settings.",
    )


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
