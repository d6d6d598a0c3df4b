"""Building on a peer: the source goes there, and it goes on where it was left."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh

from backends.engine import build_errors, compiling
from backends.provision.delivery import TRIAL_S, check_room, failure, raise_for
from backends.provision.refusals import (
    CannotBuild,
    ProvisionError,
    peer_full,
    transfer_error,
)
from backends.provision.remote import There, script
from backends.provision.upload import Meter, upload
from backends.state import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backends.machines.shell import Shell
    from backends.provision.upload import Files

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
        PeerFull: no room.
        DoesNotRun: what was built does not run.
        PeerUnreachable: the connection broke; what is built is kept.
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
