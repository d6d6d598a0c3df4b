"""Building on a peer: the source goes there, and it goes on where it was left."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh

from backends.provision.delivery import TRIAL_S, check_room, failure, raise_for
from backends.provision.errors import (
    CannotBuild,
    ProvisionError,
    is_full,
    peer_full,
    transfer_error,
)
from backends.provision.remote import BEAT, last_line, script
from backends.provision.upload import Meter, upload
from backends.state import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from backends.peers.shell import Shell
    from backends.provision.fit import Toolchain
    from backends.provision.upload import Files

_STEP = re.compile(r"^\[\s*(\d+)(?:/(\d+)|%)\]")
_ERROR = re.compile(r"\b(fatal error|error|undefined reference)\b[: ]", re.I)
_LINES_KEPT = 200
_KILLED = "Killed signal terminated program"


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


class Progress:
    """The output of a build: its last lines and how far it is."""

    def __init__(self, tell: Callable[[str, float | None, Sequence[str]], None]):
        """``tell`` gets a text, a fraction where known, and the last lines."""
        self.lines: list[str] = []
        self.stage = ""
        self._tell = tell

    def feed(self, line: str) -> None:
        """Take one line of ``build.sh``."""
        if line == BEAT:
            return
        if line.startswith("stage\t"):
            self.stage = line.partition("\t")[2]
            self._tell(_STAGES.get(self.stage, self.stage), None, self.tail)
            return
        self.lines = [*self.lines, line][-_LINES_KEPT:]
        match = _STEP.match(line)
        if match and self.stage == "compile":
            done, total = int(match[1]), int(match[2] or 100)
            count = f"[{done}/{total}]" if match[2] else f"{done} %"
            self._tell(f"Compiling {count}", done / max(total, 1), self.tail)

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines, for the eye."""
        return tuple(self.lines[-15:])


_STAGES = {
    "unpack": "Unpacking",
    "configure": "Configuring",
    "compile": "Compiling",
}


async def build(
    shell: Shell,
    files: Files,
    job: Build,
    toolchain: Toolchain,
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
    await _compile(shell, job, toolchain, folder, made, tell)
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
    toolchain: Toolchain,
    folder: str,
    made: str,
    tell: Callable[[str, float | None, Sequence[str]], None],
) -> None:
    progress = Progress(tell)
    arguments = (folder, made, toolchain.cmake, str(toolchain.jobs))
    options = (*toolchain.options, *job.options)
    result = await shell.run(
        script("build"),
        *arguments,
        " ".join(job.programs),
        *options,
        timeout_s=None,
        check=False,
        on_line=progress.feed,
    )
    if result.code != 0:
        said = last_line(result)
        raise _why(shell.name, job, progress.lines, said, folder)


def _why(
    peer: str, job: Build, lines: list[str], said: str, folder: str
) -> ProvisionError:
    if is_full([*lines, said]):
        return peer_full(peer, folder, job.need_bytes)
    if any(_KILLED in line for line in lines):
        return CannotBuild(
            f"The compiler was killed on {peer}, most likely for want of memory",
            "Free some there and repeat; it goes on from here.",
            tail=lines,
        )
    first = next((line.strip() for line in lines if _ERROR.search(line)), said)
    return CannotBuild(
        f"{job.title} could not be built on {peer}: {first[:160]}",
        tail=lines,
    )
