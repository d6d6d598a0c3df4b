"""Why a build failed: one sentence per cause that a user can act on."""

from __future__ import annotations

import errno
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from backends.errors import DllmError, EngineError, MachineError
from backends.units import format_bytes

ROOM = "Free some, or set XDG_CACHE_HOME to a larger disk; the same command resumes."
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded|Errno 28", re.I)
_WRONG_HASH = re.compile(r"DO NOT MATCH THE HASHES|Hashes are required|Expected sha256")
_UNREACHABLE = re.compile(
    r"Failed to establish a new connection|NewConnectionError|ConnectTimeout|"
    r"Connection refused|Connection reset|Connection aborted|Network is unreachable|"
    r"Name or service not known|Temporary failure in name resolution|"
    r"nodename nor servname|getaddrinfo failed|No route to host|Max retries exceeded|"
    r"ReadTimeout|Read timed out|ProxyError|SSLError|ConnectionError"
)
_SEE_LOG = "see the last lines of its log"
_NO_MATCH = re.compile(r"No matching distribution|Could not find a version")


@contextmanager
def disk_errors(where: Path, doing: Callable[[], str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_space(where, doing()) from error
        raise MachineError(
            f"Cannot write to {error.filename or where} ({error.strerror or error})",
            "Set XDG_CACHE_HOME to a directory you can write to.",
        ) from error


def no_space(where: Path, doing: str) -> MachineError:
    return MachineError(f"The disk of {where} became full while {doing}", ROOM)


def require_build_room(where: Path, need_bytes: int) -> None:
    free_bytes = shutil.disk_usage(where).free
    if free_bytes < need_bytes:
        raise MachineError(
            f"The disk of {where} has {format_bytes(free_bytes)} free, and a build "
            f"takes {format_bytes(need_bytes)}",
            ROOM,
        )


def no_compiler(language: str) -> EngineError:
    hint = "Install one: apt install build-essential, or dnf install gcc gcc-c++."
    if sys.platform == "darwin":
        hint = "Install one: xcode-select --install."
    return EngineError(f"No working {language} compiler on this machine", hint)


def explain_fetch(requirement: str, lines: Sequence[str], where: Path) -> DllmError:
    text = "\n".join(lines)
    if no_room(lines):
        return no_space(where, f"fetching {requirement}")
    if _WRONG_HASH.search(text):
        return wrong_source(requirement, lines)
    if _UNREACHABLE.search(text):
        return EngineError(
            f"No network: pip cannot reach a package index for {requirement}",
            "Check the connection and pip's settings (pip config list), then repeat.",
            lines,
        )
    if _NO_MATCH.search(text):
        return EngineError(
            f"Your package index offers no source of {requirement}",
            "Check pip's settings (pip config list): index-url, no-index, only-binary.",
            lines,
        )
    if "No module named pip" in text:
        return EngineError(
            f"The Python at {sys.executable} has no pip to fetch {requirement} with",
            f"Run: {sys.executable} -m ensurepip --upgrade",
            lines,
        )
    return EngineError(
        f"pip could not fetch {requirement}", "See its last lines above.", lines
    )


def wrong_source(requirement: str, lines: Sequence[str] = ()) -> EngineError:
    return EngineError(
        f"What your package index gave as {requirement} is not the pinned source "
        "(its hash differs), so it was not used",
        "Use another index, or report this if it is pypi.org.",
        lines,
    )


def explain_compile(stage: str, lines: Sequence[str], log_path: Path) -> DllmError:
    if no_room(lines):
        return no_space(log_path.parent, f"building llama.cpp ({stage})")
    if was_killed(lines):
        return EngineError(
            "The compiler was killed, most likely for want of memory",
            "Repeat with --jobs 1; it goes on from here.",
            lines,
        )
    what, hint = f"Compiling llama.cpp failed: {first_error(lines) or _SEE_LOG}", ""
    if stage == "configure":
        what = f"CMake could not configure llama.cpp: {first_error(lines) or _SEE_LOG}"
        hint = "Is it a GPU toolkit? --accelerator none builds for the CPU. "
    return EngineError(what, f"{hint}The whole log is {log_path}.", lines)


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
