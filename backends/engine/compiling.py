"""The steps of a build, on whatever machine: one script, told of line by line."""

from __future__ import annotations

import contextlib
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Protocol

from backends.engine import children
from backends.state import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

BEAT = "~"
"""A line a long script prints to learn whether anybody still listens."""
LINES_KEPT = 400
LINES_SHOWN = 15
MEMORY_PER_JOB_BYTES = 1_000_000_000
"""The memory of one compiler; more jobs than fit would be killed or swap."""
_STEP = re.compile(r"^\[\s*(\d+)(?:/(\d+)|%)\]\s*(.*)$")


class Runner(Protocol):
    """A machine on which the scripts of a build run."""

    async def run(
        self, name: str, *args: str, on_line: Callable[[str], None]
    ) -> tuple[int, str]:
        """Run ``scripts/NAME.sh``; its exit status and the last thing it said.

        Cancelling it ends everything the script started.

        Raises:
            DllmError: the machine cannot be reached, or has no shell.
            OSError: the log cannot be written.
        """
        ...


class Toolchain(Value, frozen=True, kw_only=True):
    """The programs of a build."""

    cmake: str
    generator: str
    maker: str
    """Ninja or make, as the generator wants it."""
    cc: str
    cxx: str
    jobs: int

    @property
    def options(self) -> tuple[str, ...]:
        """For CMake: generator and compilers."""
        return (
            *("-G", self.generator),
            f"-DCMAKE_MAKE_PROGRAM={self.maker}",
            f"-DCMAKE_C_COMPILER={self.cc}",
            f"-DCMAKE_CXX_COMPILER={self.cxx}",
        )


@cache
def script(*names: str, package: str = "backends.engine.scripts") -> str:
    """The text of the scripts of that name in a package, one after another."""
    folder = files(package)
    texts = (folder.joinpath(f"{name}.sh").read_text("utf-8") for name in names)
    return "\n".join(texts)


class Here:
    """This machine."""

    def __init__(
        self,
        env: Mapping[str, str],
        log: BinaryIO | None = None,
        keep_fd: int | None = None,
    ) -> None:
        self._env = env
        self._log = log
        self._keep_fd = keep_fd

    async def run(
        self, name: str, *args: str, on_line: Callable[[str], None]
    ) -> tuple[int, str]:
        """As the protocol says."""

        def take(line: str) -> None:
            if line != BEAT:
                self._write(line)
                on_line(line)

        argv = ("/bin/sh", "-c", script("common", name), "sh", *args)
        code, lines = await children.run(
            argv, env=self._env, on_line=take, keep_fd=self._keep_fd
        )
        said = [line for line in lines if line != BEAT]
        return code, said[-1] if said else f"exit status {code}"

    def _write(self, line: str) -> None:
        if self._log is not None:
            self._log.write(f"{line}\n".encode(errors="replace"))
            self._log.flush()


class Progress:
    """The output of a build: its last lines, its stage and how far that is."""

    def __init__(
        self,
        tell: Callable[[str, float | None, str], None],
        remember: Path | None = None,
    ) -> None:
        self.lines: list[str] = []
        self.stage = ""
        self._tell = tell
        self._steps = Steps(remember)

    def feed(self, line: str) -> None:
        """Take one line of ``build.sh``."""
        if line == BEAT:
            return
        if line.startswith("stage\t"):
            self.stage = line.partition("\t")[2]
            self._tell(self.stage, None, "")
            return
        self.lines = [*self.lines, line][-LINES_KEPT:]
        match = _STEP.match(line)
        if match and self.stage == "compile":
            self._step(int(match[1]), int(match[2] or 100), match[3])

    def _step(self, done: int, total: int, text: str) -> None:
        if (fraction := self._steps.fraction(done, total)) is not None:
            self._tell(self.stage, fraction, text)

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines, for the eye."""
        return tuple(self.lines[-LINES_SHOWN:])


class Steps:
    """Ninja counts what is left; this remembers how much there was at first."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._all = self._left = 0
        with contextlib.suppress(OSError, ValueError):
            self._all = int(path.read_text()) if path is not None else 0

    def fraction(self, done: int, total: int) -> float | None:
        """The done part of everything, if ``done`` of the ``total`` left is.

        None for a build inside the build, such as that of Vulkan's shader generator.
        """
        if total < self._left:
            return None
        self._left = total
        if total > self._all:
            self._all = total
            if self._path is not None:
                self._path.write_text(str(total))
        return (self._all - total + done) / max(self._all, 1)


async def compile_programs(
    runner: Runner,
    folder: str,
    programs: Sequence[str],
    toolchain: Toolchain,
    options: Sequence[str],
    progress: Progress,
) -> tuple[int, str]:
    """Unpack, configure and compile in ``folder``; programs come into ``programs/``.

    Each step that is done already is not done again. Returns the exit status of
    ``build.sh`` and the last thing it said; ``progress`` has its lines.

    Raises:
        DllmError: the machine cannot be reached.
        OSError: the log cannot be written.
    """
    places = (folder, f"{folder}/programs")
    tools = (toolchain.cmake, str(toolchain.jobs), " ".join(programs))
    flags = (*toolchain.options, *options)
    return await runner.run("build", *places, *tools, *flags, on_line=progress.feed)
