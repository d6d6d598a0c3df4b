"""Getting llama.cpp for this machine, where it has none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

from backends.errors import DllmError
from backends.state import EngineInfo, EngineProgress, EngineStage
from backends.units import Transfer, format_percent
from tui.app.console import ClusterConsole, Flow

WORDS = {
    EngineStage.DOWNLOAD: "Downloading llama.cpp",
    EngineStage.TRY: "Trying llama.cpp",
    EngineStage.FETCH: "Fetching the source of llama.cpp",
    EngineStage.UNPACK: "Unpacking llama.cpp",
    EngineStage.CONFIGURE: "Configuring llama.cpp",
    EngineStage.COMPILE: "Compiling llama.cpp",
    EngineStage.INSTALL: "Installing llama.cpp",
}


class EngineFlow(Flow):
    """Gets an engine once at a time; ``show`` is told how far it is."""

    def __init__(self, app: ClusterConsole, show: Callable[[str], None]) -> None:
        super().__init__(app)
        self._show = show
        self._getting: asyncio.Task[EngineInfo] | None = None

    async def get(self) -> None:
        if self._getting is not None:
            await self._ask_to_cancel(self._getting)
            return
        self._getting = task = asyncio.create_task(self._get())
        try:
            self._show("Getting llama.cpp…")
            await self._app.go_to("cluster", "live")
            engine = await task
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            self._app.tell("Cancelled; getting llama.cpp again resumes")
        else:
            what = f"{engine.version}, RPC {engine.rpc_protocol}"
            self._app.tell(f"llama.cpp is here: {what}")
        finally:
            task.cancel()
            self._getting = None
            self._show("")

    async def _ask_to_cancel(self, task: asyncio.Task[EngineInfo]) -> None:
        from tui.dialogs.dialog import confirm

        text = "llama.cpp is being got. What has arrived is kept: the next run resumes."
        dialog = confirm("Cancel?", text, "Cancel it", "y")
        if await self._app.push_screen_wait(dialog) == "yes":
            task.cancel()

    async def _get(self) -> EngineInfo:
        reached = Reached()
        async with aclosing(self._cluster.get_engine()) as progress:
            async for now in progress:
                if (engine := now.engine) is not None:
                    return engine
                if now.stage is EngineStage.WAIT:
                    self._app.tell(now.text)
                else:
                    self._show(reached.text(now))
        raise DllmError("Getting llama.cpp ended early", "Get it again.")


class Reached:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._transfer = Transfer(clock)

    def text(self, now: EngineProgress) -> str:
        words = WORDS.get(now.stage, "")
        if now.size_bytes:
            return f"{words}: {self._transfer.text(now.done_bytes, now.size_bytes)}"
        if now.fraction is None:
            return f"{words}…"
        return f"{words}: {format_percent(now.fraction)}"
