"""One llama-server and all it needs: its load, its speed, and the end of any part."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from msgspec.structs import replace

from backends.controller.builder import Built
from backends.controller.calibration_store import RunRecorder
from backends.controller.context import ClusterContext
from backends.controller.exit_reasons import failure_of
from backends.controller.links import Links
from backends.controller.snapshot_store import SnapshotStore
from backends.engine.llama_client import Counts, Health, ServerClient, Slot
from backends.engine.logs import LoadLog
from backends.errors import DllmError, ProcessFailed
from backends.machine_names import LOCAL
from backends.machines.agent import AgentSession, ProcessRecord, pid_of
from backends.machines.machine import Machine
from backends.planning.blueprint import SERVER, process_name, short_name
from backends.split.device_memory import plan_loads
from backends.split.flags import is_relayed, used_workers
from backends.split.layout import format_layers
from backends.split.measured import (
    ServerLog,
    format_in_part,
    held_split,
    measured_split,
)
from backends.state import (
    ChatTimings,
    Failure,
    Lab,
    MeasuredSplit,
    ModelInfo,
    Plan,
    Speed,
)
from backends.units import format_bytes, format_seconds

log = logging.getLogger(__name__)

# A dying worker takes llama-server with it; give both the time to be seen dead, so that
# the worker is blamed.
SETTLE_S = 0.4
GONE = "Something else on {machine} has deleted it; launch again to make it anew."
POLL_S = 0.1
# Every look at another machine's log is a round trip.
POLL_REMOTE_S = 0.5
READ_BYTES = 1 << 20
SPEED_S = 0.5
LOOK_S = 1.0
SPEED_IDLE_S = 30.0
"""While nothing moves, every question is a line of llama-server's log."""
LOG_READ_BYTES = 1 << 16
# All that a question about the slots leaves behind.
ASKED = "all slots are idle"


class Watch:
    """Looks after the processes and ways of one cluster, without polling.

    Machines report by themselves which process ended. The order of ``built`` is that
    of blame: workers before relays before llama-server, which dies of any of them.
    """

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        self._reported: DllmError | None = None
        self.built: Built | None = None

    def report(self, error: DllmError) -> None:
        self._reported = error
        self._context.news.set()

    def forget(self) -> None:
        """Drop what was reported: all of it is about to be built anew."""
        self._reported = None

    async def require(self) -> None:
        """See that all is there; who caused the end of others is blamed.

        Raises:
            ProcessFailed: a process ended; it carries the evidence.
            PeerUnreachable: the connection to a machine broke.
            DllmError: what was reported.
        """
        reported, self._reported = self._reported, None
        if reported is not None:
            raise reported
        if self._first_ended() is None:
            return
        await asyncio.sleep(SETTLE_S)
        ended = self._first_ended()
        if ended is None:
            return
        machine, name, record = ended
        if record is None:
            raise ProcessFailed(
                Failure(
                    what=f"The process directory of {short_name(name)} is gone",
                    hint=GONE.format(machine=machine.name),
                    process=short_name(name),
                    at=time.time(),
                )
            )
        raise ProcessFailed(await failure_of(machine.agent, record))

    async def until_trouble(self) -> NoReturn:
        """Look whenever there is news; returns only by raising, as ``require`` does."""
        while True:
            self._context.news.clear()
            await self.require()
            await self._context.news.wait()

    def _first_ended(self) -> tuple[Machine, str, ProcessRecord | None] | None:
        self._context.ways.require_open()
        for node in self.built.blueprint.nodes if self.built else ():
            machine = self._context.machines.get(node.machine)
            seen = (one for one in machine.agent.seen if one.name == node.spec.name)
            record = next(seen, None)
            assert self.built is not None
            expected = self.built.incarnations[node.short_name]
            if record is None or record.incarnation != expected or not record.alive:
                return machine, node.spec.name, record
        return None


class Load:
    """Waits for one load, and compares the result with the plan."""

    def __init__(
        self, context: ClusterContext, watch: Watch, plan: Plan, built: Built
    ) -> None:
        self._watch = watch
        self._plan = plan
        self._built = built
        self._steps, self._links = context.steps, context.links
        self._agent = context.machines.get(plan.head).agent
        self._log_name = process_name(context.name, SERVER)
        self._offset = 0
        self._log = LoadLog()

    async def measured(self, port: int, known: MeasuredSplit | None) -> MeasuredSplit:
        """Wait, without limit, until llama-server is healthy or somebody dies."""
        with self._steps.step("load"):
            await self._healthy(port)
        with self._steps.step("verify"):
            measured = known or await self._measure()
            self._steps.update("verify", detail=_verdict(measured, self._plan))
        return measured

    async def _healthy(self, port: int) -> None:
        progress = LoadProgress(
            self._plan,
            self._built.facts.model,
            self._links.weight_bytes,
            self._links.home_bytes,
        )
        pause_s = POLL_S if self._plan.head == LOCAL else POLL_REMOTE_S
        async with ServerClient(port) as client:
            while True:
                await self._watch.require()
                await self._read()
                self._tell(progress.measure())
                if await client.health() is Health.OK:
                    # Another server may answer at the port of ours.
                    server = self._built.blueprint.nodes[-1].spec
                    pid = pid_of(self._built.server)
                    if await self._agent.listens(pid, server.port or 0):
                        break
                await asyncio.sleep(pause_s)
        for worker, one in progress.measure().items():
            self._steps.done(f"load:{worker}", one.text if one.arrived_bytes else "")

    async def _read(self) -> bool:
        chunk = await self._agent.read_log(self._log_name, self._offset, READ_BYTES)
        self._offset = chunk.next_offset
        self._log.feed(chunk.text)
        return bool(chunk.text)

    def _tell(self, arrived: Mapping[str, WorkerLoad]) -> None:
        whole = overall(arrived)
        text = whole.text if whole.arrived_bytes else ""
        self._steps.update(
            "load",
            detail=" · ".join(filter(None, (self._log.phase, text))),
            progress=whole.fraction if whole.arrived_bytes else None,
        )
        for worker, one in arrived.items():
            if one.arrived_bytes:
                self._steps.go_on(f"load:{worker}", one.text, one.fraction)

    async def _measure(self) -> MeasuredSplit:
        while await self._read():
            pass
        plan, said = self._plan, self._log
        placement = self._built.blueprint.placement
        if is_relayed(plan):
            weights = await self._links.weights()
            told = ServerLog(said.buffers, said.offloaded)
            return held_split(plan, placement, self._built.facts.model, weights, told)
        return measured_split(
            plan, placement, said.layer_devices, said.device_endpoints, said.buffers
        )


def _verdict(measured: MeasuredSplit, plan: Plan) -> str:
    if measured.mismatches:
        return measured.mismatches[0]
    n_layer = plan.split.n_layer
    parts = format_in_part(measured.in_part, n_layer)
    return " · ".join(filter(None, (format_layers(measured.layers, n_layer), parts)))


class Serving:
    """Reads the speed of the llama-server that serves; ``store`` and ``links`` get it.

    Each request while llama-server is idle becomes a line of its log. So it is asked
    only after bytes have moved on the links, or, without links, after its log grew.
    """

    def __init__(
        self, store: SnapshotStore, links: Links, runs: RunRecorder | None = None
    ) -> None:
        self._store = store
        self._links = links
        self._runs = runs
        self._carried: Mapping[str, int] = {}
        self._offset = -1
        self.meter = SpeedMeter()

    async def follow(self, port: int, agent: AgentSession, log_name: str) -> NoReturn:
        """Read the speed until cancelled; ``agent`` has the log of that name."""
        self.meter = SpeedMeter()
        self._carried, self._offset = {}, -1
        if self._runs is None:
            await self._read_on(port, agent, log_name)
        self._runs.begin()
        try:
            await self._read_on(port, agent, log_name)
        finally:
            await self._runs.end()

    async def _read_on(self, port: int, agent: AgentSession, log_name: str) -> NoReturn:
        speed = Speed()
        while True:
            try:
                async with ServerClient(port) as client:
                    while True:
                        speed = await self._reading(client, speed)
                        self._store.update(speed=speed)
                        self._links.heed(speed)
                        if self._runs is not None:
                            self._runs.look(speed)
                        if speed.requests_active:
                            await asyncio.sleep(SPEED_S)
                        else:
                            await self._quiet(agent, log_name)
            except Exception:
                # No figure is worth ending what serves.
                log.exception("the speed was not read")
                await asyncio.sleep(SPEED_S)

    async def _reading(self, client: ServerClient, before: Speed) -> Speed:
        """Asks for the server's own count only if relays do not see every token.

        Each answer of its ``/metrics`` begins the averages in it anew, for all readers.
        """
        counts = Counts()
        if self._links.rows() is None or before.speculative or not before.slots:
            counts = await client.counts()
        slots = await client.slots()
        drafted = any(slot.speculative for slot in slots)
        rows = None if drafted else self._links.rows()
        now = time.monotonic()
        self.meter.under(self._links.labs())
        if len(slots) == 1:
            self.meter.counted(counts)
        speed = self.meter.read(slots, now, counts.finished_tokens, rows)
        if not speed.speculative:
            return speed
        return replace(speed, acceptance=counts.acceptance)

    def answered(self, timings: ChatTimings) -> None:
        """Take the figures of an answer that ended, or was stopped."""
        self.meter.under(self._links.labs())
        self.meter.answered(timings)

    async def _quiet(self, agent: AgentSession, log_name: str) -> None:
        # After so long something may have been missed.
        for _ in range(round(SPEED_IDLE_S / LOOK_S)):
            await asyncio.sleep(LOOK_S)
            forgot = self.meter.under(self._links.labs())
            if forgot or await self.moved(agent, log_name):
                return

    async def moved(self, agent: AgentSession, log_name: str) -> bool:
        """Return true if llama-server did anything since the last call."""
        if carried := self._links.carried_bytes():
            before, self._carried = self._carried, carried
            return carried != before
        try:
            chunk = await agent.read_log(log_name, self._offset, LOG_READ_BYTES)
        except DllmError:
            # Whoever watches the processes says what is wrong.
            return False
        self._offset = chunk.next_offset
        return any(line and ASKED not in line for line in chunk.text.splitlines())


# Below this the estimate of what is left jumps too much to be of use.
ETA_AFTER_S = 1.0
HEADERS_BYTES = 64 << 10


class WorkerLoad(NamedTuple):
    arrived_bytes: int
    total_bytes: int
    bytes_per_s: float | None
    """Mean since its first byte; None while that says little."""
    home_bytes: int | None = None
    """The arrived bytes from its own disk; None if the head sends all of them."""

    @property
    def fraction(self) -> float | None:
        return self.arrived_bytes / self.total_bytes if self.total_bytes else None

    @property
    def text(self) -> str:
        """``1.2 GiB of 9.8 GiB · 85.0 MiB/s · 1 m 44 s left``, and what stayed home."""
        got, total = format_bytes(self.arrived_bytes), format_bytes(self.total_bytes)
        text = f"{got} of {total}"
        if self.home_bytes is not None:
            sent = format_bytes(self.arrived_bytes - self.home_bytes)
            text += f" · {format_bytes(self.home_bytes)} home, {sent} sent"
        left_bytes = self.total_bytes - self.arrived_bytes
        if self.bytes_per_s and left_bytes:
            left = format_seconds(left_bytes / self.bytes_per_s)
            text += f" · {format_bytes(self.bytes_per_s)}/s · ~{left} left"
        return text


class LoadProgress:
    """Measures one load of a plan's weights, for any kind of worker.

    ``carried`` gives the bytes that each worker's relay passed on. ``home`` gives the
    part of them that came from the worker's own disk, if that is known.
    """

    def __init__(
        self,
        plan: Plan,
        model: ModelInfo,
        carried: Callable[[], Mapping[str, int]],
        home: Callable[[], Mapping[str, int]] = dict,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._carried = carried
        self._home = home
        self._clock = clock
        self._zero: dict[str, int] = {}
        self._home_zero: dict[str, int] = {}
        self._first_at: dict[str, float] = {}
        loads = plan_loads(model, plan)
        self._expected = {
            worker.name: sum(
                load.weight_bytes for load in loads if load.device in worker.device_ids
            )
            for worker in used_workers(plan)
        }

    def measure(self) -> dict[str, WorkerLoad]:
        """Return the progress of each worker; its first reading is its zero point."""
        home = self._home()
        return {
            worker: self._arrived(worker, carried, home.get(worker))
            for worker, carried in self._carried().items()
            if worker in self._expected
        }

    def _arrived(self, worker: str, carried: int, home: int | None) -> WorkerLoad:
        total = self._expected[worker]
        zero = self._zero.setdefault(worker, carried)
        kept = None
        if home is not None:
            kept = home - self._home_zero.setdefault(worker, home)
        # Requests carry headers and questions besides the weights, and before them.
        got = max(0, min(carried - zero, total))
        if got < min(HEADERS_BYTES, total):
            return WorkerLoad(0, total, None)
        now = self._clock()
        elapsed = now - self._first_at.setdefault(worker, now)
        rate = got / elapsed if elapsed > ETA_AFTER_S else None
        return WorkerLoad(got, total, rate, None if kept is None else min(kept, got))


def overall(arrived: Mapping[str, WorkerLoad]) -> WorkerLoad:
    """All workers together: the slowest decides what is left, so rates add up."""
    kept = [one.home_bytes for one in arrived.values() if one.home_bytes is not None]
    rates = [one.bytes_per_s for one in arrived.values() if one.bytes_per_s]
    return WorkerLoad(
        sum(one.arrived_bytes for one in arrived.values()),
        sum(one.total_bytes for one in arrived.values()),
        sum(rates) if rates else None,
        sum(kept) if kept else None,
    )


# Long enough to be steady, short enough to follow a change.
WINDOW_S = 3.0


# Of a counter with six significant digits, so that a difference is 5 % off at most.
TOLD_PART = 2e-4


def _is_told(difference: float, counter: float) -> bool:
    return difference > 0 and difference >= TOLD_PART * counter


class _Reading(NamedTuple):
    at_s: float
    tokens: int


class _Run:
    """An answer, or several at a time, from its first token to its last."""

    def __init__(self, now: _Reading) -> None:
        self._before = self._first = self._latest = now

    def see(self, now: _Reading) -> None:
        is_begun = self._latest is not self._before
        if now.tokens > self._latest.tokens:
            self._latest = now
            if not is_begun:
                self._first = now
        elif not is_begun:
            # The prompt is still read.
            self._before = self._first = self._latest = now

    def end(self, now: _Reading) -> float | None:
        """Return the mean rate; a reading after the end counts a pause as well."""
        if self._latest is self._before:
            self._latest = self._first = now
        begun = self._before if self._latest is self._first else self._first
        tokens = self._latest.tokens - begun.tokens
        took_s = self._latest.at_s - begun.at_s
        # A single token has no speed: reading a conversation ahead makes one.
        return tokens / took_s if tokens > 1 and took_s > 0 else None


def _fullest(slots: Iterable[Slot]) -> Slot:
    return max(slots, key=lambda slot: slot.ctx_used, default=Slot(id=0))


class SpeedMeter:
    """Turns readings of the slots into a rate; pure but for what it remembers."""

    def __init__(self) -> None:
        self._decoded: dict[int, tuple[int, int]] = {}
        self._total = 0
        self._rows: int | None = None
        self._readings: deque[_Reading] = deque()
        self._run: _Run | None = None
        self._last: float | None = None
        self._last_slot = 0
        self._made = -1, 0
        """The task of that slot, and the tokens it was seen to have made."""
        self._last_depth = 0
        self._told = False
        """True if the server itself reported that figure, for its last answer."""
        self._tasks: set[int] = set()
        self._prompt: float | None = None
        self._prompt_tokens = 0
        self._counts = Counts()
        self._labs: dict[str, Lab | None] = {}
        self._mixed: set[int] = set()
        """Tasks during which labs changed: their own figures are of both."""

    def under(self, labs: Mapping[str, Lab | None]) -> bool:
        """Forget speeds of other labs than these, by worker; whether any changed."""
        before, self._labs = self._labs, {**self._labs, **labs}
        changed = any(self._labs[worker] != lab for worker, lab in before.items())
        if changed:
            self._last = self._prompt = self._run = None
            self._told = False
            self._mixed |= self._tasks
            self._readings.clear()
        return changed

    def answered(self, timings: ChatTimings) -> None:
        """Take the figures of a whole answer, which may fit between two readings."""
        if self._mixed:
            return
        self._last = timings.tok_per_s or self._last
        self._told = timings.tok_per_s > 0
        if timings.prompt_tok_per_s is not None:
            self._prompt = timings.prompt_tok_per_s
            self._prompt_tokens = timings.new_prompt_tokens

    def counted(self, counts: Counts) -> None:
        """Take the times that a server of one slot counted since the last call."""
        if counts.finished_tokens is None:
            # It was not asked, or did not tell.
            return
        before, self._counts = self._counts, counts
        if self._mixed:
            return
        tokens = counts.finished_tokens - (before.finished_tokens or 0)
        generating_s = counts.generating_s - before.generating_s
        if tokens > 1 and _is_told(generating_s, counts.generating_s):
            self._last, self._told = tokens / generating_s, True
        prompt_tokens = counts.prompt_tokens - before.prompt_tokens
        prompt_s = counts.prompt_s - before.prompt_s
        if prompt_tokens > 0 and _is_told(prompt_s, counts.prompt_s):
            self._prompt, self._prompt_tokens = prompt_tokens / prompt_s, prompt_tokens

    def read(
        self,
        slots: Sequence[Slot],
        at: float,
        finished: int | None = None,
        rows: int | None = None,
    ) -> Speed:
        """Take one reading at ``at`` (monotonic seconds).

        ``finished`` are the tokens of all requests that ended, as the server counted
        them before the slots were read; ``rows`` are the tokens that relays saw come
        out. Without either, what a slot made after its last reading is not seen.
        """
        active = [slot for slot in slots if slot.is_processing]
        if moved := active or [slot for slot in slots if self._is_moved(slot)]:
            newest = _fullest(moved)
            self._last_slot = newest.id
            # Some servers forget how many an idle slot has made.
            if newest.n_decoded or newest.task != self._made[0]:
                self._made = newest.task, newest.n_decoded
        by_slots = sum(map(self._new, slots))
        by_rows = self._new_rows(rows)
        if finished is not None:
            # A request that ends between both questions is in neither answer, and
            # the server's count comes in steps once it is long.
            counted = finished + sum(slot.n_decoded for slot in active)
            self._total = max(self._total, counted)
        else:
            self._total += by_slots if by_rows is None else by_rows
        rate = self._rate(at, generating=bool(active))
        self._follow({slot.task for slot in active}, _Reading(at, self._total))
        fullest = _fullest(slots)
        if not active:
            last = next((s for s in slots if s.id == self._last_slot), fullest)
            self._last_depth = last.ctx_used - (self._made[1] + 1) // 2
        return Speed(
            tok_per_s=rate if active else None,
            last_tok_per_s=self._last,
            prompt_tok_per_s=self._prompt,
            prompt_tokens=self._prompt_tokens,
            requests_active=len(active),
            slots=len(slots),
            tokens=self._total,
            speculative=any(slot.speculative for slot in slots),
            ctx_used=fullest.ctx_used,
            last_depth=self._last_depth,
        )

    def _follow(self, tasks: set[int], now: _Reading) -> None:
        """End the run whose tasks are gone, and begin one with others."""
        if not tasks and not self._tasks:
            # An answer's own figures come a reading late at most.
            self._mixed.clear()
        if not tasks & self._tasks:
            mean = self._run.end(now) if self._run and not self._told else None
            self._last = mean or self._last
            self._run, self._tasks = None, set()
        if self._run is None:
            self._run = _Run(now) if tasks else None
        else:
            self._run.see(now)
        if not tasks <= self._tasks:
            # The reported figure is of the answer before.
            self._told = False
            if not tasks & self._mixed:
                self._mixed.clear()
        self._tasks |= tasks

    def _new_rows(self, rows: int | None) -> int | None:
        before, self._rows = self._rows, rows or 0
        return None if rows is None or before is None else max(rows - before, 0)

    def _is_moved(self, slot: Slot) -> bool:
        return self._decoded.get(slot.id) != (slot.task, slot.n_decoded)

    def _new(self, slot: Slot) -> int:
        # A new task starts at 0.
        task, before = self._decoded.get(slot.id, (slot.task, 0))
        new = slot.n_decoded - (before if task == slot.task else 0)
        self._decoded[slot.id] = (slot.task, slot.n_decoded)
        return max(new, 0)

    def _rate(self, at: float, *, generating: bool) -> float | None:
        """Tokens per second over the window; None when nothing was generated in it."""
        if not generating and not self._readings:
            return None
        self._readings.append(_Reading(at, self._total))
        while self._readings and at - self._readings[0].at_s > WINDOW_S:
            self._readings.popleft()
        first_at, first_total = self._readings[0]
        if not generating:
            self._readings.clear()
        if at <= first_at or self._total == first_total:
            return None
        return (self._total - first_total) / (at - first_at)
