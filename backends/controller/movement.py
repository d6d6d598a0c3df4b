"""Whether llama-server did anything of late, found out without asking it.

What it is asked while nothing moves becomes a line of its log.
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
    """Looks at the bytes on the links; where there are none, at the log."""

    def __init__(
        self, carried: Callable[[], Mapping[str, int]], host: AgentHost, log_name: str
    ) -> None:
        """``carried`` gives the bytes each relay passed on; the log is on ``host``."""
        self._carried = carried
        self._host = host
        self._log_name = log_name
        self._seen: Mapping[str, int] = {}
        self._offset = -1

    async def since(self) -> bool:
        """Whether anything moved since this was asked last."""
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
