"""A shell on this machine with a home of its own, as a connection would give it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import TYPE_CHECKING

from backends.errors import HostError
from backends.machines.shell import RUN_TIMEOUT_S, ShellResult

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class LocalShell:
    """Runs scripts under ``sh`` with ``HOME`` set to a directory."""

    def __init__(self, home: Path, *, sh: tuple[str, ...] = ("sh",)) -> None:
        """Use another ``sh``, such as ``("busybox", "sh")``, where asked to."""
        self.home = home
        self.env = {"HOME": str(home), "PATH": os.environ["PATH"]}
        self.scripts: list[str] = []
        """Every script that was run, in order."""
        self._sh = sh

    @property
    def name(self) -> str:
        """The peer's name."""
        return "mini"

    async def rtt_ms(self) -> float:
        """As the protocol says."""
        return 0.01

    async def run(
        self,
        script: str,
        *args: str,
        timeout_s: float | None = RUN_TIMEOUT_S,
        check: bool = True,
        on_line: Callable[[str], None] | None = None,
    ) -> ShellResult:
        """As the protocol says."""
        self.scripts.append(script)
        child = await asyncio.create_subprocess_exec(
            *(*self._sh, "-c", script, "sh", *args),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.env,
            cwd=self.home,
            start_new_session=True,
            limit=1 << 24,
        )
        assert child.stdout is not None
        assert child.stderr is not None
        errors = asyncio.create_task(child.stderr.read())
        lines: list[str] = []
        try:
            async with asyncio.timeout(timeout_s):
                async for raw in child.stdout:
                    lines.append(raw.decode())
                    if on_line is not None:
                        on_line(lines[-1].rstrip("\n"))
                code = await child.wait()
                stderr = (await errors).decode()
        except TimeoutError:
            raise HostError(f"no answer within {timeout_s} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            await child.wait()
            errors.cancel()
        if check and code != 0:
            raise HostError(f"exit {code}: {(stderr.strip().splitlines() or [''])[-1]}")
        return ShellResult(code=code, stdout="".join(lines), stderr=stderr)
