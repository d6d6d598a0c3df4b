"""What every way of starting a process has in common."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from backends.errors import HostError
from backends.peers.directory import Meta
from backends.state import ProcessState

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from backends.peers.host import ProcessRecord, ProcessSpec

T = TypeVar("T")

LOG_LIMIT_BYTES = 64 * 1024 * 1024

# A crashing llama.cpp would first run gdb on itself, for seconds.
_ALWAYS_ENV = {"GGML_NO_BACKTRACE": "1"}


def spawn_words(directory: str, spec: ProcessSpec, log_limit_bytes: int) -> list[str]:
    """The command line of ``dllm-relay`` that starts a process, without its path."""
    meta = msgspec.json.encode(Meta(role=spec.role, port=spec.port)).decode()
    words = ["spawn", "--dir", directory]
    words += ["--meta", meta, "--log-limit", str(log_limit_bytes)]
    for key, value in {**_ALWAYS_ENV, **spec.env}.items():
        words += ["--env", f"{key}={value}"]
    if spec.ignore_sigpipe:
        words.append("--ignore-sigpipe")
    return [*words, "--", *spec.argv]


def complaint_of(stderr: str, status: int) -> str:
    """Why ``dllm-relay spawn`` ended with another status than 0."""
    _, _, complaint = stderr.strip().partition("dllm-relay: ")
    last_line = stderr.strip().rpartition("\n")[2]
    return complaint or last_line or f"the helper ended with status {status}"


def not_started(name: str, host: str, detail: str) -> HostError:
    """The error of a process that could not be started."""
    return HostError(f"{name} did not start on {host}: {detail}")


def still_runs(name: str, host: str, pid: int | None = None) -> HostError:
    """The error of a process, or a relative of it, that must be stopped first."""
    detail = "" if pid is None else f" (pid {pid})"
    return HostError(f"{name} still runs on {host}{detail}", "Stop it first.")


def outlived(name: str, pids: list[int]) -> HostError:
    """The error of processes that SIGKILL did not end."""
    listed = ", ".join(map(str, sorted(pids)))
    return HostError(
        f"{name} outlived SIGKILL (pid {listed})",
        "It may wait for a disk or belong to another user; look at it with ps.",
    )


class Stopping:
    """Which processes are being stopped by us at this moment."""

    def __init__(self) -> None:
        """None is."""
        self._names: Counter[str] = Counter()

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[None]:
        """While one stops; several may stop the same."""
        self._names[name] += 1
        try:
            yield
        finally:
            self._names[name] -= 1

    def seen(self, record: ProcessRecord) -> ProcessRecord:
        """A record, with the state that shows it."""
        if not record.alive or not self._names[record.name]:
            return record
        return msgspec.structs.replace(record, state=ProcessState.STOPPING)


async def finished(work: Coroutine[Any, Any, T]) -> T:
    """Let short work end though we are cancelled meanwhile, so that none is half done.

    A start that was cancelled has then happened, and is recorded, or not at all.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
