"""Installing our engine and relay on a peer: copied if they fit, else built."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import asyncssh
import msgspec
from msgspec.structs import replace

from backends.engine import build as local_build
from backends.engine import build_errors, compiling, install, releases
from backends.engine.accelerators import (
    SEEN,
    Accelerator,
    AcceleratorChoice,
    choose,
    look,
)
from backends.engine.ask import list_devices, parse_version
from backends.engine.compiling import CMAKE_MIN, MEMORY_PER_JOB_BYTES, Toolchain
from backends.engine.download import release_for_others, release_manifest
from backends.engine.install import Manifest
from backends.engine.releases import Archive, Release
from backends.errors import DllmError, MachineError, PeerUnreachable
from backends.machines import artifacts
from backends.machines.artifacts import MARKER, Artifact
from backends.machines.facts import MachineInfo, System
from backends.machines.shell import (
    AgentShell,
    CannotBuild,
    DoesNotRun,
    Greeting,
    PeerBusy,
    Shell,
    ShellResult,
    There,
    WrongFile,
    lock,
    peer_full,
    refusal,
    rows,
    script,
    transfer_error,
    why_ended,
)
from backends.machines.ssh.files import Meter, upload
from backends.paths import Paths
from backends.state import (
    NOT_JSON,
    EngineInfo,
    EngineProgress,
    EngineSource,
    PeerWork,
    ProvisionMode,
    Value,
)
from backends.units import format_bytes

if TYPE_CHECKING:
    from backends.machines.agent import AgentSession


_ARCHES = {"arm64": "aarch64", "amd64": "x86_64"}
_NATIVE = "-DGGML_NATIVE=ON"
_NUMBER = re.compile(r"\d+(\.\d+)*")
TOOLS_S = 60.0
# Names of instruction sets a compiler may use, as /proc/cpuinfo and sysctl have them.
# The other flags (mitigations, virtualisation…) say nothing about instructions.
_INSTRUCTIONS = re.compile(
    r"(s?sse\w*|pni|avx\w*|fma4?|f16c|bmi[12]|abm|lzcnt|popcnt|movbe|adx|aes|vaes|"
    r"v?pclmulqdq|sha_ni|sha512|gfni|rdrand|rdseed|xop|tbm|amx_\w+|"
    r"asimd\w*|fphp|i8mm|bf16|sve\w*|sme\w*|dotprod|feat_\w+)"
)


def misfit(head: System, peer: System) -> str:
    """Why programs of the head cannot run on a peer; empty when they may."""
    if head.os != peer.os:
        return f"they are for {head.os}, it runs {peer.os or 'something else'}"
    if _ARCHES.get(head.arch, head.arch) != _ARCHES.get(peer.arch, peer.arch):
        return f"they are for {head.arch}, it is {peer.arch}"
    if _family(head.libc) != _family(peer.libc):
        return f"they need {head.libc}, it has {peer.libc or 'another C library'}"
    return ""


def _family(libc: str) -> str:
    return libc.partition(" ")[0]


def lacking(head: str, peer: str) -> str:
    """Why programs compiled for the head's very CPU cannot run on a peer's."""
    missing = set(head.lower().split()) - set(peer.lower().split())
    named = sorted(flag for flag in missing if _INSTRUCTIONS.fullmatch(flag))
    return f"its CPU lacks {', '.join(named[:4])}" if named else ""


class Tool(Value, frozen=True, kw_only=True):
    path: str
    text: str = ""
    """The line in which it tells its version."""

    @property
    def version(self) -> str:
        """The last number with dots (``11.1`` of ``release 11.1``), if there is one."""
        found = [match[0] for match in _NUMBER.finditer(self.text) if "." in match[0]]
        return found[-1] if found else ""


async def tools_of(shell: Shell) -> dict[str, Tool]:
    """The tools there, by ``cc``, ``cxx``, ``make``, ``cmake``, ``ninja``."""
    told = await shell.run(script("tools"), timeout_s=TOOLS_S)
    found = [row[1:4] for row in rows(told.stdout) if row[0] == "tool" and len(row) > 3]
    return {key: Tool(path=path, text=text) for key, path, text in found}


def toolchain_of(
    tools: dict[str, Tool], system: System, name: str, jobs: int
) -> Toolchain:
    """Pick the compiler and tools of a peer called ``name``.

    Raises:
        CannotBuild: something is missing; it says what, and how to get it.
    """
    if "cxx" not in tools or "cc" not in tools:
        raise CannotBuild(f"{name} has no C++ compiler", _compiler_hint(system))
    cmake = tools.get("cmake")
    pieces = cmake.version.split(".")[:2] if cmake else ()
    if cmake is None or tuple(int(n) for n in pieces if n.isdigit()) < CMAKE_MIN:
        had = f" (only {cmake.version})" if cmake else ""
        raise CannotBuild(
            f"{name} has no CMake of version 3.14 or newer{had}",
            "No root is needed for it: python3 -m pip install --user cmake ninja.",
        )
    maker = tools.get("ninja") or tools.get("make")
    if maker is None:
        raise CannotBuild(
            f"{name} has neither ninja nor make",
            "No root is needed for it: python3 -m pip install --user ninja.",
        )
    return Toolchain(
        cmake=cmake.path,
        generator="Ninja" if "ninja" in tools else "Unix Makefiles",
        maker=maker.path,
        cc=tools["cc"].path,
        cxx=tools["cxx"].path,
        jobs=jobs,
    )


def _compiler_hint(peer: System) -> str:
    if peer.os == "Darwin":
        return "Install one there: xcode-select --install."
    if peer.libc.startswith("musl"):
        return "Install one there: apk add build-base."
    return (
        "Install one there (apt install build-essential, or dnf install gcc gcc-c++), "
        "or provision it from a head of the same system."
    )


def jobs_of(peer: MachineInfo) -> int:
    """Compilers at a time: one for each processor, as far as they fit in memory."""
    free = [limit.available_bytes for limit in peer.memory.limits]
    fitting = min([peer.memory.available_bytes, *free]) // MEMORY_PER_JOB_BYTES
    return max(min(peer.usable, fitting), 1)


SPARE_BYTES = 8_000_000
"""Room that is left on a disk we fill."""
TRIAL_S = 180.0
"""Hashing and trying some programs; a first start of CUDA takes long."""
_DIFFERS = 65
_DOES_NOT_RUN = 66


async def deliver(
    shell: Shell, artifact: Artifact, root: str, tell: Callable[[str, float], None]
) -> None:
    """Send an artifact and put it in place; what was sent before is not sent again.

    ``root`` is our cache there; ``tell`` gets a text and a fraction (0…1).

    Raises:
        DoesNotRun: the programs do not run there.
    """
    name = artifact.folder.replace("/", "_")
    aside = f"{root}/provision/{name}.{artifact.digest}"
    described = [
        text for file in artifact.files for text in (file.mark, file.name, file.trial)
    ]
    for attempt in (1, 2):
        await check_room(shell, aside, name, artifact.size_bytes)
        meter = Meter(artifact.size_bytes, tell)
        async with _files(shell, aside, name, artifact.size_bytes) as sftp:
            for file in artifact.files:
                if not file.link:
                    await upload(sftp, file.path, f"{aside}/{file.name}", meter)
        target = f"{root}/{artifact.folder}"
        result = await shell.run(
            script("install"), aside, target, *described, timeout_s=TRIAL_S, check=False
        )
        # What lay there of an earlier try was not what we thought: send it anew.
        if result.code != _DIFFERS or attempt == 2:
            break
    raise_for(shell.name, result)


@contextlib.asynccontextmanager
async def _files(
    shell: Shell, folder: str, name: str, need_bytes: int
) -> AsyncIterator[asyncssh.SFTPClient]:
    try:
        async with shell.files() as sftp:
            yield sftp
    except asyncssh.SFTPFailure as error:
        # SFTP has no word for a full disk.
        free_bytes, _ = await _room(shell, folder, name)
        if free_bytes < SPARE_BYTES or "space" in error.reason:
            raise peer_full(shell.name, folder, need_bytes) from error
        raise transfer_error(shell.name, error) from error
    except (asyncssh.Error, OSError) as error:
        raise transfer_error(shell.name, error) from error


async def check_room(shell: Shell, folder: str, name: str, need_bytes: int) -> None:
    """Make a folder for an upload; ``name`` is that of all tries of the same thing."""
    free_bytes, taken_bytes = await _room(shell, folder, name)
    # What an earlier try has taken already is not needed again.
    if free_bytes + taken_bytes < need_bytes + SPARE_BYTES:
        raise peer_full(shell.name, folder, need_bytes + SPARE_BYTES, free_bytes)


async def _room(shell: Shell, folder: str, name: str) -> tuple[int, int]:
    result = await shell.run(script("prepare"), folder, name, check=False)
    if result.code != 0:
        raise refusal(shell.name, result)
    told = dict(row[:2] for row in rows(result.stdout))
    free, taken = (int(told.get(key) or 0) * 1024 for key in ("free", "taken"))
    return free, taken


def raise_for(peer: str, result: ShellResult) -> None:
    said = why_ended(result)
    if result.code == _DIFFERS:
        raise WrongFile(
            f"What was sent to {peer} arrived changed ({said})",
            "Is its disk or its memory in order?",
        )
    if result.code == _DOES_NOT_RUN:
        raise DoesNotRun(f"{peer}: {said}")
    if result.code != 0:
        raise refusal(peer, result)


_STAGES = {"unpack": "Unpacking", "configure": "Configuring", "compile": "Compiling"}


class Build(Value, frozen=True, kw_only=True):
    name: str
    """Of its folder there: the same name goes on where it was left."""
    title: str
    """``llama.cpp``."""
    archive: Path
    programs: tuple[str, ...]
    trials: tuple[str, ...]
    """The option to try each program with."""
    notes: tuple[Path, ...]
    """Small files that go beside the programs."""
    options: tuple[str, ...]
    need_bytes: int


async def build(
    shell: Shell,
    job: Build,
    toolchain: compiling.Toolchain,
    root: str,
    target: str,
    tell: Callable[[str, float | None, Sequence[str]], None],
) -> None:
    """Send the source, build it there, try the programs and put them in place."""
    name = f"build-{job.name}"
    folder = f"{root}/provision/{name}.0"
    await check_room(shell, folder, name, job.need_bytes)
    size = job.archive.stat().st_size
    meter = Meter(size, lambda text, done: tell(f"Sending it, {text}", done, ()))
    async with _files(shell, folder, name, job.need_bytes) as sftp:
        if not await sftp.exists(f"{folder}/source"):
            await upload(sftp, job.archive, f"{folder}/source.tar.gz", meter)
    made = f"{folder}/programs"
    await _compile(shell, job, toolchain, folder, tell)
    meter = Meter(0, lambda text, done: None)
    async with _files(shell, folder, name, job.need_bytes) as sftp:
        for note in job.notes:
            await upload(sftp, note, f"{made}/{note.name}", meter)
    described = [
        text
        for program, trial in zip(job.programs, job.trials, strict=True)
        for text in ("-", program, trial)
    ]
    result = await shell.run(
        script("install"), made, target, *described, timeout_s=TRIAL_S, check=False
    )
    raise_for(shell.name, result)
    await shell.run('rm -rf "$1"', folder, timeout_s=TRIAL_S)


async def _compile(
    shell: Shell,
    job: Build,
    toolchain: compiling.Toolchain,
    folder: str,
    tell: Callable[[str, float | None, Sequence[str]], None],
) -> None:
    def show(stage: str, fraction: float | None, _: str) -> None:
        tell(_STAGES.get(stage, stage), fraction, progress.tail)

    progress = compiling.Progress(show)
    code, said = await compiling.compile_programs(
        There(shell), folder, job.programs, toolchain, job.options, progress
    )
    if code == 0:
        return
    lines = [*progress.lines, said]
    if build_errors.no_room(lines):
        raise peer_full(shell.name, folder, job.need_bytes)
    if build_errors.was_killed(lines):
        raise CannotBuild(
            f"The compiler was killed on {shell.name}, most likely for want of memory",
            "Free some there and repeat; it goes on from here.",
            tail=lines,
        )
    first = build_errors.first_error(lines) or lines[-1]
    what = f"{job.title} could not be built on {shell.name}: {first}"
    raise CannotBuild(what, tail=lines)


RELAY_BUILD_BYTES = 60_000_000
HELPER_JOBS_MAX = 4
"""Compilers of the helper at a time, where no agent tells of the memory yet."""
LOCK_NAME = "install"
_ACCELERATED = ("-DGGML_CUDA", "-DGGML_METAL", "-DGGML_VULKAN", "-DGGML_HIP")
_TOOLS = ("-DCMAKE_CUDA_",)


class InstallMethod(StrEnum):
    PRESENT = "present"
    COPIED = "copied"
    BUILT = "built"


class Provisioned(Value, frozen=True, kw_only=True):
    engine: EngineInfo
    helper: str
    """Path of our helper there."""
    engine_method: InstallMethod
    helper_method: InstallMethod
    note: str = ""
    """The reason for the methods, if they may surprise: one sentence."""


class InstallTarget(Protocol):
    @property
    def connection(self) -> Shell: ...

    async def agent_at(self, helper: str) -> AgentSession: ...

    async def end_agent(self) -> None: ...


async def provision(
    site: InstallTarget,
    *,
    head: MachineInfo,
    engine: EngineInfo,
    helper: Path,
    paths: Paths,
    report: Callable[[PeerWork], None],
    mode: ProvisionMode = ProvisionMode.AUTO,
) -> Provisioned:
    """Bring the head's helper and engine to a peer; instant when they are there.

    Cancelling it leaves no process there and keeps what was sent or built; calling it
    again goes on from there. Installed things appear whole or not at all.

    Archives of sources are kept in the cache of ``paths``.
    """
    job = _Job(site, head, paths, report, mode)
    job.say("Looking at what is there")
    async with lock(site.connection, LOCK_NAME, "An installation") as job.greeting:
        agent = await job.install_helper(helper)
        await job.install_engine(engine, agent)
    there = engine_in(f"{job.root}/engines/{job.manifest.key}")
    protocol = job.manifest.rpc_protocol
    return Provisioned(
        engine=replace(there, version=job.version, rpc_protocol=protocol),
        helper=job.helper,
        engine_method=job.engine_method,
        helper_method=job.helper_method,
        note=job.note,
    )


def engine_in(folder: str) -> EngineInfo:
    return EngineInfo(
        directory=folder,
        source=EngineSource.PROVISIONED,
        server_path=f"{folder}/{install.SERVER}",
        worker_path=f"{folder}/{install.WORKER}",
    )


class _Job:
    """One installation: the helper by a shell, then the engine by its agent."""

    manifest: Manifest
    greeting: Greeting
    agent: AgentShell
    told: MachineInfo

    def __init__(
        self,
        site: InstallTarget,
        head: MachineInfo,
        paths: Paths,
        report: Callable[[PeerWork], None],
        mode: ProvisionMode,
    ) -> None:
        self.site = site
        self.shell = site.connection
        self.head = head
        self.paths = paths
        self.mode = mode
        self.note = ""
        self.version = ""
        self.helper = ""
        self.engine_method = self.helper_method = InstallMethod.PRESENT
        self._report = report

    @property
    def root(self) -> str:
        return self.greeting.cache

    def say(
        self, detail: str, progress: float | None = None, tail: Sequence[str] = ()
    ) -> None:
        work = PeerWork(
            title=f"Installing on {self.shell.name}",
            detail=detail,
            progress=progress,
            log_tail=tuple(tail),
        )
        self._report(work)

    # --- our helper -----------------------------------------------------------------

    async def install_helper(self, helper: Path) -> AgentSession:
        self.say("Looking for dllm-relay")
        version = await artifacts.relay_version(helper, os.environ)
        artifact = artifacts.relay_artifact(helper, version, self.paths)
        self.helper = f"{self.root}/{artifact.folder}/dllm-relay"
        made_from = next(f for f in artifact.files if f.name == "made-from")
        if self.greeting.helpers.get(self.helper) == made_from.path.read_text():
            try:
                return await self.site.agent_at(self.helper)
            except PeerUnreachable:
                raise
            except MachineError:
                self.say("dllm-relay does not run there: bringing it anew")
        # The agent that runs is the helper of before.
        await self.site.end_agent()
        refused = misfit(self.head, self.greeting)
        if not refused:
            try:
                await self._deliver(self.shell, artifact, "dllm-relay")
                self.helper_method = InstallMethod.COPIED
            except DoesNotRun as error:
                refused = error.what
        if refused:
            await self._build_helper(artifact, version, refused)
            self.helper_method = InstallMethod.BUILT
        return await self.site.agent_at(self.helper)

    async def _build_helper(
        self, artifact: Artifact, version: str, refused: str
    ) -> None:
        jobs = min(self.greeting.cores, HELPER_JOBS_MAX)
        toolchain = await self._toolchain(self.shell, self.greeting, jobs, refused)
        job = Build(
            name=f"relay-{version}",
            title="dllm-relay",
            archive=artifacts.relay_source(self.paths),
            programs=("dllm-relay",),
            trials=("--version",),
            notes=tuple(f.path for f in artifact.files if f.name != "dllm-relay"),
            options=(
                *("-DCMAKE_BUILD_TYPE=Release", "-DDLLM_WERROR=OFF"),
                # Several files compiled as one may need more memory than there is.
                *("-DDLLM_TESTS=OFF", "-DDLLM_UNITY=OFF"),
                f"-DSKBUILD_PROJECT_VERSION={version}",
            ),
            need_bytes=RELAY_BUILD_BYTES,
        )
        await self._build(job, toolchain, artifact.folder)

    # --- the engine -----------------------------------------------------------------

    async def install_engine(self, engine: EngineInfo, agent: AgentSession) -> None:
        self.agent = AgentShell(agent, self.shell)
        self.told = await agent.machine()
        self.manifest = await artifacts.manifest_of(engine)
        if self.manifest.package == releases.PACKAGE:
            refused = await self._install_release(engine, agent)
            if refused is None:
                return
            if self.mode is ProvisionMode.COPY:
                raise self._not_copied(refused)
            await self._build_instead(agent, refused)
            return
        folder = f"{self.root}/engines/{self.manifest.key}"
        self.version = await self._version_there(agent, folder)
        if self.version and self.mode is not ProvisionMode.BUILD:
            return
        tools = await tools_of(self.agent)
        wanted = await self._choose(tools)
        if self.version and await self._made_with(agent, folder) == self._flags(wanted):
            return
        refused = self._why_not_copied(wanted, tools)
        if not refused:
            self.say("Reading the head's engine")
            artifact = await self._artifact(engine)
            try:
                await self._deliver(self.agent, artifact, "llama.cpp")
                self.engine_method = InstallMethod.COPIED
                return
            except DoesNotRun as error:
                if self.mode is ProvisionMode.COPY:
                    raise
                refused = error.what
        elif self.mode is ProvisionMode.COPY:
            raise self._not_copied(refused)
        await self._build_engine(wanted, refused)

    def _not_copied(self, refused: str) -> DoesNotRun:
        return DoesNotRun(
            f"The head's engine cannot run on {self.shell.name}: {refused}",
            "Let it be built there: --mode build.",
        )

    # --- a release of llama.cpp, and a build where it does not run --------------------

    async def _install_release(
        self, engine: EngineInfo, agent: AgentSession
    ) -> str | None:
        """Bring the head's release, in the archive for this peer.

        Returns why not; None if it is there.
        """
        if self.mode is ProvisionMode.BUILD:
            return "asked to be built there"
        if self.told.os == "Linux" and _family(self.told.libc) != "glibc":
            has = self.told.libc or "another C library"
            return f"llama.cpp's releases need glibc, it has {has}"
        self.say("Looking for GPUs")
        sight = await look(There(self.agent), SEEN)
        system = self.told.os, self.told.arch
        try:
            release = releases.find_release(self.manifest.version)
            archives = releases.archives_for(release, *system, sight, "auto")
            for archive in archives:
                there = await self._bring(engine, agent, release, archive)
                on_gpu = archive.accelerator is not Accelerator.NONE
                if not on_gpu or await list_devices(agent, there):
                    break
                self.note = f"{archive.name} finds no GPU there that it can use"
        except DoesNotRun as error:
            return error.what
        except MachineError:
            raise
        except DllmError as error:
            return error.what
        return None

    async def _bring(
        self,
        engine: EngineInfo,
        agent: AgentSession,
        release: Release,
        archive: Archive,
    ) -> EngineInfo:
        """Send an archive's programs, unless they are there."""
        made = release_manifest(release, archive, self.manifest.rpc_protocol)
        self.manifest = replace(made, built_at=0.0)
        there = engine_in(f"{self.root}/engines/{archive.key}")
        self.version = await self._version_there(agent, there.directory)
        if self.version:
            self.engine_method = InstallMethod.PRESENT
            return there
        near = await self._release_here(engine, release, archive)
        self.say("Reading llama.cpp's release")
        await self._deliver(self.agent, await self._artifact(near), "llama.cpp")
        self.engine_method = InstallMethod.COPIED
        return there

    async def _release_here(
        self, engine: EngineInfo, release: Release, archive: Archive
    ) -> EngineInfo:
        """The programs for a peer on this machine, where they may not run."""
        if Path(engine.directory).name == archive.key:
            return engine

        def tell(progress: EngineProgress) -> None:
            text = progress.text
            if progress.size_bytes:
                done = format_bytes(progress.done_bytes)
                size = format_bytes(progress.size_bytes)
                text = f"Downloading {text}, {done} of {size}"
            self.say(text, progress.fraction)

        folder = await release_for_others(release, archive, self.paths, tell)
        return engine_in(str(folder))

    async def _build_instead(self, agent: AgentSession, refused: str) -> None:
        """Build the source that is pinned for the protocol of the head's release."""
        source = artifacts.source_for(self.manifest)
        key = f"{source.key}-{source.version}-built"
        self.manifest = replace(self.manifest, key=key, flags=())
        self.note = refused
        there = f"{self.root}/engines/{key}"
        self.version = await self._version_there(agent, there)
        if self.version and self.mode is not ProvisionMode.BUILD:
            return
        wanted = await self._choose(await tools_of(self.agent))
        await self._build_engine(wanted, refused)

    # --- what is there --------------------------------------------------------------

    async def _version_there(self, agent: AgentSession, folder: str) -> str:
        try:
            told = await agent.run((f"{folder}/{install.SERVER}", "--version"))
        except PeerUnreachable:
            raise
        except MachineError:
            return ""
        return parse_version(told.text) if told.code == 0 else ""

    async def _made_with(self, agent: AgentSession, folder: str) -> tuple[str, ...]:
        try:
            text = await agent.read(f"{folder}/{install.MANIFEST}")
            return msgspec.json.decode(text, type=install.Manifest).flags
        except PeerUnreachable:
            raise
        except (MachineError, *NOT_JSON):
            return ()

    async def _choose(self, tools: dict[str, Tool]) -> AcceleratorChoice:
        if self.mode is ProvisionMode.COPY:
            return AcceleratorChoice()
        self.say("Looking for GPUs and what compiles for them")
        cxx = tools["cxx"].path if "cxx" in tools else ""
        wanted = await choose("auto", There(self.agent), cxx=cxx)
        self.note = wanted.note
        return wanted

    def _why_not_copied(self, wanted: AcceleratorChoice, tools: dict[str, Tool]) -> str:
        """Why the head's engine is not for this peer; empty when it is."""
        if self.mode is ProvisionMode.BUILD:
            return "asked to be built there"
        if reason := misfit(self.head, self.told):
            return reason
        forced = self.mode is ProvisionMode.COPY
        native = _NATIVE in self.manifest.flags and not forced
        reason = lacking(self.head.instructions, self.told.instructions)
        if native and reason:
            return reason
        has_other = wanted.accelerator.value != self.manifest.accelerator
        if forced or wanted.accelerator is Accelerator.NONE or not has_other:
            return ""
        try:
            toolchain_of(tools, self.told, self.shell.name, 1)
        except CannotBuild as error:
            self.note = f"The head's engine was copied, without {wanted.accelerator}: "
            self.note += error.what
            return ""
        return f"it has {wanted.accelerator}, the head's engine does not"

    def _flags(self, wanted: AcceleratorChoice) -> tuple[str, ...]:
        flags = self.manifest.flags or local_build.CMAKE_FLAGS
        base = tuple(f for f in flags if not f.startswith((*_ACCELERATED, *_TOOLS)))
        return (*base, *wanted.cmake_flags)

    async def _build_engine(self, wanted: AcceleratorChoice, refused: str) -> None:
        self.note = f"{refused}. {self.note}" if self.note else refused
        jobs = jobs_of(self.told)
        toolchain = await self._toolchain(self.agent, self.told, jobs, refused)
        source = artifacts.source_for(self.manifest)
        archive = await artifacts.engine_source(source, self.paths, self.say)
        none = wanted.accelerator is Accelerator.NONE
        host_cpu = f"{self.told.os} {self.told.arch} {self.told.memory.cpu}".strip()
        built = replace(
            self.manifest,
            package=source.package,
            version=source.version,
            sha256=source.sha256,
            accelerator=wanted.accelerator.value,
            backends=("cpu", *(() if none else (wanted.accelerator.value,)), "rpc"),
            flags=self._flags(wanted),
            host_cpu=host_cpu,
        )
        folder = artifacts.notes_folder(
            self.paths, f"{self.manifest.key}-{self.shell.name}"
        )
        texts = {install.MANIFEST: artifacts.manifest_text(built), MARKER: b"built\n"}
        job = Build(
            name=self.manifest.key,
            title="llama.cpp",
            archive=archive,
            programs=install.BINARIES,
            trials=("--version", "--help"),
            notes=tuple(artifacts.write_note(folder, n, t) for n, t in texts.items()),
            options=(*self._flags(wanted), *install.options_of(source)),
            need_bytes=(local_build.NEED_BYTES if none else local_build.NEED_BYTES_GPU),
        )
        await self._build(job, toolchain, f"engines/{self.manifest.key}")
        self.engine_method = InstallMethod.BUILT

    async def _artifact(self, engine: EngineInfo) -> Artifact:
        return await asyncio.to_thread(
            artifacts.engine_artifact, engine, self.manifest, self.paths
        )

    # --- both -----------------------------------------------------------------------

    async def _deliver(self, shell: Shell, artifact: Artifact, title: str) -> None:
        await deliver(
            shell,
            artifact,
            self.root,
            lambda text, done: self.say(f"Sending {title}, {text}", done),
        )

    async def _toolchain(
        self, shell: Shell, system: System, jobs: int, refused: str
    ) -> Toolchain:
        try:
            return toolchain_of(await tools_of(shell), system, shell.name, jobs)
        except CannotBuild as error:
            if self.mode is ProvisionMode.BUILD:
                raise
            what = f"The head's programs cannot be used ({refused}) and {error.what}"
            raise CannotBuild(what, error.hint) from error

    async def _build(self, job: Build, toolchain: Toolchain, target: str) -> None:
        await build(
            self.shell,
            job,
            toolchain,
            self.root,
            f"{self.root}/{target}",
            lambda text, done, tail: self.say(f"{job.title}: {text}", done, tail),
        )


_CLEAN_S = 120.0
_BUSY = 75


async def clean(shell: Shell, agent: AgentSession | None = None) -> int:
    """Remove our engines, relays, builds, half uploads and dead process directories.

    ``agent`` tells of the processes there; None where no helper is installed.

    Engines that the peer's user built or installed stay: only what carries our mark
    goes. Returns the bytes that are free again.
    """
    if agent is not None:
        records = await agent.records()
        if living := [f"{r.name} (pid {r.pid})" for r in records if r.alive]:
            raise _busy(agent.name, living)
        for record in records:
            await agent.remove(record.name)
    result = await shell.run(script("clean"), timeout_s=_CLEAN_S, check=False)
    told = rows(result.stdout)
    if result.code == _BUSY:
        raise _busy(shell.name, [row[1] for row in told if row[0] == "runs"])
    if result.code != 0:
        raise refusal(shell.name, result)
    return sum(int(row[1]) for row in told if row[0] == "freed")


def _busy(name: str, running: list[str]) -> PeerBusy:
    return PeerBusy(
        f"Still running on {name}: {', '.join(running)}", "Stop it first, then repeat."
    )
