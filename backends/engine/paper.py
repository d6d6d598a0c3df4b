"""Running what tells the memory of a plan: the tool, and workers on paper for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

import msgspec

from backends.engine import children
from backends.engine.ask import NO_GPU
from backends.errors import EngineError
from backends.state import NOT_JSON

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

PAPER_BYTES = 1 << 40
"""The memory of a stub device: the placement is given, so its size does not matter."""


@contextlib.asynccontextmanager
async def paper_worker(
    relay: str, names: Sequence[str], rpc_protocol: str
) -> AsyncIterator[int]:
    """A worker on paper with these devices; yields its port on our loopback.

    Raises:
        EngineError: it does not start.
    """
    devices = [f"{name}:{PAPER_BYTES}" for name in names or ["CPU"]]
    options = [part for device in devices for part in ("--device", device)]
    argv = (relay, "paper", *options, "--protocol", rpc_protocol)
    try:
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise _cannot_run(relay, error) from error
    try:
        assert child.stdout is not None
        yield _port(await child.stdout.readline(), relay)
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()


def _port(line: bytes, relay: str) -> int:
    try:
        return int(msgspec.json.decode(line, type=dict[str, int])["port"])
    except (*NOT_JSON, KeyError) as error:
        raise EngineError(
            f"{relay} does not start as a worker on paper",
            "Reinstall dllm-tui: its helper program is an older one.",
        ) from error


async def output_of(argv: Sequence[str]) -> str:
    """The output of a program.

    Raises:
        EngineError: it cannot be started, or failed.
    """
    try:
        code, lines = await children.run(argv, env=_environment())
    except OSError as error:
        raise _cannot_run(argv[0], error) from error
    if code != 0:
        raise EngineError(
            f"llama-fit-params failed: {_why(code, lines)}", "The prediction stays."
        )
    return "\n".join(lines)


def _why(code: int, lines: Sequence[str]) -> str:
    """The first thing it complained of, else how it ended."""
    said = [line.strip() for line in lines if line.strip()]
    told = [line for line in said if " E " in line or "error" in line.lower()]
    if told:
        return told[0][:200]
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return said[-1][:200] if said else f"exit code {code}"


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LLAMA_ARG_")}
    return {**kept, **NO_GPU, "GGML_NO_BACKTRACE": "1"}


def _cannot_run(program: str, error: OSError) -> EngineError:
    return EngineError(
        f"Cannot run {program} ({error.strerror})",
        "Build an engine with: dllm-tui engine build.",
    )
