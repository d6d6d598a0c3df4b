"""The bytes of models, here and on peers, as the commands use them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from backends.places import LOCAL
from backends.state import Drafts
from backends.state.models import Hashing, Seeding, WorkerCache

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from backends.client.calls import Connection


class ModelsClient:
    """Asks machines about models; closing what tells of long work ends the work.

    Every call raises ``DllmError`` where it is refused or cannot be asked.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def hashing(
        self, path: str, *, machine: str = LOCAL
    ) -> AsyncGenerator[Hashing, None]:
        """Hash every tensor of a model on a machine; at last the hashes."""
        asked = {"path": path, "machine": machine}
        return self._connection.stream("POST", "/v1/models/hash", Hashing, asked)

    def seeding(
        self, path: str, *, machine: str, directory: str = "", dry: bool = False
    ) -> AsyncGenerator[Seeding, None]:
        """Fill the cache of a stock worker there from a model there."""
        asked = {"path": path, "machine": machine, "directory": directory, "dry": dry}
        return self._connection.stream("POST", "/v1/models/seed", Seeding, asked)

    async def drafts(self, path: str) -> Drafts:
        """The models found so far that can draft for one."""
        target = f"/v1/drafts?path={quote(path, safe='')}"
        return await self._connection.call("GET", target, Drafts)

    async def cache(self, *, machine: str, directory: str = "") -> WorkerCache:
        """The content of a stock worker's cache there."""
        asked = {"machine": machine, "directory": directory}
        return await self._connection.call(
            "POST", "/v1/models/cache", WorkerCache, asked
        )

    async def prune(
        self, names: Sequence[str], *, machine: str, directory: str = ""
    ) -> int:
        """Delete files of that cache; the bytes freed."""
        asked = {"machine": machine, "directory": directory, "names": names}
        answer = await self._connection.call(
            "POST", "/v1/models/prune", dict[str, int], asked
        )
        return answer["freed_bytes"]
