"""Installing our engine and relay on a peer: copied if they fit, else built."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh
from msgspec.structs import replace

from backends.engine import build as local_build
from backends.engine import build_errors, compiling, install
from backends.engine.accelerators import Accelerator, Choice, choose
from backends.engine.ask import parse_version
from backends.engine.compiling import CMAKE_MIN, MEMORY_PER_JOB_BYTES, Toolchain
from backends.machines import parcels
from backends.machines.probing import Probed, survey
from backends.machines.shell import (
    CannotBuild,
    DoesNotRun,
    PeerBusy,
    ProvisionError,
    There,
    WrongFile,
    last_line,
    lock,
    peer_full,
    refusal,
    rows,
    script,
    transfer_error,
)
from backends.machines.ssh.files import Meter, upload
from backends.state import EngineInfo, EngineSource, PeerWork, ProvisionMode, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backends.engine.install import Manifest
    from backends.errors import HostError
    from backends.machines.host import AgentHost
    from backends.machines.parcels import Parcel
    from backends.machines.shell import Shell, ShellResult
    from backends.machines.ssh.files import Files
    from backends.paths import Paths


_ARCHES = {"arm64": "aarch64", "amd64": "x86_64"}
_NATIVE = "-DGGML_NATIVE=ON"
# Names of instruction sets a compiler may use, as /proc/cpuinfo and sysctl have them.
# The other flags (mitigations, virtualisation…) say nothing about instructions.
_INSTRUCTIONS = re.compile(
    r"(s?sse\w*|pni|avx\w*|fma4?|f16c|bmi[12]|abm|lzcnt|popcnt|movbe|adx|aes|vaes|"
    r"v?pclmulqdq|sha_ni|sha512|gfni|rdrand|rdseed|xop|tbm|amx_\w+|"
    r"asimd\w*|fphp|i8mm|bf16|sve\w*|sme\w*|dotprod|feat_\w+)"
)


def misfit(head: Probed, peer: Probed, flags: tuple[str, ...]) -> str:
    """Why programs built on the head cannot run on a peer; empty when they may.

    Args:
        head: the machine they were built on.
        peer: the other.
        flags: of CMake they were built with; empty for those without ``-march``.
    """
    if head.os != peer.os:
        return f"they are for {head.os}, it runs {peer.os or 'something else'}"
    if _arch(head) != _arch(peer):
        return f"they are for {head.arch}, it is {peer.arch}"
    if _family(head.libc) != _family(peer.libc):
        return f"they need {head.libc}, it has {peer.libc or 'another C library'}"
    missing = _missing_instructions(head, peer) if _NATIVE in flags else []
    if missing:
        return f"its CPU lacks {', '.join(missing[:4])}"
    return ""


def _arch(machine: Probed) -> str:
    return _ARCHES.get(machine.arch, machine.arch)


def _family(libc: str) -> str:
    return libc.partition(" ")[0]


def _missing_instructions(head: Probed, peer: Probed) -> list[str]:
    missing = {flag.lower() for flag in head.cpu_flags} - {
        flag.lower() for flag in peer.cpu_flags
    }
    return sorted(flag for flag in missing if _INSTRUCTIONS.fullmatch(flag))


def toolchain_of(peer: Probed, name: str) -> Toolchain:
    """Pick the compiler and tools of a peer called ``name``.

    Raises:
        CannotBuild: something is missing; it says what, and how to get it.
    """
    tools = peer.tools
    if "cxx" not in tools or "cc" not in tools:
        raise CannotBuild(f"{name} has no C++ compiler", _compiler_hint(peer))
    cmake = tools.get("cmake")
    if cmake is None or _version(cmake.version) < CMAKE_MIN:
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
    fitting = peer.memory_free_bytes // MEMORY_PER_JOB_BYTES
    return Toolchain(
        cmake=cmake.path,
        generator="Ninja" if "ninja" in tools else "Unix Makefiles",
        maker=maker.path,
        cc=tools["cc"].path,
        cxx=tools["cxx"].path,
        jobs=max(min(peer.cores or 1, fitting), 1),
    )


def _compiler_hint(peer: Probed) -> str:
    if peer.os == "Darwin":
        return "Install one there: xcode-select --install."
    if peer.libc.startswith("musl"):
        return "Install one there: apk add build-base."
    return (
        "Install one there (apt install build-essential, or dnf install gcc gcc-c++), "
        "or provision it from a head of the same system."
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(piece) for piece in text.split(".")[:2] if piece.isdigit())


SPARE_BYTES = 8_000_000
"""Room that is left on a disk we fill."""
TRIAL_S = 180.0
"""Hashing and trying some programs; a first start of CUDA takes long."""
_DIFFERS = 65
_DOES_NOT_RUN = 66


async def deliver(
    shell: Shell,
    files: Files,
    parcel: Parcel,
    root: str,
    tell: Callable[[str, float], None],
) -> None:
    """Send a parcel and put it in place; what was sent before is not sent again.

    Args:
        shell: the peer.
        files: opens SFTP there.
        parcel: what to send.
        root: our cache there.
        tell: gets a text and a fraction (0…1) as it goes on.

    Raises:
        DoesNotRun: the programs do not run there.
    """
    name = parcel.folder.replace("/", "_")
    aside = f"{root}/provision/{name}.{parcel.digest}"
    for attempt in (1, 2):
        await _upload(shell, files, parcel, aside, name, tell)
        result = await _put_in_place(shell, parcel, aside, f"{root}/{parcel.folder}")
        # What lay there of an earlier try was not what we thought: send it anew.
        if result.code != _DIFFERS or attempt == 2:
            break
    raise_for(shell.name, result)


async def _upload(
    shell: Shell,
    files: Files,
    parcel: Parcel,
    aside: str,
    name: str,
    tell: Callable[[str, float], None],
) -> None:
    size = parcel.size_bytes
    await check_room(shell, aside, name, size)
    meter = Meter(size, tell)
    try:
        async with files() as sftp:
            for file in parcel.files:
                await upload(sftp, file.path, f"{aside}/{file.name}", meter)
    except asyncssh.SFTPFailure as error:
        raise await failure(shell, aside, name, size, error) from error
    except (asyncssh.Error, OSError) as error:
        raise transfer_error(shell.name, error) from error


async def check_room(shell: Shell, folder: str, name: str, need_bytes: int) -> None:
    """Make a folder for an upload; ``name`` is that of all tries of the same thing."""
    free_bytes, taken_bytes = await _room(shell, folder, name)
    # What an earlier try has taken already is not needed again.
    if free_bytes + taken_bytes < need_bytes + SPARE_BYTES:
        raise peer_full(shell.name, folder, need_bytes + SPARE_BYTES, free_bytes)


async def _room(shell: Shell, folder: str, name: str) -> tuple[int, int]:
    """Bytes free on the disk of a folder, and in the folder itself."""
    result = await shell.run(script("prepare"), folder, name, check=False)
    if result.code != 0:
        raise refusal(shell.name, result)
    told = dict(row[:2] for row in rows(result.stdout))
    free, taken = (int(told.get(key) or 0) * 1024 for key in ("free", "taken"))
    return free, taken


async def failure(
    shell: Shell, folder: str, name: str, need_bytes: int, error: asyncssh.SFTPFailure
) -> HostError:
    """Why a write failed: SFTP has no word for a full disk."""
    free_bytes, _ = await _room(shell, folder, name)
    if free_bytes < SPARE_BYTES or "space" in error.reason:
        return peer_full(shell.name, folder, need_bytes)
    return transfer_error(shell.name, error)


async def _put_in_place(
    shell: Shell, parcel: Parcel, aside: str, target: str
) -> ShellResult:
    described = [
        text for file in parcel.files for text in (file.sha256, file.name, file.trial)
    ]
    return await shell.run(
        script("install"), aside, target, *described, timeout_s=TRIAL_S, check=False
    )


def raise_for(peer: str, result: ShellResult) -> None:
    """Turn the status of ``install.sh`` into what it means."""
    said = last_line(result)
    if result.code == _DIFFERS:
        raise WrongFile(
            f"What was sent to {peer} arrived changed ({said})",
            "Is its disk or its memory in order?",
        )
    if result.code == _DOES_NOT_RUN:
        raise DoesNotRun(f"{peer}: {said}")
    if result.code != 0:
        raise refusal(peer, result)


_STAGES = {
    "unpack": "Unpacking",
    "configure": "Configuring",
    "compile": "Compiling",
}


class Build(Value, frozen=True, kw_only=True):
    """Something to build on a peer."""

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
    files: Files,
    job: Build,
    toolchain: compiling.Toolchain,
    root: str,
    target: str,
    tell: Callable[[str, float | None, Sequence[str]], None],
) -> None:
    """Send the source, build it there, try the programs and put them in place.

    Cancelling it ends everything it started there and keeps what is done.

    Raises:
        CannotBuild: CMake or the compiler failed; it carries their last lines.
        DoesNotRun: what was built does not run.
    """
    folder = f"{root}/provision/build-{job.name}.0"
    await _send(shell, files, job, folder, tell)
    made = f"{folder}/programs"
    await _compile(shell, job, toolchain, folder, tell)
    await _send_notes(shell, files, job, made)
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


async def _send(
    shell: Shell,
    files: Files,
    job: Build,
    folder: str,
    tell: Callable[[str, float | None, Sequence[str]], None],
) -> None:
    await check_room(shell, folder, f"build-{job.name}", job.need_bytes)
    size = job.archive.stat().st_size
    target = f"{folder}/source.tar.gz"
    meter = Meter(size, lambda text, done: tell(f"Sending it, {text}", done, ()))
    try:
        async with files() as sftp:
            if not await sftp.exists(f"{folder}/source"):
                await upload(sftp, job.archive, target, meter)
    except asyncssh.SFTPFailure as error:
        name = f"build-{job.name}"
        raise await failure(shell, folder, name, job.need_bytes, error) from error
    except (asyncssh.Error, OSError) as error:
        raise transfer_error(shell.name, error) from error


async def _send_notes(shell: Shell, files: Files, job: Build, folder: str) -> None:
    meter = Meter(0, lambda text, done: None)
    try:
        async with files() as sftp:
            for note in job.notes:
                await upload(sftp, note, f"{folder}/{note.name}", meter)
    except (asyncssh.Error, OSError) as error:
        raise transfer_error(shell.name, error) from error


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
    if code != 0:
        raise _why(shell.name, job, [*progress.lines, said], folder)


def _why(peer: str, job: Build, lines: list[str], folder: str) -> ProvisionError:
    if build_errors.no_room(lines):
        return peer_full(peer, folder, job.need_bytes)
    if build_errors.was_killed(lines):
        return CannotBuild(
            f"The compiler was killed on {peer}, most likely for want of memory",
            "Free some there and repeat; it goes on from here.",
            tail=lines,
        )
    first = build_errors.first_error(lines) or lines[-1]
    return CannotBuild(
        f"{job.title} could not be built on {peer}: {first}",
        tail=lines,
    )


RELAY_BUILD_BYTES = 60_000_000
LOCK_NAME = "install"
_ACCELERATED = ("-DGGML_CUDA", "-DGGML_METAL", "-DGGML_VULKAN", "-DGGML_HIP")
_TOOLS = ("-DCMAKE_CUDA_",)


class InstallMethod(StrEnum):
    """The way something came to be there."""

    PRESENT = "present"
    COPIED = "copied"
    BUILT = "built"


class Provisioned(Value, frozen=True, kw_only=True):
    """The result of an installation."""

    engine: EngineInfo
    relay_path: str
    relay_version: str
    engine_method: InstallMethod
    relay_method: InstallMethod
    note: str = ""
    """The reason for the methods, if they may surprise: one sentence."""


async def provision(
    shell: Shell,
    files: Files,
    *,
    engine: EngineInfo,
    relay: Path,
    paths: Paths,
    report: Callable[[PeerWork], None],
    mode: ProvisionMode = ProvisionMode.AUTO,
) -> Provisioned:
    """Bring the head's engine and relay to a peer; instant when they are there.

    Cancelling it leaves no process there and keeps what was sent or built; calling it
    again goes on from there. Installed things appear whole or not at all.

    Args:
        shell: the peer.
        files: opens SFTP there.
        engine: the head's.
        relay: the head's ``dllm-relay``.
        paths: the head's directories; archives of sources are kept in the cache.
        report: gets the state of the work as it changes.
        mode: copy, build, or whatever fits.

    Raises:
        DoesNotRun: the head's programs do not run there (mode ``copy``).
        CannotBuild: a compiler or CMake is missing, or it failed.
    """
    job = _Job(shell, files, paths, report, mode)
    job.say("Looking at what is there")
    async with lock(shell, LOCK_NAME, "An installation"):
        await job.look(engine, relay)
        way = await job.install_engine(engine)
        relay_method = await job.install_relay(relay)
    folder = f"{job.root}/engines/{job.manifest.key}"
    return Provisioned(
        engine=EngineInfo(
            directory=folder,
            source=EngineSource.PROVISIONED,
            server_path=f"{folder}/{install.SERVER}",
            worker_path=f"{folder}/{install.WORKER}",
            version=job.version,
            rpc_protocol=job.manifest.rpc_protocol,
        ),
        relay_path=f"{job.root}/relay/{job.relay_version}/dllm-relay",
        relay_version=job.relay_version,
        engine_method=way,
        relay_method=relay_method,
        note=job.note,
    )


class _Job:
    """One installation: where, what, and whom to tell."""

    manifest: Manifest
    relay_version: str

    def __init__(
        self,
        shell: Shell,
        files: Files,
        paths: Paths,
        report: Callable[[PeerWork], None],
        mode: ProvisionMode,
    ) -> None:
        self.shell = shell
        self.files = files
        self.paths = paths
        self.mode = mode
        self.note = ""
        self.version = ""
        self.head = Probed()
        self.peer = Probed()
        self._report = report

    @property
    def root(self) -> str:
        return self.peer.cache_dir

    @property
    def _title(self) -> str:
        return f"Installing on {self.shell.name}"

    def say(
        self, detail: str, progress: float | None = None, tail: Sequence[str] = ()
    ) -> None:
        self._report(
            PeerWork(
                title=self._title,
                detail=detail,
                progress=progress,
                log_tail=tuple(tail),
            )
        )

    async def look(self, engine: EngineInfo, relay: Path) -> None:
        self.head = await parcels.this_machine(os.environ)
        self.manifest = await parcels.manifest_of(engine)
        self.relay_version = await parcels.relay_version(relay, os.environ)
        self.peer = await survey(self.shell, "system", "tools", "engines")

    async def install_engine(self, engine: EngineInfo) -> InstallMethod:
        folder = f"engines/{self.manifest.key}"
        told = await self._told(folder, install.SERVER)
        self.version = parse_version("\n".join(told.get("said", [])))
        if self.version and self.mode is not ProvisionMode.BUILD:
            return InstallMethod.PRESENT
        wanted = await self._choose()
        made_with = self.peer.engine_flags.get(f"{self.root}/{folder}")
        if self.version and made_with == self._flags(wanted):
            return InstallMethod.PRESENT
        refused = self._why_not_copied(wanted)
        if not refused:
            try:
                await self._copy_engine(engine)
                return InstallMethod.COPIED
            except DoesNotRun as error:
                if self.mode is ProvisionMode.COPY:
                    raise
                refused = error.what
        elif self.mode is ProvisionMode.COPY:
            raise DoesNotRun(
                f"The head's engine cannot run on {self.shell.name}: {refused}",
                "Let it be built there: --mode build.",
            )
        self.note = f"{refused}. {self.note}" if self.note else refused
        await self._build_engine(wanted, refused)
        return InstallMethod.BUILT

    async def _told(self, folder: str, program: str) -> dict[str, list[str]]:
        result = await self.shell.run(script("present"), folder, program, check=False)
        told: dict[str, list[str]] = {}
        for key, line in (row[:2] for row in rows(result.stdout)):
            told.setdefault(key, []).append(line)
        return told

    async def _choose(self) -> Choice:
        """The accelerator to build for there, proved; a copy asks for none."""
        if self.mode is ProvisionMode.COPY:
            return Choice()
        self.say("Looking for GPUs and what compiles for them")
        cxx = self.peer.tools["cxx"].path if "cxx" in self.peer.tools else ""
        wanted = await choose("auto", There(self.shell), cxx=cxx)
        self.note = wanted.note
        return wanted

    def _why_not_copied(self, wanted: Choice) -> str:
        """Why the head's engine is not for this peer; empty when it is."""
        if self.mode is ProvisionMode.BUILD:
            return "asked to be built there"
        forced = self.mode is ProvisionMode.COPY
        flags = () if forced else self.manifest.flags
        if reason := misfit(self.head, self.peer, flags):
            return reason
        has_other = wanted.accelerator.value != self.manifest.accelerator
        if forced or wanted.accelerator is Accelerator.NONE or not has_other:
            return ""
        try:
            toolchain_of(self.peer, self.shell.name)
        except CannotBuild as error:
            self.note = f"The head's engine was copied, without {wanted.accelerator}: "
            self.note += error.what
            return ""
        return f"it has {wanted.accelerator}, the head's engine does not"

    async def _copy_engine(self, engine: EngineInfo) -> None:
        self.say("Reading the head's engine")
        parcel = await parcels.engine_parcel(engine, self.paths)
        await deliver(
            self.shell,
            self.files,
            parcel,
            self.root,
            lambda text, done: self.say(f"Sending llama.cpp, {text}", done),
        )

    def _flags(self, wanted: Choice) -> tuple[str, ...]:
        flags = self.manifest.flags or local_build.CMAKE_FLAGS
        base = tuple(f for f in flags if not f.startswith((*_ACCELERATED, *_TOOLS)))
        return (*base, *wanted.cmake_flags)

    async def _build_engine(self, wanted: Choice, refused: str) -> None:
        toolchain = self._toolchain(refused)
        source = parcels.source_for(self.manifest)
        archive = await parcels.engine_source(source, self.paths, self.say)
        none = wanted.accelerator is Accelerator.NONE
        built = replace(
            self.manifest,
            package=source.package,
            version=source.version,
            sha256=source.sha256,
            accelerator=wanted.accelerator.value,
            backends=("cpu", *(() if none else (wanted.accelerator.value,)), "rpc"),
            flags=self._flags(wanted),
            host_cpu=f"{self.peer.os} {self.peer.arch} {self.peer.cpu_name}".strip(),
        )
        folder = parcels.notes_folder(
            self.paths, f"{self.manifest.key}-{self.shell.name}"
        )
        texts = {
            install.MANIFEST: parcels.manifest_text(built),
            parcels.MARKER: b"built\n",
        }
        job = Build(
            name=self.manifest.key,
            title="llama.cpp",
            archive=archive,
            programs=install.BINARIES,
            trials=("--version", "--help"),
            notes=tuple(parcels.write_note(folder, n, t) for n, t in texts.items()),
            options=(*self._flags(wanted), *install.options_of(source)),
            need_bytes=(local_build.NEED_BYTES if none else local_build.NEED_BYTES_GPU),
        )
        await self._build(job, toolchain, f"engines/{self.manifest.key}")

    def _toolchain(self, refused: str) -> Toolchain:
        try:
            return toolchain_of(self.peer, self.shell.name)
        except CannotBuild as error:
            if self.mode is ProvisionMode.BUILD:
                raise
            what = f"The head's engine cannot be used ({refused}) and {error.what}"
            raise CannotBuild(what, error.hint) from error

    async def _build(self, job: Build, toolchain: Toolchain, target: str) -> None:
        await build(
            self.shell,
            self.files,
            job,
            toolchain,
            self.root,
            f"{self.root}/{target}",
            lambda text, done, tail: self.say(f"{job.title}: {text}", done, tail),
        )

    async def install_relay(self, relay: Path) -> InstallMethod:
        self.say("Looking for dllm-relay")
        parcel = parcels.relay_parcel(relay, self.relay_version, self.paths)
        if await self._has_relay(parcel):
            return InstallMethod.PRESENT
        refused = misfit(self.head, self.peer, ())
        if not refused:
            try:
                await deliver(
                    self.shell,
                    self.files,
                    parcel,
                    self.root,
                    lambda text, done: self.say(f"Sending dllm-relay, {text}", done),
                )
                return InstallMethod.COPIED
            except DoesNotRun as error:
                refused = error.what
        await self._build_relay(parcel, self._toolchain(refused))
        return InstallMethod.BUILT

    async def _has_relay(self, parcel: parcels.Parcel) -> bool:
        made_from = next(f for f in parcel.files if f.name == "made-from")
        told = await self._told(parcel.folder, "dllm-relay")
        runs = told.get("said") == [f"dllm-relay {self.relay_version}"]
        return runs and told.get("made-from") == [made_from.path.read_text()]

    async def _build_relay(self, parcel: parcels.Parcel, toolchain: Toolchain) -> None:
        job = Build(
            name=f"relay-{self.relay_version}",
            title="dllm-relay",
            archive=parcels.relay_source(self.paths),
            programs=("dllm-relay",),
            trials=("--version",),
            notes=tuple(f.path for f in parcel.files if f.name != "dllm-relay"),
            options=(
                *(
                    "-DCMAKE_BUILD_TYPE=Release",
                    "-DDLLM_WERROR=OFF",
                    "-DDLLM_TESTS=OFF",
                ),
                f"-DSKBUILD_PROJECT_VERSION={self.relay_version}",
            ),
            need_bytes=RELAY_BUILD_BYTES,
        )
        await self._build(job, toolchain, parcel.folder)


_CLEAN_S = 120.0
_BUSY = 75


async def clean(shell: Shell, host: AgentHost | None = None) -> int:
    """Remove our engines, relays, builds, half uploads and dead process directories.

    ``host`` tells of the processes there; None where no helper is installed.

    Engines that the peer's user built or installed stay: only what carries our mark
    goes.

    Returns:
        The bytes that are free again.
    """
    if host is not None:
        await _forget_ended(host)
    result = await shell.run(script("clean"), timeout_s=_CLEAN_S, check=False)
    told = rows(result.stdout)
    if result.code == _BUSY:
        raise _busy(shell.name, [row[1] for row in told if row[0] == "runs"])
    if result.code != 0:
        raise refusal(shell.name, result)
    return sum(int(row[1]) for row in told if row[0] == "freed")


async def _forget_ended(host: AgentHost) -> None:
    """Remove the directories of our processes there, of which none may live."""
    records = await host.records()
    living = [f"{r.name} (pid {r.pid})" for r in records if r.alive]
    if living:
        raise _busy(host.name, living)
    for record in records:
        await host.remove(record.name)


def _busy(name: str, running: list[str]) -> PeerBusy:
    return PeerBusy(
        f"Still running on {name}: {', '.join(running)}", "Stop it first, then repeat."
    )
