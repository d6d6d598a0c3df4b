"""Cluster files: machines, devices and links that need not be there, as TOML."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from backends.errors import UsageError, did_you_mean
from backends.models.layers import LAYERS_MAX
from backends.split.calibration import HEAD_PRIOR, Prior, given_speed
from backends.split.cost import KINDS
from backends.state import (
    ClusterSpeeds,
    Device,
    DeviceKind,
    DeviceSpeed,
    GivenCluster,
    GivenDevice,
    GivenLink,
    GivenMachine,
    LinkSpeed,
    Peer,
    Plan,
    SpeedSource,
    Transport,
)
from backends.units import MS_PER_S

MACHINES_MAX = 16
DEVICES_MAX = 8
"""Of one machine."""
FILE_BYTES_MAX = 1 << 20
RPC_PORT = 50_052
CPU = "CPU"
EXAMPLE = """\
# Machines that need not be there. Try: dllm-tui plan MODEL --cluster-file FILE --best
head = "studio"            # without it every machine is tried as the head

[machines.studio]
memory = "64 GiB"          # of the CPU, and how fast that reads it
bandwidth = "150 GB/s"

[machines.studio.devices.MTL0]
memory = "55 GiB"
bandwidth = "400 GB/s"
compute = "14 TFLOPS"      # for prompts; may be left out

[machines.mini]
memory = "16 GiB"
bandwidth = "60 GB/s"

[machines.mini.devices.MTL0]
memory = "12 GiB"
bandwidth = "100 GB/s"
most = 12                  # layers; least = 4 is there too

[machines.mini2]
like = "mini"

[network]                  # between machines that no link names
rtt = "0.4 ms"
rate = "118 MB/s"

[[links]]
between = ["studio", "mini2"]
rtt = "3 ms"
jitter = "1 ms"
rate = "300 Mbit/s"
"""

_QUANTITY = re.compile(r"\s*([+-]?[0-9]+(?:\.[0-9]+)?)\s*([A-Za-zµ/]+)\s*")
_MEMORY = {
    **{f"{prefix}iB": 1024.0 ** (at + 1) for at, prefix in enumerate("KMGT")},
    **{f"{prefix}B": 1000.0 ** (at + 1) for at, prefix in enumerate("KMGT")},
}
_GB_S = {"MB/s": 1e-3, "GB/s": 1.0, "TB/s": 1e3, "GiB/s": 1.073741824}
_MB_S = {
    **{"kB/s": 1e-3, "MB/s": 1.0, "GB/s": 1e3, "MiB/s": 1.048576},
    **{"kbit/s": 1.25e-4, "Mbit/s": 0.125, "Gbit/s": 125.0},
}
_MS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}
_GOPS = {"GFLOPS": 1.0, "TFLOPS": 1e3, "PFLOPS": 1e6}
_KINDS = {
    "CPU": DeviceKind.CPU,
    "CUDA": DeviceKind.CUDA,
    "MTL": DeviceKind.METAL,
    "ROCM": DeviceKind.HIP,
    "HIP": DeviceKind.HIP,
    "VULKAN": DeviceKind.VULKAN,
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_TOP = ("head", "machines", "network", "links")
_MACHINE = ("memory", "bandwidth", "compute", "least", "most", "devices", "like")
_DEVICE = ("kind", "memory", "bandwidth", "compute", "least", "most")
_NETWORK = ("rtt", "jitter", "rate")
_LINK = ("between", *_NETWORK)
_NEAR_RTT_MS = 0.03
_LEAST_PART = 1e-12
"""Of the most that a machine may have; what is less would not be a figure of one."""
_SHOWN_MAX = 60
_USUAL_UNITS = ("GiB", "Mbit/s", "GB/s", "ms", "TFLOPS")


def read_cluster(text: str, name: str = "The cluster file") -> GivenCluster:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name} is no TOML ({error})") from error
    except (ValueError, RecursionError) as error:
        why = "a number has too many digits, or tables are too deep in one another"
        raise UsageError(f"{name} cannot be read as TOML: {why}") from error
    _known(content, _TOP, name)
    tables = _table(content.get("machines", {}), f"machines in {name}")
    if not tables:
        raise UsageError(f"{name} has no machines", "See dllm-tui plan --example.")
    if len(tables) > MACHINES_MAX:
        raise UsageError(f"{name} has {len(tables)} machines; {MACHINES_MAX} at most")
    for one in tables:
        _named(one, "a machine")
    machines = tuple(_machine(one, tables) for one in tables)
    head = content.get("head", "")
    if head != "" and head not in list(tables):
        raise UsageError(
            f"head = {_shown(head)} is none of the machines in {name}",
            f"They are {', '.join(tables)}.",
        )
    links = content.get("links", [])
    if not isinstance(links, list):
        raise UsageError(f"links in {name} is no list", "Write [[links]] for each.")
    found = [_link(one, tables) for one in links]
    if network := _table(content.get("network", {}), "network"):
        _known(network, _NETWORK, "network")
        found.append(_link({"between": ["*", "*"], **network}, tables))
    ends = [tuple(sorted(link.between)) for link in found]
    if twice := next((one for one in ends if ends.count(one) > 1), None):
        raise UsageError(f"{name} has two links between {' and '.join(twice)}")
    return GivenCluster(machines=machines, links=tuple(found), head=head)


def _machine(name: str, tables: Mapping[str, Any]) -> GivenMachine:
    table = _merged(name, tables, ())
    where = f"machines.{name}"
    own = {key: value for key, value in table.items() if key in _DEVICE}
    cpu = _device(CPU, {"kind": "cpu", **own}, where)
    devices = _table(table.get("devices", {}), f"{where}.devices")
    if len(devices) + 1 > DEVICES_MAX + 1:
        raise UsageError(f"{where} has {len(devices)} devices; {DEVICES_MAX} at most")
    for one in devices:
        _named(one, f"a device of {where}")
    if CPU in devices:
        raise UsageError(
            f"{where}.devices.{CPU} is there twice",
            f"Give memory and bandwidth of the CPU in {where} itself.",
        )
    others = [_device(d, one, f"{where}.devices.{d}") for d, one in devices.items()]
    for device in others:
        if device.kind is DeviceKind.CPU:
            raise UsageError(
                f"{where}.devices.{device.name} is a CPU, and a machine has one",
                f"Give memory and bandwidth of the CPU in {where} itself.",
            )
    return GivenMachine(name=name, devices=(cpu, *others))


def _merged(
    name: Any, tables: Mapping[str, Any], before: tuple[str, ...]
) -> dict[str, Any]:
    """The table of a machine on top of the one that it is ``like``."""
    if name in before:
        circle = " → ".join((*before[before.index(name) :], name))
        raise UsageError(f"Machines are like one another in a circle: {circle}")
    if name not in list(tables):
        raise UsageError(
            f"machines.{before[-1]} is like {_shown(name)}, which is no machine",
            f"{did_you_mean(str(name), tables)}They are {', '.join(tables)}.",
        )
    table = _table(tables[name], f"machines.{name}")
    _known(table, _MACHINE, f"machines.{name}")
    if "like" not in table:
        return table
    return {**_merged(table["like"], tables, (*before, name)), **table}


def _device(name: str, value: object, where: str) -> GivenDevice:
    table = _table(value, where)
    _known(table, _DEVICE, where)
    kind = _kind(name, table.get("kind"), where)
    for key in ("memory", "bandwidth"):
        if key not in table:
            raise UsageError(f"{where} has no {key}", "See dllm-tui plan --example.")
    compute = table.get("compute")
    most = _layers(table.get("most"), f"{where}.most")
    least = _layers(table.get("least"), f"{where}.least") or 0
    if most is not None and least > most:
        raise UsageError(f"{where} wants at least {least} and at most {most} layers")
    return GivenDevice(
        name=name,
        kind=kind,
        memory_bytes=round(
            _quantity(table["memory"], _MEMORY, 1024.0**5, f"{where}.memory")
        ),
        gb_s=_quantity(table["bandwidth"], _GB_S, 1e5, f"{where}.bandwidth"),
        gops_s=None
        if compute is None
        else _quantity(compute, _GOPS, 1e8, f"{where}.compute"),
        least=least,
        most=most,
    )


def _kind(name: str, given: object, where: str) -> DeviceKind:
    if given is not None:
        if given not in list(DeviceKind):
            kinds = ", ".join(DeviceKind)
            raise UsageError(
                f"{where}.kind = {_shown(given)} is no kind of device: {kinds}"
            )
        return DeviceKind(str(given))
    stem = name.upper().rstrip("0123456789")
    return _KINDS.get(stem, DeviceKind.OTHER)


def _link(value: object, tables: Mapping[str, Any]) -> GivenLink:
    table = _table(value, "A link")
    _known(table, _LINK, "A link")
    ends = table.get("between")
    if not isinstance(ends, list) or len(ends) != 2:
        raise UsageError("A link has no two ends", 'Write between = ["a", "b"].')
    for end in ends:
        if end not in [*tables, "*"]:
            raise UsageError(
                f"A link names {_shown(end)}, which is no machine",
                f"They are {', '.join(tables)}.",
            )
    where = f"The link between {ends[0]} and {ends[1]}"
    if ends[0] == ends[1] != "*":
        raise UsageError(f"{where} joins a machine to itself")
    if "rtt" not in table:
        raise UsageError(f"{where} has no rtt", "See dllm-tui plan --example.")
    rate = table.get("rate")
    return GivenLink(
        between=(ends[0], ends[1]),
        rtt_ms=_quantity(table["rtt"], _MS, 60_000.0, f"{where}: rtt", zero=True),
        jitter_ms=_quantity(
            table.get("jitter", "0 ms"), _MS, 60_000.0, f"{where}: jitter", zero=True
        ),
        mb_s=None if rate is None else _quantity(rate, _MB_S, 1e6, f"{where}: rate"),
    )


def _quantity(
    value: object,
    units: Mapping[str, float],
    most: float,
    where: str,
    *,
    zero: bool = False,
) -> float:
    usual = next(unit for unit in _USUAL_UNITS if unit in units)
    example = f'Write it like "16 {usual}".'
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if found is None or found[2] not in units:
        names = ", ".join(units)
        raise UsageError(
            f"{where} = {_shown(value)} is no figure with a unit ({names})", example
        )
    figure = float(found[1]) * units[found[2]]
    if figure < 0 or (figure == 0 and not zero) or not math.isfinite(figure):
        least = "nothing or more" if zero else "more than nothing"
        raise UsageError(f"{where} = {_shown(value)} must be {least}", example)
    if figure > most:
        raise UsageError(f"{where} = {_shown(value)} is more than any machine has")
    if 0 < figure < most * _LEAST_PART:
        raise UsageError(f"{where} = {_shown(value)} is less than any machine has")
    return figure


def _layers(value: object, where: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= LAYERS_MAX:
        raise UsageError(
            f"{where} = {_shown(value)} is no number of layers",
            f"Give 0 to {LAYERS_MAX}.",
        )
    return value


def _named(name: str, what: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{_shown(name)} cannot be the name of {what}",
            "Use letters, digits, dots, dashes and underscores.",
        )


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:
        return "a number of very many digits"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UsageError(f"{where} is no table", "See dllm-tui plan --example.")
    return value


def _known(table: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in table:
        if name not in names:
            raise UsageError(
                f"{where} has an unknown key {_shown(name)}",
                f"{did_you_mean(name, names)}Known: {', '.join(names)}.",
            )


# --- as a plan needs them ------------------------------------------------------------


def machines_of_file(given: GivenCluster, head: str) -> list[Peer]:
    """Machines as if they were there, the head first.

    Each other machine has one rpc-server, for its accelerators or else for its CPU.
    """
    ordered = sorted(given.machines, key=lambda one: one.name != head)
    return [_peer(machine, is_head=machine.name == head) for machine in ordered]


def _peer(machine: GivenMachine, *, is_head: bool) -> Peer:
    accelerators = [one for one in machine.devices if one.kind is not DeviceKind.CPU]
    shown = machine.devices if is_head or not accelerators else accelerators
    return Peer(
        name=machine.name,
        transport=Transport.LOCAL if is_head else Transport.BARE,
        address="" if is_head else f"{machine.name}:{RPC_PORT}",
        devices=tuple(
            Device(
                id=f"{machine.name}/{one.name}",
                name=one.name,
                kind=one.kind,
                total_bytes=one.memory_bytes,
                free_bytes=one.memory_bytes,
                # A Mac has one memory for both.
                memory_pool=f"{machine.name}/{CPU}"
                if one.kind is DeviceKind.METAL
                else "",
            )
            for one in shown
        ),
    )


def pins_of_file(given: GivenCluster, plan: Plan) -> tuple[str, ...]:
    """The least and most layers of its devices, as ``--pin`` would say them."""
    known = {share.device for share in plan.split.shares}
    return tuple(
        f"{name}{sign}{count}"
        for machine in given.machines
        for one in machine.devices
        for sign, count in ((">=", one.least), ("<=", one.most))
        if (name := f"{machine.name}/{one.name}") in known
        and (count if sign == ">=" else count is not None)
    )


def speeds_of_file(
    given: GivenCluster, plan: Plan, rpc_protocol: str = ""
) -> ClusterSpeeds:
    known = {
        f"{machine.name}/{one.name}": one
        for machine in given.machines
        for one in machine.devices
    }
    shares = [share.device for share in plan.split.shares]
    return ClusterSpeeds(
        head=_speed("head", HEAD_PRIOR._replace(source=SpeedSource.GIVEN)),
        devices=tuple(
            _speed(name, given_speed(one.kind, one.gb_s, one.gops_s))
            for name in shares
            if (one := known.get(name))
        ),
        links=tuple(
            _link_speed(given, plan.head, worker.peer, worker.name)
            for worker in plan.workers
        ),
        rpc_protocol=rpc_protocol,
    )


def _speed(name: str, prior: Prior) -> DeviceSpeed:
    covariance = [0.0] * (KINDS * KINDS)
    for at, deviation in enumerate(prior.sd):
        covariance[at * KINDS + at] = deviation**2
    return DeviceSpeed(
        device=name, ms=prior.ms, covariance=tuple(covariance), source=prior.source
    )


def _link_speed(given: GivenCluster, head: str, peer: str, worker: str) -> LinkSpeed:
    ends = {head, peer}
    if head == peer:
        return LinkSpeed(worker=worker, rtt_ms=_NEAR_RTT_MS, source=SpeedSource.GIVEN)
    # The link that names both counts before one with a star, and that before the rest.
    fitting = [link for link in given.links if set(link.between) <= ends | {"*"}]
    link = max(
        fitting,
        key=lambda one: sum(end != "*" for end in one.between),
        default=GivenLink(between=("*", "*"), rtt_ms=1.0, mb_s=100.0),
    )
    return LinkSpeed(
        worker=worker,
        rtt_ms=link.rtt_ms,
        rtt_sd_ms=math.hypot(link.jitter_ms, 0.05 * link.rtt_ms),
        ms_per_mb=MS_PER_S / link.mb_s if link.mb_s else 0.0,
        pass_ms=0.1,
        pass_sd_ms=0.05,
        source=SpeedSource.GIVEN if fitting else SpeedSource.PRIOR,
    )
