"""Processes of ours on this machine that nobody looks after."""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING

from backends.doctor.check import Check, Repair, RepairKind, Verdict
from backends.machines.local import local_host_for_now

if TYPE_CHECKING:
    from backends.machines.agent import Orphan
    from backends.paths import Paths


async def find_orphans(paths: Paths) -> list[Orphan]:
    async with local_host_for_now(paths.run_dir) as host:
        return await host.orphans()


def described(orphan: Orphan) -> str:
    """``worker1 (pid 42): rpc-server -p 50052``."""
    command = f": {shlex.join(orphan.argv)}" if orphan.argv else ""
    return f"{orphan.name} (pid {orphan.pid}){command}"


async def end_orphans(paths: Paths) -> list[Orphan]:
    """End every orphan on this machine; those that were there.

    Raises:
        HostError: one outlived SIGKILL.
    """
    async with local_host_for_now(paths.run_dir) as host:
        orphans = await host.orphans()
        names = {orphan.name for orphan in orphans}
        # Each is tried, though another one does not end.
        ends = await asyncio.gather(*map(host.stop, names), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return orphans


async def orphan_check(paths: Paths) -> Check:
    orphans = await find_orphans(paths)
    if not orphans:
        return Check(name="orphans", detail="none")
    return Check(
        name="orphans",
        verdict=Verdict.WARN,
        detail="\n".join(("nobody looks after these:", *map(described, orphans))),
        fix="End them with: dllm-tui down.",
        repairs=(
            Repair(kind=RepairKind.END_ORPHANS, text="End the orphans on this machine"),
        ),
    )
