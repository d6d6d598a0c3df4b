"""Processes of a machine, and everything else its agent does there."""

from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
import contextlib
import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, TypeVar

import msgspec

from backends.errors import DllmError, MachineError, PeerUnreachable
from backends.machine_queries import FoundFile, Outcome
from backends.machines.agent_channel import (
    AgentProcess,
    Channel,
    Hello,
    Refused,
    Stream,
    converted,
    error_of,
)
from backends.machines.facts import VARIABLES, MachineInfo, MemoryInfo, device_of
from backends.printable import printable
from backends.state import NOT_JSON, Device, LogChunk, ProcessRole, ProcessState, Value
from backends.state.models import Hashing, Seeding, WorkerCache
from backends.state.usage import MachineUsage
from backends.tasks import end_tasks

log = logging.getLogger(__name__)

T = TypeVar("T")
W = TypeVar("W", Hashing, Seeding)

FIND_TIMEOUT_S = 60.0
FIND_FILES_MAX = 16_384
FORKED_JOBS_AT_ONCE = 16
"""An agent forks for each, and refuses more than 64."""
# A crashing llama.cpp would first run gdb on itself, for seconds.
ALWAYS_ENV = {"GGML_NO_BACKTRACE": "1"}
WORK_S = 1.0
"""Between two words of how far long work is."""
WORK_TIMEOUT_S = 60.0
"""Beyond that: a disk that wakes up, and the keeping of what is known so far."""
UNCACHE_TIMEOUT_S = 60.0
NAMES_AT_ONCE = 4096
LOG_LIMIT_BYTES = 64 << 20
START_TIMEOUT_S = 30.0
"""Starting takes milliseconds; a program on a sleeping network disk takes longer."""
KILL_PATIENCE_S = 10.0
"""A process in an uninterruptible read of a slow disk dies when that returns."""
SUPERVISOR_PATIENCE_S = 2.0
# A log is read in one go; more would keep a slow link busy for too long.
_READ_MAX_BYTES = 1 << 20
PRIVATE = "private"
"""Name of the file, in a process directory, that only its process is to read."""
_NAME_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
_NAME = re.compile(f"(?:{_NAME_PART}/)?{_NAME_PART}")


class ProcessSpec(Value, frozen=True, kw_only=True):
    name: str
    """``cluster/name``, its directory below the run directory; one process each."""
    role: ProcessRole
    argv: tuple[str, ...]
    port: int | None = None
    """Loopback port it is to listen on; recorded, so that adoption knows it."""
    env: dict[str, str] = {}
    ignore_sigpipe: bool = False
    after: dict[str, str] = {}
    """Its dependencies: name to incarnation. Another incarnation of one of them needs
    a new process of this one too."""
    private: str = ""
    """A secret of the process: its file ``PRIVATE`` there, gone with it."""

    def __repr__(self) -> str:
        return f"ProcessSpec(name={self.name!r}, argv={self.argv!r})"

    @property
    def digest(self) -> str:
        """A hash of all of this: what runs is adopted only if it is equal."""
        told = msgspec.to_builtins(self)
        told["private"] = hashlib.sha256(self.private.encode()).hexdigest()
        # Not msgspec's: an argument need not be text, and this escapes what is none.
        whole = json.dumps(told, sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()[:32]


class ProcessRecord(Value, frozen=True, kw_only=True):
    """A process by its directory, now."""

    name: str
    role: ProcessRole
    state: ProcessState
    pid: int
    argv: tuple[str, ...]
    port: int | None = None
    started_at: float = 0.0
    """Unix seconds."""
    exit_code: int | None = None
    """None while it runs, and when it ended unseen (its supervisor was killed)."""
    exit_signal: int | None = None
    log_path: str = ""
    rss_bytes: int | None = None
    cpu_ms: int | None = None
    """Processor time since its start, of all its threads; None once it has ended."""
    digest: str = ""
    """Of the specification it was started from; empty when that is unknown."""

    @property
    def incarnation(self) -> str:
        """Tells this process from an earlier or later one of its name."""
        return f"{self.pid}@{self.started_at:.6f}"

    @property
    def alive(self) -> bool:
        return self.state is not ProcessState.EXITED


def pid_of(incarnation: str) -> int:
    return int(incarnation.partition("@")[0])


class Orphan(Value, frozen=True, kw_only=True):
    """A process of ours whose directory is lost or tells of another."""

    name: str
    """The name to stop it by."""
    pid: int
    argv: tuple[str, ...] = ()


class Meta(Value, frozen=True, kw_only=True):
    """Facts that an agent keeps with a process, so that adoption knows them."""

    role: ProcessRole = ProcessRole.OTHER
    port: int | None = None
    digest: str = ""


def checked_name(name: str) -> str:
    """The name itself, if a process can have it: ``cluster/name`` or ``name``."""
    if not _NAME.fullmatch(name):
        raise MachineError(f"{name!r} cannot be the name of a process")
    return name


def record_of(told: AgentProcess) -> ProcessRecord:
    try:
        meta = msgspec.json.decode(told.meta.encode(errors="replace"), type=Meta)
    except NOT_JSON:
        meta = Meta()
    state = ProcessState.NOT_RESPONDING if told.stopped else ProcessState.RUNNING
    state = ProcessState.STOPPING if told.stopping else state
    return ProcessRecord(
        name=told.name,
        role=meta.role,
        state=state if told.alive else ProcessState.EXITED,
        pid=told.pid,
        argv=told.argv,
        port=meta.port,
        digest=meta.digest,
        started_at=told.started_at,
        exit_code=told.code,
        exit_signal=told.signal,
        log_path=told.log,
        rss_bytes=told.rss_bytes,
        cpu_ms=told.cpu_ms,
    )


# The rest of a character is shorter than the longest UTF-8 sequence.
_REST_MAX_BYTES = 3


def log_chunk(
    name: str,
    data: bytes,
    *,
    offset: int,
    size_bytes: int,
    start: int,
    ended: bool = False,
) -> LogChunk:
    """Make a chunk of what was read at ``start``, when ``offset`` was asked for.

    Never splits a character: bytes of an unfinished one are left for the next read.
    They are taken if nothing else was read and the process has ended. An offset beyond
    the end means that the log was emptied or belongs to a new process: reading
    restarted at 0.
    """
    skipped = _continuation_bytes(data) if offset < 0 and start > 0 else 0
    text, pending = _decode(data[skipped:])
    if pending and not text and ended:
        text, pending = data[skipped:].decode(errors="replace"), 0
    return LogChunk(
        name=name,
        text=text,
        offset=start + skipped,
        next_offset=start + len(data) - pending,
        restarted=offset > size_bytes,
    )


def _continuation_bytes(data: bytes) -> int:
    head = data[:_REST_MAX_BYTES]
    return next((i for i, byte in enumerate(head) if byte & 0xC0 != 0x80), len(head))


def _decode(data: bytes) -> tuple[str, int]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return text, len(decoder.getstate()[0])


ASK_TIMEOUT_S = 15.0
RESTART_PAUSES_S = (0.02, 0.2, 1.0, 5.0)
"""Between attempts to start an agent that died again; the last one is repeated."""
STAYED_S = 5.0
"""An agent that ran for so long is started again after the shortest pause."""
LEASE_S = 240.0
"""An agent that hears nothing for so long ends: we may have lost power, which its sshd
may not notice for hours. Well beyond a minute, for which a cable may be out."""
RENEWALS = 4
"""In the time of one lease."""


class AgentSession:
    """Starts, finds and stops processes of this user on one machine, by its agent.

    It remembers nothing that matters: all state is in the directories there, so another
    one adopts what this one started. The first call starts the agent, and so does the
    next one after its end. If it ``restarts``, it does that by itself.

    ``open_stream`` starts an agent, and ``lease_s`` is how long that lives without a
    word of ours; None: while the stream stands.
    """

    def __init__(
        self,
        name: str,
        open_stream: Callable[[], Awaitable[Stream]],
        *,
        restarts: bool = False,
        lease_s: float | None = None,
    ) -> None:
        self.name = name
        self._open_stream = open_stream
        self._restarts = restarts
        self._lease_s = lease_s
        self._channel: Channel | None = None
        self._lock = asyncio.Lock()
        self._opening: asyncio.Task[None] | None = None
        self._closes = 0
        self._keeping: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._forked_jobs = asyncio.Semaphore(FORKED_JOBS_AT_ONCE)
        self._seen: dict[str, ProcessRecord] = {}
        self._stopping: Counter[tuple[str, int | None]] = Counter()
        self._endings: dict[asyncio.Future[ProcessRecord | None], str] = {}
        self._subscribers: dict[object, Callable[[], None]] = {}

    @property
    def _hello(self) -> Hello:
        return self._channel.hello if self._channel else Hello(hello="", protocol=0)

    @property
    def run_dir(self) -> str:
        """The folder of its process directories; empty before the first call."""
        return self._hello.run_dir

    @property
    def features(self) -> tuple[str, ...]:
        """The optional parts of the helper there; empty before the first call."""
        return self._hello.features

    @property
    def version(self) -> str:
        return self._hello.version

    @property
    def pid(self) -> int:
        """Of the helper there; 0 before the first call."""
        return self._hello.pid

    @property
    def is_asked(self) -> bool:
        return self._channel is not None and self._channel.is_asked

    # --- the agent ------------------------------------------------------------------

    async def connect(self) -> None:
        await self._connected()

    async def close(self) -> None:
        self._closes += 1
        await end_tasks(self._keeping, self._renewing, self._opening)
        self._keeping = self._renewing = None
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _connected(self) -> Channel:
        closes = self._closes
        async with self._lock:
            if closes != self._closes:
                raise self._closed()
            if self._channel is None or self._channel.ended.is_set():
                self._opening = asyncio.create_task(self._open())
                try:
                    await self._opening
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if closes == self._closes or (task and task.cancelling()):
                        raise
                    raise self._closed() from None
                if self._restarts and self._keeping is None:
                    self._keeping = asyncio.create_task(self._keep())
            assert self._channel is not None
            return self._channel

    def _closed(self) -> PeerUnreachable:
        return PeerUnreachable(f"The helper on {self.name} was ended meanwhile")

    async def _open(self) -> None:
        if self._channel is not None:
            await self._channel.close()
        # News may be read in one go with the answer they are newer than.
        early: list[dict[str, Any]] = []
        listed = False

        def told(message: dict[str, Any]) -> None:
            if listed:
                self._pushed(message)
            else:
                early.append(message)

        channel = Channel(self.name, await self._open_stream(), told)
        await channel.open()
        try:
            answer = await channel.ask("watch", {}, ASK_TIMEOUT_S)
            await end_tasks(self._renewing)
        except BaseException as error:
            await channel.close()
            if isinstance(error, Refused):
                raise MachineError(f"{error} on {self.name}") from error
            raise
        records = converted(answer.get("records"), tuple[AgentProcess, ...]) or ()
        seen = {one.name: record_of(one) for one in records}
        if seen != self._seen:
            self._seen = seen
            self._tell()
        listed = True
        for message in early:
            self._pushed(message)
        if self._lease_s is not None:
            renewed = _renewed(channel, self._lease_s)
            self._renewing = asyncio.create_task(renewed)
        # Here: whoever waits for this may have left.
        self._channel = channel

    async def _keep(self) -> None:
        """Start it again whenever it ended: what changes is to be told of."""
        now_s = asyncio.get_running_loop().time
        attempt = 0
        while True:
            begun_s = now_s()
            if self._channel is not None:
                await self._channel.ended.wait()
            if now_s() - begun_s >= STAYED_S:
                attempt = 0
            await asyncio.sleep(
                RESTART_PAUSES_S[min(attempt, len(RESTART_PAUSES_S) - 1)]
            )
            attempt += 1
            with contextlib.suppress(DllmError, OSError):
                await self._connected()

    # --- processes ----------------------------------------------------------------

    async def start(self, spec: ProcessSpec) -> ProcessRecord:
        """Start a process in its own directory, detached from us.

        Cancelled meanwhile it has happened, and is ``seen``, or not at all.
        """
        starting = asyncio.ensure_future(self._started(spec))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            raise

    async def _started(self, spec: ProcessSpec) -> ProcessRecord:
        # A stop that nobody waits for any more would take the new process, too.
        if ending := [one for one, name in self._endings.items() if name == spec.name]:
            await asyncio.wait(ending)
        meta = Meta(role=spec.role, port=spec.port, digest=spec.digest)
        answer = await self._ask(
            "start",
            START_TIMEOUT_S,
            name=checked_name(spec.name),
            argv=spec.argv,
            env={**ALWAYS_ENV, **spec.env},
            ignore_sigpipe=spec.ignore_sigpipe,
            log_limit=LOG_LIMIT_BYTES,
            meta=msgspec.json.encode(meta).decode(),
            **({"private": spec.private} if spec.private else {}),
        )
        record = self._one(answer)
        if record is None:
            raise MachineError(f"{spec.name} did not start on {self.name}: it is gone")
        seen = self._seen.get(spec.name)
        if seen is None or seen.incarnation != record.incarnation:
            # The news of it may come late, after a stop of everything that is seen.
            self._seen[spec.name] = record
            self._tell()
        return record

    async def record(self, name: str) -> ProcessRecord | None:
        """The process of that name, alive or ended; None when there is none.

        One whose record is damaged appears as ended, with pid 0.
        """
        answer = await self._ask("records", name=checked_name(name))
        return next(iter(self._records(answer)), None)

    async def records(self) -> list[ProcessRecord]:
        return self._records(await self._ask("records"))

    async def stop(self, name: str, grace_s: float = 5.0) -> ProcessRecord | None:
        """TERM its process group, wait, KILL, and see that it is gone.

        Takes everything the process started with it, also when its directory is lost.
        Stopping what has ended, or twice at once, is fine. An agent goes on with what
        it began: cancelling this only ends the waiting.
        """
        ending = asyncio.ensure_future(self._end(checked_name(name), grace_s))
        self._endings[ending] = name
        ending.add_done_callback(self._ended)
        return await asyncio.shield(ending)

    def _ended(self, ending: asyncio.Future[ProcessRecord | None]) -> None:
        self._endings.pop(ending, None)
        if not ending.cancelled() and (error := ending.exception()):
            # Nobody need be waiting any more.
            log.info("an ending on %s: %s", self.name, error)

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
        await self._ask("remove", name=checked_name(name))

    async def orphans(self) -> list[Orphan]:
        answer = await self._ask("orphans")
        return list(self._part(answer.get("orphans"), tuple[Orphan, ...]))

    async def read_log(self, name: str, offset: int, limit_bytes: int) -> LogChunk:
        """Part of a log, 1 MiB at most; a negative offset counts from the end."""
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

    def _pushed(self, message: dict[str, Any]) -> None:
        if message.get("push") == "record":
            told = converted(message.get("record"), AgentProcess)
            if told is not None:
                self._seen[told.name] = record_of(told)
                self._tell()
        elif message.get("push") == "removed":
            self._seen.pop(str(message.get("name")), None)
            self._tell()

    def _tell(self) -> None:
        for told in tuple(self._subscribers.values()):
            try:
                told()
            except Exception:
                # One that fails must not take the connection, and the others, with it.
                log.exception("news of %s were not taken", self.name)

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

    # --- the machine ---------------------------------------------------------------

    async def free_port(self) -> int:
        """A loopback port nobody listens on, not given to another caller just now."""
        return self._part((await self._ask("free_port")).get("port"), int)

    async def listens(self, pid: int, port: int) -> bool:
        answer = await self._ask("listens", pid=pid, port=port)
        return self._part(answer.get("listens"), bool)

    async def port_owner(self, port: int) -> str | None:
        """``name (pid 42)`` of whoever listens on a port; None when it is free."""
        answer = await self._ask("port_owner", port=port)
        if not self._part(answer.get("used"), bool):
            return None
        if "pid" not in answer:
            return "another process"
        pid = self._part(answer["pid"], int)
        return f"{self._part(answer.get('name'), str)} (pid {pid})"

    async def memory(self) -> Device:
        """The machine's main memory as a CPU device; limits of containers count."""
        told = self._part(await self._ask("memory"), MemoryInfo)
        return device_of(told, self.name)

    async def usage(self) -> MachineUsage:
        """The figures of the machine since the last such question."""
        return self._part(await self._ask("usage"), MachineUsage)

    async def machine(self) -> MachineInfo:
        answer = await self._ask_forked_job("machine", variables=VARIABLES)
        return self._part(answer, MachineInfo)

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        touch: int = 0,
        until: Sequence[str] = (),
    ) -> Outcome:
        """As ``backends.machine_queries.MachineQueries`` says."""
        answer = await self._ask_forked_job(
            "run",
            timeout_s + ASK_TIMEOUT_S,
            argv=tuple(argv),
            env={**ALWAYS_ENV, **(env or {})},
            timeout_s=timeout_s,
            touch=touch,
            until=tuple(until),
        )
        return self._part(answer, Outcome)

    async def find(
        self,
        folders: Sequence[str],
        *,
        depth: int = 0,
        suffix: str = "",
        whole: bool = False,
    ) -> list[FoundFile]:
        """The files below some folders there whose names end like that, by path.

        Raises:
            MachineError: there are too many to list, and the ``whole`` list is wanted.
        """
        answer = await self._ask_forked_job(
            "find",
            FIND_TIMEOUT_S,
            folders=tuple(folders),
            depth=depth,
            suffix=suffix,
            limit=FIND_FILES_MAX,
        )
        if whole and answer.get("complete") is not True:
            where = printable(folders[0])
            raise MachineError(f"{self.name} has too many files in {where} to list")
        return list(self._part(answer.get("files"), tuple[FoundFile, ...]))

    async def identity(self, path: str) -> str:
        """Identify the bytes of a file there, as ``models.identity`` defines it."""
        answer = await self._ask_forked_job("identity", FIND_TIMEOUT_S, path=path)
        return self._part(answer.get("identity"), str)

    async def read(self, path: str) -> bytes:
        return self._bytes(await self._ask_forked_job("read", path=path))

    # --- models --------------------------------------------------------------------

    def hashing(self, path: str) -> AsyncGenerator[Hashing, None]:
        """Hash every tensor of a model there: how far that is, at last the hashes."""
        return self._sliced("tensors", Hashing, lambda told: told.done_bytes, path=path)

    def seeding(
        self, path: str, directory: str = "", *, dry: bool = False
    ) -> AsyncGenerator[Seeding, None]:
        """Fill the cache of ``rpc-server -c`` from a model there; how far that is.

        Only whole files, compared with what was hashed, get their names; given up, it
        goes on where it was.

        An empty ``directory`` is where the agent's user has it. ``dry`` only finds out
        how much it would be.
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
        """List the cache of ``rpc-server -c``; empty if there is no such directory."""
        answer = await self._ask_forked_job("cached", directory=directory)
        return self._part(answer, WorkerCache)

    async def uncache(self, names: Iterable[str], directory: str = "") -> int:
        """Delete files of that cache; the bytes freed."""
        left, freed_bytes = list(names), 0
        while left:
            some, left = left[:NAMES_AT_ONCE], left[NAMES_AT_ONCE:]
            answer = await self._ask_forked_job(
                "uncache", UNCACHE_TIMEOUT_S, directory=directory, names=some
            )
            freed_bytes += self._part(answer.get("freed_bytes"), int)
        return freed_bytes

    # --- inside -------------------------------------------------------------------

    def _records(self, answer: dict[str, Any]) -> list[ProcessRecord]:
        told = self._part(answer.get("records"), tuple[AgentProcess, ...])
        return [self._shown(record_of(one)) for one in told]

    def _one(self, answer: dict[str, Any]) -> ProcessRecord | None:
        if answer.get("record") is None:
            return None
        return self._shown(record_of(self._part(answer["record"], AgentProcess)))

    async def _ask(
        self, verb: str, within_s: float = ASK_TIMEOUT_S, **members: Any
    ) -> dict[str, Any]:
        try:
            channel = await self._connected()
            return await channel.ask(verb, members, within_s)
        except Refused as error:
            name = str(members.get("name", ""))
            raise error_of(error.complaint, name, self.name) from error

    async def _ask_forked_job(
        self, verb: str, within_s: float = ASK_TIMEOUT_S, **members: Any
    ) -> dict[str, Any]:
        async with self._forked_jobs:
            return await self._ask(verb, within_s, **members)

    def _bytes(self, answer: dict[str, Any]) -> bytes:
        try:
            return base64.b64decode(self._part(answer.get("data"), str), validate=True)
        except (binascii.Error, ValueError) as error:
            raise MachineError(f"{self.name} gave an answer without sense") from error

    def _part(self, value: object, kind: type[T]) -> T:
        found = converted(value, kind)
        if found is None:
            raise MachineError(f"{self.name} gave an answer without sense")
        return found

    async def _sliced(
        self, verb: str, kind: type[W], progress: Callable[[W], int], **members: Any
    ) -> AsyncGenerator[W, None]:
        """Ask again and again until it is complete; the agent goes on where it was."""
        work_s, before = WORK_S, 0
        while True:
            answer = await self._ask_forked_job(
                verb, work_s + WORK_TIMEOUT_S, work_s=work_s, **members
            )
            told = self._part(answer, kind)
            yield told
            if told.complete:
                return
            # Where nothing can be kept, all has to be done in one go.
            work_s = WORK_S if progress(told) > before else work_s * 2
            before = max(before, progress(told))


async def _renewed(channel: Channel, lease_s: float) -> None:
    while not channel.ended.is_set():
        # Silence, or the end of the channel; the way may come back in time.
        with contextlib.suppress(MachineError):
            await channel.ask("lease", {"seconds": lease_s}, ASK_TIMEOUT_S)
        await asyncio.sleep(lease_s / RENEWALS)
