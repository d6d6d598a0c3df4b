"""A record played again: what a client was told, told anew by a clock that can turn.

``FlightRecord`` is the file, ``ReplayClock`` the moment of it that is now.
``ReplayConnection`` stands where a client has its way to the controller.
"""

from __future__ import annotations

import asyncio
import io
import time
import zlib
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from backends.client.calls import ControllerConnection
from backends.client.client import ControllerClient
from backends.client.flight_recorder import (
    CHATS,
    FORMAT,
    GZIP,
    LOGS,
    RACES,
    SNAPSHOTS,
    SWEEPS,
    UNPACKED_BYTES_MAX,
    EntryKind,
    RecordEntry,
    RecordHeader,
    digest,
)
from backends.errors import ControllerError, DllmError, UsageError
from backends.paths import Paths
from backends.state import (
    NOT_JSON,
    ChatFrame,
    ClusterSnapshot,
    Event,
    EventTone,
    LogChunk,
    MarkKind,
    RecordMark,
    Value,
)
from backends.state.delta import Frame, applied
from backends.state.races import Race, RaceDelta, race_applied
from backends.state.sweeps import Sweep

F = TypeVar("F", bound=Value)
S = TypeVar("S")
T = TypeVar("T")

LONGEST_S = 1e7
READ_BYTES = 1 << 20
WAIT_MIN_S = 0.001
_REMEDY = "Give a file that dllm-tui --record wrote."


class ReplayRefused(UsageError):
    def __init__(self) -> None:
        super().__init__("This is a replay: nothing runs here that could be changed")


def _unreadable(error: Exception) -> DllmError:
    what = f"A part of this record is not understood ({error})"
    return DllmError(what, "It is of another release of dllm-tui, or was changed.")


class NotRecorded(DllmError):
    def __init__(self, what: str) -> None:
        super().__init__(f"This replay has no {what}: it was not asked for then")


@dataclass
class RecordedStream:
    """The frames of one stream, by time."""

    times: list[float] = field(default_factory=list)
    entries: list[RecordEntry] = field(default_factory=list)
    _last: tuple[int, Any] = (-1, None)

    def index(self, at_s: float) -> int:
        """Of the frame that was the newest then; -1 before the first."""
        return bisect_right(self.times, at_s) - 1

    def state(
        self, index: int, kind: type[F], applied: Callable[[F, S | None], S]
    ) -> S | None:
        """The state after a frame; None after the stream's end.

        Begins at the whole state before it, or goes on from the state asked for last.
        """
        start = index
        while start > 0 and self.entries[start].kind is EntryKind.FRAME:
            start -= 1
        before, state = self._last
        if start <= before <= index:
            start = before + 1
        else:
            state = None
        for entry in self.entries[start : index + 1]:
            if entry.kind is EntryKind.END:
                state = None
                continue
            try:
                state = applied(msgspec.json.decode(entry.content, type=kind), state)
            except NOT_JSON as error:
                raise _unreadable(error) from error
        self._last = index, state
        found: S | None = state
        return found


class FlightRecord:
    """A record in memory; of a damaged one, all up to the damage."""

    def __init__(self, header: RecordHeader, entries: list[RecordEntry]) -> None:
        self.header = header
        self.duration_s = entries[-1].at_s if entries else 0.0
        self.streams: dict[str, RecordedStream] = {}
        self._answers: dict[str, list[RecordEntry]] = {}
        self._logs: dict[str, list[tuple[float, LogChunk]]] = {}
        events: dict[int, Event] = {}
        for entry in entries:
            path = entry.target.partition("?")[0]
            if entry.kind is not EntryKind.ANSWER:
                stream = self.streams.setdefault(entry.target, RecordedStream())
                stream.times.append(entry.at_s)
                stream.entries.append(entry)
            elif path.startswith(LOGS):
                chunk = msgspec.json.decode(entry.content, type=LogChunk)
                chunks = self._logs.setdefault(chunk.name, [])
                chunks.append((entry.at_s, chunk))
            elif path == "/v1/events":
                told = msgspec.json.decode(entry.content, type=tuple[Event, ...])
                events |= {event.number: event for event in told}
            else:
                self._answers.setdefault(entry.target, []).append(entry)
        self._events = sorted(events.values(), key=lambda event: event.number)
        self.marks = tuple(sorted(self._marks(), key=lambda mark: mark.at_s))

    @classmethod
    def read(cls, file: Path) -> FlightRecord:
        """Read a record."""
        lines = iter(_lines(file))
        try:
            header = msgspec.json.decode(next(lines, b""), type=RecordHeader)
        except NOT_JSON as error:
            raise DllmError(f"{file} is not a record, or is empty", _REMEDY) from error
        if header.dllm_record > FORMAT:
            raise DllmError(
                f"{file} is a record of a newer dllm-tui ({header.program})",
                "Replay it with that one.",
            )
        decode = msgspec.json.Decoder(RecordEntry).decode
        entries: list[RecordEntry] = []
        # Only what stands before a damage is true.
        with suppress(*NOT_JSON):
            for line in lines:
                entry = decode(line)
                if not (entries[-1].at_s if entries else 0.0) <= entry.at_s < LONGEST_S:
                    break
                entries.append(entry)
        if not entries:
            raise DllmError(f"{file} breaks off before anything was recorded", _REMEDY)
        try:
            return cls(header, entries)
        except NOT_JSON as error:
            raise _unreadable(error) from error

    # --- what was told by a moment ---------------------------------------------------

    def snapshot(self, at_s: float, cluster: str) -> ClusterSnapshot | None:
        """The snapshot of a moment; None while there was no controller."""
        stream = self._snapshots(cluster)
        index = max(stream.index(at_s), 0)
        return stream.state(index, Frame, applied) if stream.entries else None

    def snapshots(
        self, after_s: float, to_s: float, cluster: str
    ) -> Iterator[ClusterSnapshot]:
        stream = self._snapshots(cluster)
        for index in range(stream.index(after_s) + 1, stream.index(to_s) + 1):
            state = stream.state(index, Frame, applied)
            if state is not None:
                yield state

    def _snapshots(self, cluster: str) -> RecordedStream:
        return self.streams.get(f"{SNAPSHOTS}?cluster={cluster}", RecordedStream())

    def events(self, at_s: float, after: int) -> tuple[Event, ...]:
        now = self.header.began_at + at_s
        return tuple(
            event
            for event in self._events
            if event.number > after and event.at.timestamp() <= now
        )

    def answer(self, target: str, asked: str, at_s: float) -> msgspec.Raw | None:
        """The answer to a question by then, or the first that came later."""
        given = self._answers.get(target, [])
        if "/v1/speeds" not in target:  # One plan's serve any split of its devices.
            given = [entry for entry in given if entry.asked == asked]
        before = [entry for entry in given if entry.at_s <= at_s]
        found = before[-1:] or given[:1]
        return found[0].content if found else None

    def log(self, name: str, offset: int, limit: int, at_s: float) -> LogChunk:
        """Part of a log as it was then; what was not recorded of it is passed over."""
        text, start = b"", 0
        for told_at_s, chunk in self._logs.get(name, []):
            if told_at_s > at_s and text:
                break
            end = start + len(text)
            if not text or chunk.restarted or chunk.offset > end:
                text, start = b"", chunk.offset
            raw = chunk.text.encode()
            text = text[: max(chunk.offset - start, 0)] + raw
        end = start + len(text)
        if offset < 0:
            first = max(end + offset, start)
        else:
            first = max(offset, start) if offset <= end else end
        part = text[first - start : first - start + limit]
        return LogChunk(
            name=name,
            text=part.decode(errors="replace"),
            offset=first,
            next_offset=first + len(part),
        )

    def _marks(self) -> Iterator[RecordMark]:
        for event in self._events:
            at_s = event.at.timestamp() - self.header.began_at
            if 0 <= at_s <= self.duration_s:
                fault = event.tone is EventTone.ERROR
                kind = MarkKind.FAULT if fault else MarkKind.EVENT
                yield RecordMark(at_s, kind, event.sentence)
        for target, stream in self.streams.items():
            if target.startswith(CHATS):
                yield from _answers_ended(stream)
            for path, what in ((RACES, "race"), (SWEEPS, "sweep")):
                if target.partition("?")[0] == path:
                    yield from _work_marks(stream, what)


def _answers_ended(stream: RecordedStream) -> Iterator[RecordMark]:
    answering = False
    for entry in stream.entries:
        if entry.kind is EntryKind.WHOLE:
            frame = msgspec.json.decode(entry.content, type=ChatFrame)
            going_on = frame.whole is not None and frame.whole.answering is not None
            if answering and not going_on:
                yield RecordMark(entry.at_s, MarkKind.ANSWER, "an answer ended")
            answering = going_on
        else:
            answering = answering or entry.kind is EntryKind.FRAME


def _work_marks(stream: RecordedStream, what: str) -> Iterator[RecordMark]:
    goes_on = False
    for entry in stream.entries:
        ends = entry.kind is EntryKind.END
        if goes_on == ends:
            text = f"a {what} {'ended' if ends else 'began'}"
            yield RecordMark(entry.at_s, MarkKind.EVENT, text)
        goes_on = not ends


def _lines(file: Path) -> Iterator[bytes]:
    """The whole lines of a record, up to where it breaks off."""
    unpacker = zlib.decompressobj(wbits=GZIP)
    text = bytearray()
    try:
        with file.open("rb") as packed:
            while not unpacker.eof and (part := packed.read(READ_BYTES)):
                room = UNPACKED_BYTES_MAX + 1 - len(text)
                text += unpacker.decompress(part, room)
                if len(text) > UNPACKED_BYTES_MAX:
                    raise DllmError(f"{file} is too large to be replayed", _REMEDY)
    except OSError as error:
        raise DllmError(f"Cannot read {file} ({error.strerror})") from error
    except zlib.error:
        # What came before the damage is whole.
        pass
    return (line[:-1] for line in io.BytesIO(text) if line.endswith(b"\n"))


class ReplayClock:
    """The moment of a record that is shown; it runs, stands, and can be set."""

    def __init__(
        self, duration_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.duration_s = duration_s
        self._clock = clock
        self._from_s = 0.0
        self._since = clock()
        self._playing = False
        self._speed = 1.0
        self._turned = asyncio.Event()

    @property
    def position_s(self) -> float:
        if not self._playing:
            return self._from_s
        passed = (self._clock() - self._since) * self._speed
        return min(self._from_s + passed, self.duration_s)

    @property
    def playing(self) -> bool:
        return self._playing and self.position_s < self.duration_s

    @property
    def speed(self) -> float:
        return self._speed

    def play(self, on: bool) -> None:
        """Let it run, or stand; at the end it begins again."""
        at_s = self.position_s
        self._playing = on
        self.seek(0.0 if on and at_s >= self.duration_s else at_s)

    def run_at(self, speed: float) -> None:
        at_s, self._speed = self.position_s, speed
        self.seek(at_s)

    def seek(self, at_s: float) -> None:
        self._from_s = min(max(at_s, 0.0), self.duration_s)
        self._since = self._clock()
        self._turned.set()
        self._turned = asyncio.Event()

    async def reaches(self, at_s: float | None) -> None:
        """Wait until a moment, or until the clock is turned, whichever comes first."""
        wait_s = None
        if at_s is not None and self._playing:
            # Without a least wait, a rounded moment would never be reached.
            wait_s = max((at_s - self.position_s) / self._speed, WAIT_MIN_S)
        try:
            async with asyncio.timeout(wait_s):
                await self._turned.wait()
        except TimeoutError:
            return


class RecordPlayer(ReplayClock):
    """A record and the moment of it that is now, as a console shows them."""

    def __init__(
        self, record: FlightRecord, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(record.duration_s, clock)
        self.record = record
        self.marks = record.marks
        self.began_at = record.header.began_at
        self._client: ControllerClient | None = None

    def client(self, paths: Paths) -> ControllerClient:
        """A client to which the record is the controller; its cluster is shown."""
        self._client = ControllerClient(
            paths,
            cluster=self.record.header.cluster,
            connection=ReplayConnection(paths, self.record, self),
        )
        return self._client

    @property
    def _cluster(self) -> str:
        return self._client.cluster if self._client else self.record.header.cluster

    def snapshot(self) -> ClusterSnapshot | None:
        return self.record.snapshot(self.position_s, self._cluster)

    def snapshots(self, after_s: float, to_s: float) -> Iterator[ClusterSnapshot]:
        return self.record.snapshots(after_s, to_s, self._cluster)

    def race(self) -> tuple[Race | None, bool]:
        return self._work(RACES, RaceDelta, race_applied)

    def sweep(self) -> tuple[Sweep | None, bool]:
        return self._work(SWEEPS, Sweep, lambda told, _: told)

    def _work(
        self, path: str, kind: type[F], applied: Callable[[F, S | None], S]
    ) -> tuple[S | None, bool]:
        """The newest work of a kind as it was then, and whether it went on."""
        found = self.record.streams.get(f"{path}?cluster={self._cluster}")
        stream = found or RecordedStream()
        index = stream.index(self.position_s)
        if index < 0:
            return None, False
        goes_on = stream.entries[index].kind is not EntryKind.END
        # What it had come to stays after its end.
        return stream.state(max(index - (not goes_on), 0), kind, applied), goes_on


class ReplayConnection(ControllerConnection):
    """Answers from a record; refuses all that would act."""

    def __init__(self, paths: Paths, record: FlightRecord, clock: ReplayClock) -> None:
        super().__init__(paths)
        self._record = record
        self._clock = clock

    async def running(self) -> bool:
        return True

    async def start(self) -> Path:
        raise ReplayRefused

    async def call(
        self, method: str, target: str, kind: type[T], body: object = None
    ) -> T:
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        at_s = self._clock.position_s
        value: object = None
        if method == "GET" and parts.path.startswith(LOGS):
            name = unquote(parts.path.removeprefix(LOGS))
            value = self._record.log(
                name, int(query["offset"]), int(query["limit"]), at_s
            )
        elif method == "GET" and parts.path == "/v1/events":
            value = self._record.events(at_s, int(query["after"]))
        if value is not None:
            return msgspec.convert(value, kind)
        found = self._record.answer(target, digest(body), at_s)
        if found is None:
            if method == "GET":
                raise NotRecorded(parts.path.rpartition("/")[2])
            if parts.path in ("/v1/memory", "/v1/best", "/v1/speeds"):
                raise NotRecorded(f"{parts.path.rpartition('/')[2]} of this plan")
            raise ReplayRefused
        try:
            return msgspec.json.decode(found, type=kind)
        except NOT_JSON as error:
            raise _unreadable(error) from error

    async def stream(
        self, method: str, target: str, kind: type[T], body: object = None
    ) -> AsyncGenerator[T, None]:
        for _ in ():  # A generator, like what it stands for.
            yield _
        raise ReplayRefused

    async def followed(
        self,
        target: str,
        kind: type[F],
        applied: Callable[[F, S | None], S],
        framed: Callable[[S, None], F],
        asked: object = None,
    ) -> AsyncGenerator[S, None]:
        if asked is not None:
            raise ReplayRefused
        stream = self._record.streams.get(target.partition("&holder=")[0])
        if stream is None:
            await asyncio.Event().wait()  # Nobody followed it: it stays silent.
            return
        shown = -1
        while True:
            index = max(stream.index(self._clock.position_s), 0)
            if index != shown:
                shown = index
                state = stream.state(index, kind, applied)
                if state is None:
                    raise ControllerError("The controller was away at this moment")
                yield state
            later = stream.times[index + 1 :][:1]
            await self._clock.reaches(later[0] if later else None)
