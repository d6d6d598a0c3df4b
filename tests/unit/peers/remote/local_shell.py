"""A shell on the machine the tests run on, with the tools of some other machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING

from backends.errors import HostError, PeerUnreachable
from backends.peers.shell import RUN_TIMEOUT_S, ShellResult

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class LocalShell:
    """Runs scripts given over stdin, as a connection to another machine does."""

    def __init__(self, *, name: str = "local", path: str | None = None) -> None:
        """Use the ``sh`` and the tools found on ``path``."""
        self.name = name
        self._path = path or os.environ["PATH"]
        self.broken = False
        """Set to be unreachable."""
        self.break_after_s: float | None = None
        """Set to lose the connection in the middle of the next script."""
        self.breaking_kills = True
        """Whether that ends the script, as sshd's end does; or nobody tells it."""
        self._abandoned: list[asyncio.Future[tuple[bytes, bytes]]] = []
        self.count = 0
        """Scripts run so far."""

    async def run(
        self,
        script: str,
        *args: str,
        timeout_s: float | None = RUN_TIMEOUT_S,
        check: bool = True,
        on_line: Callable[[str], None] | None = None,
    ) -> ShellResult:
        """Run a script under ``sh`` with ``$1``… set."""
        self.count += 1
        if self.broken:
            raise PeerUnreachable(f"{self.name} cannot be reached")
        process = await asyncio.create_subprocess_exec(
            shutil.which("sh", path=self._path) or "sh",
            "-s",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PATH": self._path},
            start_new_session=True,
        )
        text = f"set -- {shlex.join(args)}\n{script}"
        data = text.encode(errors="surrogateescape")
        try:
            out, errors = await self._talk(process, data, timeout_s)
        except TimeoutError as error:
            raise HostError(f"{self.name} took longer than {timeout_s:g} s") from error
        result = ShellResult(
            code=process.returncode or 0,
            stdout=out.decode(errors="replace"),
            stderr=errors.decode(errors="replace"),
        )
        if check and result.code:
            raise HostError(f"{self.name}: {result.stderr}")
        return result

    async def wait_silent(self) -> None:
        """Wait until the scripts that nobody listens to have run to their end."""
        await asyncio.gather(*self._abandoned)
        self._abandoned.clear()

    async def _talk(
        self, process: asyncio.subprocess.Process, data: bytes, timeout_s: float | None
    ) -> tuple[bytes, bytes]:
        break_after_s, self.break_after_s = self.break_after_s, None
        work = asyncio.ensure_future(process.communicate(data))
        ends = True
        try:
            if break_after_s is not None:
                await asyncio.wait([work], timeout=break_after_s)
                ends = self.breaking_kills or work.done()
                if not work.done():
                    self._abandoned.append(work)
                    raise PeerUnreachable(f"The connection to {self.name} broke")
            return await asyncio.wait_for(work, timeout_s)
        finally:
            if ends:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                await asyncio.wait([work])
                await process.wait()


def busybox_tools(directory: Path) -> str | None:
    """A PATH with nothing but busybox on it; None where it is not installed."""
    busybox = shutil.which("busybox")
    if busybox is None:
        return None
    done = subprocess.run([busybox, "--list"], capture_output=True, text=True)
    for applet in done.stdout.split():
        (directory / applet).symlink_to(busybox)
    return str(directory)
