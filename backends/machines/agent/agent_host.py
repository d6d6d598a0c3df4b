"""A machine as a host: its agent starts, stops, lists and tells of every change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from backends.errors import HostError
from backends.machines.agent.log_parts import log_chunk
from backends.machines.agent.machine_agent import ALWAYS_ENV
from backends.machines.agent.messages import (
    Meta,
    Told,
    checked_name,
    record_of,
)
from backends.machines.agent.model_agent import ModelAgent
from backends.machines.agent.upkeep import ASK_TIMEOUT_S, HeldAgent
from backends.machines.host import Orphan
from backends.state import ProcessState

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Coroutine,
        Iterator,
    )

    from backends.machines.agent.messages import Stream
    from backends.machines.host import ProcessRecord, ProcessSpec
    from backends.state import LogChunk

log = logging.getLogger(__name__)

T = TypeVar("T")

LOG_LIMIT_BYTES = 64 << 20
START_TIMEOUT_S = 30.0
"""Starting takes milliseconds; a program on a sleeping network disk takes longer."""
KILL_PATIENCE_S = 10.0
"""A process in an uninterruptible read of a slow disk dies when that returns."""
SUPERVISOR_PATIENCE_S = 2.0

# A log is read in one go; more would keep a slow link busy for too long.
_READ_MAX_BYTES = 1 << 20


class AgentHost(ModelAgent):
    """Starts, finds and stops processes of this user on one machine.

    It remembers nothing that matters: all state is in the directories there, so another
    one adopts what this one started. The agent is started by the first call.
    """

    def __init__(
        self,
        name: str,
        open_stream: Callable[[], Awaitable[Stream]],
        *,
        restarts: bool = False,
        lease_s: float | None = None,
        log_limit_bytes: int = LOG_LIMIT_BYTES,
    ) -> None:
        """``open_stream`` starts an agent; the others are those of ``HeldAgent``."""
        agent = HeldAgent(
            name,
            open_stream,
            restarts=restarts,
            lease_s=lease_s,
            came=self._came,
            went=self._went,
            all_told=self._all_told,
        )
        super().__init__(name, agent)
        self._log_limit_bytes = log_limit_bytes
        self._seen: dict[str, ProcessRecord] = {}
        self._stopping: Counter[tuple[str, int | None]] = Counter()
        self._endings: set[asyncio.Future[ProcessRecord | None]] = set()
        self._subscribers: dict[object, Callable[[], None]] = {}

    async def connect(self) -> None:
        """Start the agent, if there is none, and hear of every process.

        Raises:
            HostError: it does not run there.
            PeerUnreachable: the connection broke.
        """
        await self._agent.connect()

    async def close(self) -> None:
        """End the agent; what it started lives on."""
        await self._agent.close()

    # --- processes ----------------------------------------------------------------

    async def start(self, spec: ProcessSpec) -> ProcessRecord:
        """Start a process in its own directory, detached from us.

        Cancelled meanwhile it has happened, and is recorded, or not at all.

        Raises:
            HostError: a living process has that name or is left over from an earlier
                one (``stop`` ends both), or it cannot be executed.
            PeerUnreachable: the connection broke; ``record`` tells whether it runs.
        """
        meta = Meta(role=spec.role, port=spec.port, digest=spec.digest)
        work = self._ask(
            "start",
            START_TIMEOUT_S,
            name=checked_name(spec.name),
            argv=spec.argv,
            env={**ALWAYS_ENV, **spec.env},
            ignore_sigpipe=spec.ignore_sigpipe,
            log_limit=self._log_limit_bytes,
            meta=msgspec.json.encode(meta).decode(),
            **({"private": spec.private} if spec.private else {}),
        )
        record = self._one(await _finished(work))
        if record is None:
            raise HostError(f"{spec.name} did not start on {self._name}: it is gone")
        return record

    async def record(self, name: str) -> ProcessRecord | None:
        """The process of that name, alive or ended; None when there is none.

        One whose record is damaged appears as ended, with pid 0.
        """
        answer = await self._ask("records", name=checked_name(name))
        return next(iter(self._records(answer)), None)

    async def records(self) -> list[ProcessRecord]:
        """Every process directory, alive or ended, by name.

        Raises:
            HostError: the run directory cannot be read.
        """
        return self._records(await self._ask("records"))

    async def stop(self, name: str, grace_s: float = 5.0) -> ProcessRecord | None:
        """TERM its process group, wait, KILL, and see that it is gone.

        Takes everything the process started with it, also when its directory is lost.
        Stopping what has ended, or twice at once, is fine. An agent goes on with what
        it began: cancelling this only ends the waiting.

        Raises:
            HostError: it outlived SIGKILL.
            PeerUnreachable: the connection broke; to be repeated.
        """
        ending = asyncio.ensure_future(self._end(checked_name(name), grace_s))
        self._endings.add(ending)
        ending.add_done_callback(self._ended)
        return await asyncio.shield(ending)

    def _ended(self, ending: asyncio.Future[ProcessRecord | None]) -> None:
        self._endings.discard(ending)
        if not ending.cancelled() and (error := ending.exception()):
            # Nobody need be waiting any more.
            log.info("an ending on %s: %s", self._name, error)

    async def _end(self, name: str, grace_s: float) -> ProcessRecord | None:
        patience_s = grace_s + KILL_PATIENCE_S + 2 * SUPERVISOR_PATIENCE_S
        with self._shown_stopping(name):
            answer = await self._ask(
                "stop",
                patience_s + ASK_TIMEOUT_S,
                name=name,
                grace_s=grace_s,
                kill_s=KILL_PATIENCE_S,
                supervisor_s=SUPERVISOR_PATIENCE_S,
            )
        return self._one(answer)

    async def remove(self, name: str) -> None:
        """Delete the directory of an ended process; fine when there is none.

        Raises:
            HostError: it still runs, or its directory cannot be deleted.
        """
        await self._ask("remove", name=checked_name(name))

    async def orphans(self) -> list[Orphan]:
        """Processes of ours whose directory is lost; ``stop`` ends them by name."""
        answer = await self._ask("orphans")
        return list(self._part(answer.get("orphans"), tuple[Orphan, ...]))

    async def read_log(self, name: str, offset: int, limit_bytes: int) -> LogChunk:
        """Part of a log, 1 MiB at most; a negative offset counts from the end.

        Raises:
            HostError: there is no such process.
        """
        limit_bytes = min(limit_bytes, _READ_MAX_BYTES)
        answer = await self._ask(
            "log", name=checked_name(name), offset=offset, limit=limit_bytes
        )
        return log_chunk(
            name,
            self._bytes(answer),
            offset=offset,
            size_bytes=self._part(answer.get("size"), int),
            start=self._part(answer.get("start"), int),
            ended=self._part(answer.get("ended"), bool),
        )

    # --- being told ---------------------------------------------------------------

    @property
    def seen(self) -> tuple[ProcessRecord, ...]:
        """Every process directory as it was last told of; never waits."""
        return tuple(self._shown(self._seen[name]) for name in sorted(self._seen))

    def subscribe(self, told: Callable[[], None]) -> Callable[[], None]:
        """Call ``told`` whenever ``seen`` has changed; returns what ends that."""
        # A key of its own, so that one that subscribes twice leaves once.
        key = object()
        self._subscribers[key] = told

        def end() -> None:
            self._subscribers.pop(key, None)

        return end

    def _came(self, told: Told) -> None:
        self._seen[told.name] = record_of(told)
        self._tell()

    def _went(self, name: str) -> None:
        if self._seen.pop(name, None) is not None:
            self._tell()

    def _all_told(self, told: tuple[Told, ...]) -> None:
        seen = {one.name: record_of(one) for one in told}
        if seen != self._seen:
            self._seen = seen
            self._tell()

    def _tell(self) -> None:
        for told in tuple(self._subscribers.values()):
            try:
                told()
            except Exception:
                # One that fails must not take the connection, and the others, with it.
                log.exception("news of %s were not taken", self._name)

    @contextlib.contextmanager
    def _shown_stopping(self, name: str) -> Iterator[None]:
        """While one is stopped; several may stop the same.

        A later process of that name may be there before the answer is: it is not meant.
        """
        seen = self._seen.get(name)
        ending = (name, seen.pid if seen else None)
        self._stopping[ending] += 1
        self._tell()
        try:
            yield
        finally:
            self._stopping[ending] -= 1
            if not self._stopping[ending]:
                del self._stopping[ending]
            self._tell()

    def _shown(self, record: ProcessRecord) -> ProcessRecord:
        endings = ((record.name, record.pid), (record.name, None))
        if not record.alive or not any(self._stopping[one] for one in endings):
            return record
        return msgspec.structs.replace(record, state=ProcessState.STOPPING)

    # --- inside -------------------------------------------------------------------

    def _records(self, answer: dict[str, Any]) -> list[ProcessRecord]:
        told = self._part(answer.get("records"), tuple[Told, ...])
        return [self._shown(record_of(one)) for one in told]

    def _one(self, answer: dict[str, Any]) -> ProcessRecord | None:
        if answer.get("record") is None:
            return None
        return self._shown(record_of(self._part(answer["record"], Told)))


async def _finished(work: Coroutine[Any, Any, T]) -> T:
    """Let short work end though we are cancelled meanwhile, so that none is half done.

    A start that was cancelled has then happened, and is recorded, or not at all.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
