"""Is everything in order here? One check per thing that can be missing or wrong."""

from __future__ import annotations

import asyncio
import os
import platform
from pathlib import Path
from shutil import disk_usage, which
from typing import TYPE_CHECKING

from backends.checks import Check, Verdict
from backends.config import API_PORT_DEFAULT, load_config
from backends.controller.client import ControllerClient
from backends.demo import MODEL_PATH
from backends.engine.ask import describe
from backends.engine.find import all_engines, find_engine
from backends.errors import DllmError
from backends.models.layers import read_model
from backends.paths import make_private, relay_binary
from backends.peer_checks import peer_checks
from backends.peers.local import LocalHost
from backends.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from backends.paths import Paths

# An engine build needs about this much while it runs.
BUILD_DISK_BYTES = 2 << 30


async def examine(paths: Paths) -> AsyncIterator[Check]:
    """All checks, one after the other as they are done; none raises."""
    for name, check in CHECKS.items():
        try:
            found = await check(paths)
        except DllmError as error:
            found = Check(
                name=name, verdict=Verdict.FAIL, detail=error.what, fix=error.hint
            )
        except OSError as error:
            found = Check(name=name, verdict=Verdict.FAIL, detail=str(error))
        yield found
    for found in await _peers(paths):
        yield found


async def _peers(paths: Paths) -> list[Check]:
    """The other machines; none where the settings name none or cannot be read."""
    try:
        config = load_config(paths)
        if not config.peers:
            return []
        location = await asyncio.to_thread(find_engine, config.engine, paths)
        here = (await describe(location, paths)).rpc_protocol
        return await peer_checks(paths, here)
    except DllmError as error:
        warn = Verdict.WARN
        return [Check(name="peers", verdict=warn, detail=error.what, fix=error.hint)]


async def _system(paths: Paths) -> Check:
    memory = await LocalHost(paths.run_dir).memory()
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
    short = free < BUILD_DISK_BYTES
    return Check(
        name="directories",
        verdict=Verdict.WARN if short else Verdict.OK,
        detail=f"{paths.state_dir}, {format_bytes(free)} free",
        fix="Free some disk: an engine build needs 2 GiB." if short else "",
    )


async def _helper(paths: Paths) -> Check:
    return Check(name="helper", detail=str(relay_binary()))


async def _engine(paths: Paths) -> Check:
    configured = load_config(paths).engine
    info = await describe(
        await asyncio.to_thread(find_engine, configured, paths), paths
    )
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


async def _model(paths: Paths) -> Check:
    info = await asyncio.to_thread(read_model, Path(MODEL_PATH))
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
    port = load_config(paths).api_port or API_PORT_DEFAULT
    owner = await LocalHost(paths.run_dir).port_owner(port)
    if owner is None:
        return Check(name="api port", detail=f"{port} is free")
    ours = "llama-server" in owner
    return Check(
        name="api port",
        verdict=Verdict.OK if ours else Verdict.WARN,
        detail=f"{port} is used by {owner}",
        fix="" if ours else "Another port is taken, or set api_port in config.toml.",
    )


async def _orphans(paths: Paths) -> Check:
    orphans = await LocalHost(paths.run_dir).orphans()
    if not orphans:
        return Check(name="orphans", detail="none")
    pids = ", ".join(str(orphan) for orphan in orphans)
    return Check(
        name="orphans",
        verdict=Verdict.WARN,
        detail=f"processes of ours without a directory: {pids}",
        fix="End them with: kill PID.",
    )


CHECKS: dict[str, Callable[[Paths], Awaitable[Check]]] = {
    "system": _system,
    "settings": _settings,
    "directories": _directories,
    "helper": _helper,
    "engine": _engine,
    "compiler": _compiler,
    "demo model": _model,
    "controller": _controller,
    "api port": _port,
    "orphans": _orphans,
}
