"""Installing our engine and relay on a peer: copied where they fit, else built."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.engine import build as local_build
from backends.engine import install
from backends.engine.accelerators import Accelerator, Choice, choose
from backends.engine.ask import parse_version
from backends.machines.probe import survey
from backends.machines.probe_text import Probed
from backends.provision import fit, head, sources
from backends.provision.building import Build, build
from backends.provision.delivery import deliver
from backends.provision.refusals import CannotBuild, DoesNotRun
from backends.provision.remote import There, lock, rows, script
from backends.state import EngineInfo, EngineSource, PeerWork, ProvisionMode, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from backends.engine.compiling import Toolchain
    from backends.engine.install import Manifest
    from backends.machines.shell import Shell
    from backends.paths import Paths
    from backends.provision.upload import Files

RELAY_BUILD_BYTES = 60_000_000
LOCK_NAME = "install"
_ACCELERATED = ("-DGGML_CUDA", "-DGGML_METAL", "-DGGML_VULKAN", "-DGGML_HIP")
_TOOLS = ("-DCMAKE_CUDA_",)


class Way(StrEnum):
    """How something came to be there."""

    PRESENT = "present"
    COPIED = "copied"
    BUILT = "built"


class Provisioned(Value, frozen=True, kw_only=True):
    """What is on the peer now."""

    engine: EngineInfo
    relay_path: str
    relay_version: str
    engine_way: Way
    relay_way: Way
    note: str = ""
    """Where it may surprise, why it came as it did: one sentence."""


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
        PeerBusy: another console installs there.
        PeerFull: no room.
        DoesNotRun: the head's programs do not run there (mode ``copy``).
        CannotBuild: a compiler or CMake is missing, or it failed.
        EngineError: the head's engine does not run, or its source is not to be had.
        PeerUnreachable: the connection broke.
    """
    job = _Job(shell, files, paths, report, mode)
    job.say("Looking at what is there")
    async with lock(shell, LOCK_NAME, "An installation"):
        await job.look(engine, relay)
        way = await job.install_engine(engine)
        relay_way = await job.install_relay(relay)
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
        engine_way=way,
        relay_way=relay_way,
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
        """Learn what the head has and what the peer is."""
        self.head = await head.this_machine(os.environ)
        self.manifest = await head.manifest_of(engine)
        self.relay_version = await head.relay_version(relay, os.environ)
        self.peer = await survey(self.shell, "system", "tools", "engines")

    async def install_engine(self, engine: EngineInfo) -> Way:
        folder = f"engines/{self.manifest.key}"
        told = await self._told(folder, install.SERVER)
        self.version = parse_version("\n".join(told.get("said", [])))
        if self.version and self.mode is not ProvisionMode.BUILD:
            return Way.PRESENT
        wanted = await self._choose()
        made_with = self.peer.engine_flags.get(f"{self.root}/{folder}")
        if self.version and made_with == self._flags(wanted):
            return Way.PRESENT
        refused = self._why_not_copied(wanted)
        if not refused:
            try:
                await self._copy_engine(engine)
                return Way.COPIED
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
        return Way.BUILT

    async def _told(self, folder: str, program: str) -> dict[str, list[str]]:
        """What a program below our cache there tells; nothing if it does not run."""
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
        if reason := fit.misfit(self.head, self.peer, flags):
            return reason
        has_other = wanted.accelerator.value != self.manifest.accelerator
        if forced or wanted.accelerator is Accelerator.NONE or not has_other:
            return ""
        try:
            fit.toolchain_of(self.peer, self.shell.name)
        except CannotBuild as error:
            self.note = f"The head's engine was copied, without {wanted.accelerator}: "
            self.note += error.what
            return ""
        return f"it has {wanted.accelerator}, the head's engine does not"

    async def _copy_engine(self, engine: EngineInfo) -> None:
        self.say("Reading the head's engine")
        parcel = await head.engine_parcel(engine, self.paths)
        await deliver(
            self.shell,
            self.files,
            parcel,
            self.root,
            lambda text, done: self.say(f"Sending llama.cpp, {text}", done),
        )

    def _flags(self, wanted: Choice) -> tuple[str, ...]:
        """The head's options of CMake, with the peer's accelerator."""
        flags = self.manifest.flags or local_build.CMAKE_FLAGS
        base = tuple(f for f in flags if not f.startswith((*_ACCELERATED, *_TOOLS)))
        return (*base, *wanted.cmake_flags)

    async def _build_engine(self, wanted: Choice, refused: str) -> None:
        toolchain = self._toolchain(refused)
        source = sources.source_for(self.manifest)
        archive = await sources.engine_source(source, self.paths, self.say)
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
        folder = head.notes_folder(self.paths, f"{self.manifest.key}-{self.shell.name}")
        texts = {install.MANIFEST: head.manifest_text(built), head.MARKER: b"built\n"}
        job = Build(
            name=self.manifest.key,
            title="llama.cpp",
            archive=archive,
            programs=install.BINARIES,
            trials=("--version", "--help"),
            notes=tuple(head.write_note(folder, n, t) for n, t in texts.items()),
            options=(*self._flags(wanted), *install.options_of(source)),
            need_bytes=(local_build.NEED_BYTES if none else local_build.NEED_BYTES_GPU),
        )
        await self._build(job, toolchain, f"engines/{self.manifest.key}")

    def _toolchain(self, refused: str) -> Toolchain:
        try:
            return fit.toolchain_of(self.peer, self.shell.name)
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

    async def install_relay(self, relay: Path) -> Way:
        self.say("Looking for dllm-relay")
        parcel = head.relay_parcel(relay, self.relay_version, self.paths)
        if await self._has_relay(parcel):
            return Way.PRESENT
        refused = fit.misfit(self.head, self.peer, ())
        if not refused:
            try:
                await deliver(
                    self.shell,
                    self.files,
                    parcel,
                    self.root,
                    lambda text, done: self.say(f"Sending dllm-relay, {text}", done),
                )
                return Way.COPIED
            except DoesNotRun as error:
                refused = error.what
        await self._build_relay(parcel, self._toolchain(refused))
        return Way.BUILT

    async def _has_relay(self, parcel: head.Parcel) -> bool:
        """Whether it is there and was made from what the head has."""
        made_from = next(f for f in parcel.files if f.name == "made-from")
        told = await self._told(parcel.folder, "dllm-relay")
        runs = told.get("said") == [f"dllm-relay {self.relay_version}"]
        return runs and told.get("made-from") == [made_from.path.read_text()]

    async def _build_relay(self, parcel: head.Parcel, toolchain: Toolchain) -> None:
        job = Build(
            name=f"relay-{self.relay_version}",
            title="dllm-relay",
            archive=sources.relay_source(self.paths),
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
