"""Find out if llama-server was active of late, without a request to it.

Each request while it is idle becomes a line of its log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.errors import DllmError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from backends.machines.host import AgentHost

READ_BYTES = 1 << 16
# All that a question about the slots leaves behind.
ASKED = "all slots are idle"


class Movement:
    """Watches the bytes on the links; without links, the log.

    ``carried`` gives the bytes that each relay passed on. ``host`` has the log.
    """

    def __init__(
        self, carried: Callable[[], Mapping[str, int]], host: AgentHost, log_name: str
    ) -> None:
        self._carried = carried
        self._host = host
        self._log_name = log_name
        self._seen: Mapping[str, int] = {}
        self._offset = -1

    async def since(self) -> bool:
        """Return true if there was activity since the last call."""
        if carried := self._carried():
            before, self._seen = self._seen, carried
            return carried != before
        return await self._wrote()

    async def _wrote(self) -> bool:
        try:
            chunk = await self._host.read_log(self._log_name, self._offset, READ_BYTES)
        except DllmError:
            # Whoever watches the processes says what is wrong.
            return False
        self._offset = chunk.next_offset
        return any(line and ASKED not in line for line in chunk.text.splitlines())
