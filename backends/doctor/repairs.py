"""Repairs that the doctor does itself, each after a yes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

from backends.client.client import ControllerClient
from backends.config import load_config, put_peer, set_value
from backends.doctor.check import Check, Repair, RepairKind
from backends.doctor.installation import end_orphans
from backends.errors import DllmError
from backends.paths import Paths
from backends.units import format_count


def repairs_of(checks: Iterable[Check]) -> list[Repair]:
    """Every repair that was offered, once."""
    return list(dict.fromkeys(one for check in checks for one in check.repairs))


async def do_repair(paths: Paths, repair: Repair) -> str:
    """Do one repair; what was done, in a sentence."""
    match repair.kind:
        case RepairKind.END_ORPHANS:
            ended = await end_orphans(paths)
            return f"Ended {format_count(len(ended), 'orphan')}."
        case RepairKind.INSTALL:
            await ControllerClient(paths).provision_peer(repair.machine)
            return f"Installed engine and helper on {repair.machine}."
        case RepairKind.USE_TUNNEL:
            return await _use_tunnel(paths, repair.machine)
        case RepairKind.KEEP_AWAKE:
            set_value(paths, "keep_awake", True)
            await ControllerClient(paths).settings_taken()
            return "Set keep_awake: from the next launch on machines stay awake."
        case _:
            assert_never(repair.kind)


async def _use_tunnel(paths: Paths, machine: str) -> str:
    peer = load_config(paths).peers.get(machine)
    if peer is None:
        raise DllmError(f"There is no peer {machine} in {paths.config_file}")
    put_peer(paths, machine, replace(peer, data="tunnel"))
    await ControllerClient(paths).settings_taken()
    return f'Set data = "tunnel" for {machine}: no launch tries its port any more.'
