"""Checks of this machine, and repairs that the doctor does itself after a yes."""

from __future__ import annotations

import asyncio
import os
import platform
import shlex
from collections.abc import Awaitable, Callable, Iterable
from shutil import disk_usage, which
from typing import assert_never

from msgspec.structs import replace

from backends.client.client import ControllerClient
from backends.config import API_PORT_DEFAULT, load_config, put_peer, set_value
from backends.demo import MODEL_PATH, is_bundled
from backends.doctor.check import Check, Repair, RepairKind, Verdict
from backends.doctor.peer_checks import BUILD_DISK_BYTES, FULL_DISK_BYTES
from backends.engine.install import all_engines, find_engine
from backends.errors import DllmError, MachineError
from backends.machines.agent import Orphan
from backends.machines.local import describe_here, local_agent_for_now
from backends.mesh.quic_library import INSTALL, iroh_library, iroh_version
from backends.mesh.relay_access import RelayFile, try_relay
from backends.models.download import demo_model
from backends.models.layers import read_model
from backends.paths import Paths, make_private, relay_binary
from backends.state import EngineInfo
from backends.units import format_bytes, format_count


async def engine_here(configured: str | None, paths: Paths) -> EngineInfo:
    found = await asyncio.to_thread(find_engine, configured, paths)
    return await describe_here(found, paths)


async def _system(paths: Paths) -> Check:
    async with local_agent_for_now(paths.run_dir) as agent:
        memory = await agent.memory()
    detail = (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"{format_bytes(memory.free_bytes)} of {format_bytes(memory.total_bytes)} free"
    )
    return Check(name="system", detail=detail)


async def _settings(paths: Paths) -> Check:
    load_config(paths)
    exists = paths.config_file.exists()
    detail = str(paths.config_file) if exists else "no config.toml: defaults"
    return Check(name="settings", detail=detail)


async def _directories(paths: Paths) -> Check:
    for directory in (paths.state_dir, paths.runtime_dir):
        make_private(directory)
        if not os.access(directory, os.W_OK):
            raise DllmError(f"{directory} is not writable", "Make it yours.")
    free = disk_usage(paths.state_dir).free
    verdict, fix = Verdict.OK, ""
    if free < FULL_DISK_BYTES:
        verdict = Verdict.FAIL
        fix = "Free some disk: on a full one nothing is launched, and no chat is kept."
    elif free < BUILD_DISK_BYTES:
        verdict, fix = Verdict.WARN, "Free some disk: an engine build needs 2 GiB."
    detail = f"{paths.state_dir}, {format_bytes(free)} free"
    return Check(name="directories", verdict=verdict, detail=detail, fix=fix)


async def _helper(paths: Paths) -> Check:
    return Check(name="helper", detail=str(relay_binary()))


async def _engine(paths: Paths) -> Check:
    configured = load_config(paths).engine
    info = await engine_here(configured, paths)
    others = len(await asyncio.to_thread(all_engines, configured, paths)) - 1
    more = f", {others} more found" if others > 0 else ""
    detail = f"{info.version}, RPC {info.rpc_protocol}, {info.directory}{more}"
    return Check(name="engine", detail=detail)


async def _compiler(paths: Paths) -> Check:
    compiler = next(filter(None, map(which, ("c++", "g++", "clang++"))), None)
    if compiler:
        return Check(name="compiler", detail=compiler)
    return Check(
        name="compiler",
        verdict=Verdict.WARN,
        detail="no C++ compiler",
        fix="Only engine build needs one: install g++ or clang++.",
    )


async def _quic(paths: Paths) -> Check:
    if not iroh_version():
        detail = "iroh is not installed: lent machines are reached by TCP alone"
        return Check(name="quic", detail=detail, fix=INSTALL)
    relay = RelayFile(paths.relays_file).own
    try:
        await iroh_library()
        if relay is not None:
            await try_relay(relay)
    except MachineError as error:
        return Check(
            name="quic", verdict=Verdict.WARN, detail=error.what, fix=error.hint
        )
    by = f", and the relay {relay.url} answers" if relay else ""
    return Check(name="quic", detail=f"iroh {iroh_version()} works{by}")


async def _model(paths: Paths) -> Check:
    there = MODEL_PATH if is_bundled() else demo_model(load_config(paths).model_dirs)
    if there is None:
        return Check(name="demo model", detail="not here yet: dllm-tui demo gets it")
    info = await asyncio.to_thread(read_model, there)
    detail = f"{info.name}, {info.n_layer} layers, {format_bytes(info.size_bytes)}"
    return Check(name="demo model", detail=detail)


async def _controller(paths: Paths) -> Check:
    client = ControllerClient(paths)
    if not await client.running():
        return Check(name="controller", detail="not running (started on demand)")
    snapshot = await client.snapshot()
    failed = snapshot.failure is not None
    return Check(
        name="controller",
        verdict=Verdict.WARN if failed else Verdict.OK,
        detail=f"pid {snapshot.controller_pid}, {snapshot.state.value}"
        + (f": {snapshot.message}" if snapshot.message else ""),
        fix="dllm-tui opens the console with the details." if failed else "",
    )


async def _port(paths: Paths) -> Check:
    fixed = load_config(paths).api_port
    port = fixed or API_PORT_DEFAULT
    async with local_agent_for_now(paths.run_dir) as agent:
        owner = await agent.port_owner(port)
        # The gateway lives on without a controller.
        pids = {record.pid for record in await agent.records() if record.alive}
    client = ControllerClient(paths)
    if await client.running():
        pids.add((await client.snapshot()).controller_pid)
    if owner is None:
        return Check(name="api port", detail=f"{port} is free")
    if any(owner.endswith(f"(pid {pid})") for pid in pids):
        return Check(name="api port", detail=f"{port} is our cluster's ({owner})")
    return Check(
        name="api port",
        verdict=Verdict.FAIL if fixed else Verdict.WARN,
        detail=f"{port} is taken by {owner}",
        fix=f"End that, or set another api_port in {paths.config_file}."
        if fixed
        else "The next free port is used instead; api_port in config.toml sets one.",
    )


async def find_orphans(paths: Paths) -> list[Orphan]:
    async with local_agent_for_now(paths.run_dir) as agent:
        return await agent.orphans()


def described(orphan: Orphan) -> str:
    """``worker1 (pid 42): rpc-server -p 50052``."""
    command = f": {shlex.join(orphan.argv)}" if orphan.argv else ""
    return f"{orphan.name} (pid {orphan.pid}){command}"


async def end_orphans(paths: Paths) -> list[Orphan]:
    async with local_agent_for_now(paths.run_dir) as agent:
        orphans = await agent.orphans()
        names = {orphan.name for orphan in orphans}
        # Each is tried, though another one does not end.
        ends = await asyncio.gather(*map(agent.stop, names), return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return orphans


async def _orphans(paths: Paths) -> Check:
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


CHECKS: dict[str, Callable[[Paths], Awaitable[Check]]] = {
    "system": _system,
    "settings": _settings,
    "directories": _directories,
    "helper": _helper,
    "engine": _engine,
    "compiler": _compiler,
    "quic": _quic,
    "demo model": _model,
    "controller": _controller,
    "api port": _port,
    "orphans": _orphans,
}


def repairs_of(checks: Iterable[Check]) -> list[Repair]:
    return list(dict.fromkeys(one for check in checks for one in check.repairs))


async def do_repair(paths: Paths, repair: Repair) -> str:
    """Do a repair and say so."""
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
