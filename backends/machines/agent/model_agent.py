"""What an agent tells of the bytes of models, and does with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from backends.machines.agent.machine_agent import MachineAgent
from backends.state.holdings import Hashing, Seeding, WorkerCache

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable

T = TypeVar("T", Hashing, Seeding)

WORK_S = 1.0
"""Between two words of how far long work is."""
WORK_TIMEOUT_S = 60.0
"""Beyond that: a disk that wakes up, and the keeping of what is known so far."""
UNCACHE_TIMEOUT_S = 60.0
NAMES_AT_ONCE = 4096


class ModelAgent(MachineAgent):
    """One machine, asked about its models through its agent."""

    def hashing(self, path: str) -> AsyncGenerator[Hashing, None]:
        """Hash every tensor of a model there; how far that is, and at last the hashes.

        Reads all of the model once in its life: what is known is kept there, also of a
        part when this is given up, until the file changes.

        Args:
            path: any part of the model.

        Raises:
            HostError: it cannot be read, is damaged, or the helper there is too old.
        """
        return self._sliced("tensors", Hashing, lambda told: told.done_bytes, path=path)

    def seeding(
        self, path: str, directory: str = "", *, dry: bool = False
    ) -> AsyncGenerator[Seeding, None]:
        """Fill the cache of ``rpc-server -c`` from a model there; how far that is.

        Only whole files, compared with what was hashed, get their names; given up, it
        goes on where it was.

        Args:
            path: any part of the model.
            directory: of the cache; empty: where the agent's user has it.
            dry: only find out how much it would be.

        Raises:
            HostError: it cannot be read, the disk is too full, or the helper there is
                too old.
        """
        return self._sliced(
            "seed",
            Seeding,
            lambda told: told.hashed_bytes + told.seeded_bytes,
            path=path,
            directory=directory,
            dry=dry,
        )

    async def worker_cache(self, directory: str = "") -> WorkerCache:
        """What ``rpc-server -c`` keeps there; nothing where there is no such directory.

        Raises:
            HostError: it cannot be read, or the helper there is too old.
        """
        await self._require("cached")
        async with self._errands:
            answer = await self._ask("cached", directory=directory)
        return self._part(answer, WorkerCache)

    async def uncache(self, names: Iterable[str], directory: str = "") -> int:
        """Delete files of that cache; the bytes freed.

        Raises:
            HostError: one cannot be deleted, or the helper there is too old.
        """
        await self._require("uncache")
        left, freed_bytes = list(names), 0
        while left:
            some, left = left[:NAMES_AT_ONCE], left[NAMES_AT_ONCE:]
            async with self._errands:
                answer = await self._ask(
                    "uncache", UNCACHE_TIMEOUT_S, directory=directory, names=some
                )
            freed_bytes += self._part(answer.get("freed_bytes"), int)
        return freed_bytes

    async def _sliced(
        self, verb: str, kind: type[T], progress: Callable[[T], int], **members: Any
    ) -> AsyncGenerator[T, None]:
        """Ask again and again until it is complete; the agent goes on where it was."""
        await self._require(verb)
        work_s, before = WORK_S, 0
        while True:
            async with self._errands:
                answer = await self._ask(
                    verb, work_s + WORK_TIMEOUT_S, work_s=work_s, **members
                )
            told = self._part(answer, kind)
            yield told
            if told.complete:
                return
            # Where nothing can be kept, all has to be done in one go.
            work_s = WORK_S if progress(told) > before else work_s * 2
            before = max(before, progress(told))
