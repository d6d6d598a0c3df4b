"""Why a build failed: one class and one sentence per cause a user can act on."""

from __future__ import annotations

import errno
import re
import sys
from typing import TYPE_CHECKING

from backends.errors import EngineError
from backends.state import Failure
from backends.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TAIL_LINES = 15


class BuildError(EngineError):
    """An engine could not be built; carries the end of the log as evidence."""

    def __init__(
        self,
        what: str,
        hint: str = "",
        *,
        tail: Sequence[str] = (),
        log_path: Path | None = None,
    ) -> None:
        super().__init__(what, hint)
        self.tail = tuple(tail)[-TAIL_LINES:]
        self.log_path = log_path

    def failure(self, at: float = 0.0) -> Failure:
        return Failure(what=self.what, hint=self.hint, log_tail=self.tail, at=at)


class NoCompiler(BuildError):
    """No working C or C++ compiler."""


class NoSpace(BuildError):
    """The disk is full, or too small to begin."""


class NoNetwork(BuildError):
    """pip cannot reach its package index."""


class SourceRefused(BuildError):
    """The source that pip brought is not the pinned one."""


class FetchFailed(BuildError):
    """pip failed for another reason."""


class CompileFailed(BuildError):
    """CMake or the compiler failed."""


_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded|Errno 28", re.I)
_WRONG_HASH = re.compile(r"DO NOT MATCH THE HASHES|Hashes are required|Expected sha256")
_UNREACHABLE = re.compile(
    r"Failed to establish a new connection|NewConnectionError|ConnectTimeout|"
    r"Connection refused|Connection reset|Connection aborted|Network is unreachable|"
    r"Name or service not known|Temporary failure in name resolution|"
    r"nodename nor servname|getaddrinfo failed|No route to host|Max retries exceeded|"
    r"ReadTimeout|Read timed out|ProxyError|SSLError|ConnectionError",
)
_SEE_LOG = "see the last lines of its log"
_NO_MATCH = re.compile(r"No matching distribution|Could not find a version")


def is_no_space(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def no_space(
    where: Path, stage: str, need_bytes: int, free_bytes: int | None = None
) -> NoSpace:
    if free_bytes is None:
        what = f"The disk holding {where} became full during the {stage} stage"
    else:
        free = format_bytes(free_bytes)
        what = f"Only {free} are free on the disk holding {where}"
    need = format_bytes(need_bytes)
    return NoSpace(
        what,
        f"Building llama.cpp needs about {need}: free some, or set XDG_CACHE_HOME to "
        "a larger disk; a second build goes on from here.",
    )


def no_compiler(language: str) -> NoCompiler:
    hint = "Install one: apt install build-essential, or dnf install gcc gcc-c++."
    if sys.platform == "darwin":
        hint = "Install one: xcode-select --install."
    return NoCompiler(f"No working {language} compiler on this machine", hint)


def explain_fetch(
    requirement: str, lines: Sequence[str], where: Path, need_bytes: int
) -> BuildError:
    text = "\n".join(lines)
    if no_room(lines):
        return no_space(where, "fetch", need_bytes)
    if _WRONG_HASH.search(text):
        return wrong_source(requirement, lines)
    if _UNREACHABLE.search(text):
        return NoNetwork(
            f"No network: pip cannot reach a package index for {requirement}",
            "Check the connection and pip's settings (pip config list), then repeat.",
            tail=lines,
        )
    if _NO_MATCH.search(text):
        return FetchFailed(
            f"Your package index offers no source of {requirement}",
            "Check pip's settings (pip config list): index-url, no-index, only-binary.",
            tail=lines,
        )
    if "No module named pip" in text:
        return FetchFailed(
            f"The Python at {sys.executable} has no pip to fetch {requirement} with",
            f"Run: {sys.executable} -m ensurepip --upgrade",
            tail=lines,
        )
    return FetchFailed(
        f"pip could not fetch {requirement}", "See its last lines above.", tail=lines
    )


def wrong_source(requirement: str, lines: Sequence[str] = ()) -> SourceRefused:
    return SourceRefused(
        f"What your package index gave as {requirement} is not the pinned source "
        "(its hash differs), so it was not used",
        "Use another index, or report this if it is pypi.org.",
        tail=lines,
    )


def explain_compile(
    stage: str, lines: Sequence[str], log_path: Path, where: Path, need_bytes: int
) -> BuildError:
    if no_room(lines):
        return no_space(where, stage, need_bytes)
    if was_killed(lines):
        return CompileFailed(
            "The compiler was killed, most likely for want of memory",
            "Repeat with --jobs 1; it goes on from here.",
            tail=lines,
            log_path=log_path,
        )
    what, hint = f"Compiling llama.cpp failed: {first_error(lines) or _SEE_LOG}", ""
    if stage == "configure":
        what = f"CMake could not configure llama.cpp: {first_error(lines) or _SEE_LOG}"
        hint = "Is it a GPU toolkit? --accelerator none builds for the CPU. "
    return CompileFailed(
        what,
        f"{hint}The whole log is {log_path}.",
        tail=lines,
        log_path=log_path,
    )


def no_room(lines: Sequence[str]) -> bool:
    return any(_NO_SPACE.search(line) for line in lines)


def was_killed(lines: Sequence[str]) -> bool:
    """True if the compiler was, most likely for want of memory."""
    return any("Killed signal terminated program" in line for line in lines)


def first_error(lines: Sequence[str]) -> str:
    """The first line that names an error, at most 160 characters of it."""
    for line in lines:
        if re.search(r"\b(fatal error|error|undefined reference)\b[: ]", line, re.I):
            return line.strip()[:160]
    return ""
