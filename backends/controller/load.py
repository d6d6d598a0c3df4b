"""Watching llama-server load a model, through its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.engine.logs import LoadLog

if TYPE_CHECKING:
    from backends.machines.agent.agent_host import AgentHost

READ_BYTES = 1 << 20


class LoadWatch:
    """Follows a log from its beginning and knows how far the load is."""

    def __init__(self, host: AgentHost, name: str) -> None:
        """Follow the log of one process on one host."""
        self._host = host
        self._name = name
        self._offset = 0
        self.log = LoadLog()
        """What it tells so far."""

    async def read(self) -> bool:
        """Take in the next part of the log; False when there is nothing new."""
        chunk = await self._host.read_log(self._name, self._offset, READ_BYTES)
        self._offset = chunk.next_offset
        self.log.feed(chunk.text)
        return bool(chunk.text)

    async def read_all(self) -> None:
        """Take in all that is there now."""
        while await self.read():
            pass
