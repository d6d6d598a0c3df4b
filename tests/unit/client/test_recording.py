"""Records: written as it comes, read as far as it is whole, and without secrets."""

from __future__ import annotations

import contextlib
import signal
import zlib
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.client.calls import ControllerConnection
from backends.client.client import ControllerClient
from backends.client.flight_recorder import FlightRecorder
from backends.client.record_player import (
    FlightRecord,
    NotRecorded,
    RecordPlayer,
    ReplayClock,
    ReplayRefused,
)
from backends.client.records import ClientRecords
from backends.errors import ControllerError, DllmError, UsageError
from backends.paths import Paths
from backends.split.layout import make_split
from backends.state import (
    Answering,
    ChatState,
    ClusterSnapshot,
    Conversation,
    Event,
    EventKind,
    LogChunk,
    MarkKind,
    Plan,
    ProcessInfo,
    ProcessRole,
    ProcessState,
    Reply,
    Turn,
)
from backends.state.chats import chat_framed
from backends.state.delta import framed
from backends.state.races import (
    Contestant,
    Race,
    RaceDelta,
    RaceFigures,
    RacePiece,
    RaceRequest,
    RaceStage,
    race_framed,
)
from tests.kit.examples import FEW_OR_MANY
from tests.kit.full_disk import little_room
from tests.unit.state.scene import busy_scene

SNAPSHOTS = "/v1/snapshots?cluster=default"
CHAT = "/v1/chats/events?cluster=default&model=m.gguf&id="
TICKS = 60
PER_S = 4


class Time:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def scene(tick: int) -> ClusterSnapshot:
    return busy_scene(tick, ("worker1",), 4)


def recorder_in(folder: Path, clock: Time, words: bool = True) -> FlightRecorder:
    file = folder / "one.gz"
    return FlightRecorder(file, cluster="default", words=words, clock=clock)


def tell(recorder: FlightRecorder, clock: Time, scenes: list[ClusterSnapshot]) -> None:
    before = None
    for now in scenes:
        frame = framed(now, before)
        recorder.frame(f"{SNAPSHOTS}&holder=", frame, partial(framed, now, None))
        clock.now_s += 1 / PER_S
        before = now


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A record of a cluster at work, with a chat, an event and a log."""
    clock = Time()
    recorder = recorder_in(tmp_path_factory.mktemp("record"), clock)
    tell(recorder, clock, [scene(tick) for tick in range(TICKS)])
    chunk = LogChunk(name="worker1", text="hello\n", offset=0, next_offset=6)
    recorder.answer("GET", "/v1/logs/worker1?offset=-9&limit=9", None, chunk)
    recorder.close()
    return recorder.file.read_bytes()


@pytest.fixture(scope="module")
def whole(packed: bytes, tmp_path_factory: pytest.TempPathFactory) -> FlightRecord:
    return read(packed, tmp_path_factory.mktemp("whole"))


def unpacked(file: Path) -> bytes:
    return zlib.decompressobj(wbits=31).decompress(file.read_bytes())


def read(packed: bytes, folder: Path) -> FlightRecord:
    file = folder / "read.gz"
    file.write_bytes(packed)
    return FlightRecord.read(file)


def test_every_moment_is_as_it_was(whole: FlightRecord) -> None:
    moments = [tick / PER_S + 0.01 for tick in range(TICKS)]
    for turn in (moments, moments[::-1]):
        for at_s in turn:
            assert whole.snapshot(at_s, "default") == scene(int(at_s * PER_S))
    between = list(whole.snapshots(2.0, 4.0, "default"))
    assert [one.seq for one in between] == [scene(t).seq for t in range(9, 17)]


def test_no_moment_is_far_from_a_whole_state(whole: FlightRecord) -> None:
    kinds = [e.kind for e in whole.streams[SNAPSHOTS].entries]
    wholes = [at for at, kind in enumerate(kinds) if kind == "whole"]
    assert wholes == list(range(0, TICKS, 5 * PER_S))


@FEW_OR_MANY
def test_a_file_that_breaks_off_or_is_damaged_is_refused_or_read_in_part(
    n_examples: int, packed: bytes, whole: FlightRecord, tmp_path: Path
) -> None:
    @settings(max_examples=n_examples)
    @given(cut=st.floats(0, 1))
    def is_whole_up_to_there(cut: float) -> None:
        try:
            record = read(packed[: int(len(packed) * cut)], tmp_path)
        except DllmError:
            assert cut < 0.5, "the first entries are small"
            return
        at_s = record.duration_s
        assert at_s <= whole.duration_s
        assert record.snapshot(at_s, "default") == whole.snapshot(at_s, "default")

    @settings(max_examples=n_examples)
    @given(st.dictionaries(st.integers(0, len(packed) - 1), st.integers(0, 255)))
    def is_refused_or_read(wrong: dict[int, int]) -> None:
        damaged = bytearray(packed)
        for at, byte in wrong.items():
            damaged[at] = byte
        with contextlib.suppress(DllmError):
            record = read(bytes(damaged), tmp_path)
            record.snapshot(record.duration_s, "default")

    is_whole_up_to_there()
    is_refused_or_read()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a record, or is empty"),
        (b"not gzip at all", "is not a record, or is empty"),
        (b'{"cluster":"a","dllm_record":9,"program":"9.1"}\n', "newer dllm-tui (9.1)"),
        (b'{"cluster":"a"}\n', "before anything was recorded"),
        (b'{"cluster":"a"}\n[0.0,"answer","/v1/events","",7]\n', "not understood"),
    ],
)
def test_what_is_no_record_is_refused_in_a_sentence(
    content: bytes, said: str, tmp_path: Path
) -> None:
    packer = zlib.compressobj(wbits=31)
    is_text = content.startswith(b"{")
    packed = packer.compress(content) + packer.flush() if is_text else content
    with pytest.raises(DllmError, match=said.replace("(", r"\(").replace(")", r"\)")):
        read(packed, tmp_path)


# --- what is not in it --------------------------------------------------------------

KEYS = ("sk-0123456789abcdefgh", "hunter2hunter2", "dllm1-AAAABBBBCCCCDDDDEEEE")
KEY_FILE = "/home/ada/.ssh/id_ed25519"


def with_secrets(rss_bytes: int, words: tuple[str, ...]) -> ClusterSnapshot:
    process = ProcessInfo(
        name="llama-server",
        role=ProcessRole.SERVER,
        state=ProcessState.RUNNING,
        argv=("llama-server", *words),
        rss_bytes=rss_bytes,
    )
    split = make_split(1, ["local/CPU"], [2])
    plan = Plan(model="m.gguf", split=split, extra_args=words)
    message = f"It said: password={KEYS[1]}, and took {KEYS[2]}"
    return ClusterSnapshot(plan=plan, processes=(process,), message=message)


def test_no_secret_gets_into_it(tmp_path: Path) -> None:
    clock = Time()
    recorder = recorder_in(tmp_path, clock)
    # The second changes one argument, so that its patch shows no flag before it.
    told = [
        with_secrets(1, ("--api-key", "mine", "--threads", "2")),
        with_secrets(1, ("--api-key", KEYS[1], "--threads", "2")),
        with_secrets(2, (f"--api-key={KEYS[1]}", "--api-key-file", KEY_FILE)),
    ]
    tell(recorder, clock, told)
    log = f"Authorization: Bearer {KEYS[0]}\nkey read from {KEY_FILE}\n"
    chunk = LogChunk(name="a", text=log, offset=0, next_offset=len(log))
    recorder.answer("GET", "/v1/logs/a?offset=0&limit=9", None, chunk)
    for path in ("/v1/peers", "/v1/invitations", "/v1/pairings/123456", "/v1/launch"):
        recorder.answer("POST", path, {"token": KEYS[0]}, {"token": KEYS[0]})
    recorder.close()
    text = unpacked(recorder.file).decode()
    for secret in (*KEYS, KEY_FILE):
        assert secret not in text
    assert "--threads" in text
    assert text.count('"answer"') == 1, "of the rest nothing is written"


def asked(text: str, *, answering: bool) -> ChatState:
    turn = Turn(question="Who is Quirinus?", replies=(Reply(text=text),))
    chat = Conversation(id="1", cluster="default", system="Be Quirky", turns=(turn,))
    return ChatState(conversation=chat, answering=Answering() if answering else None)


def tell_chat(recorder: FlightRecorder, clock: Time) -> None:
    before = None
    for text in ("Quite", "Quite a", "Quite a Question.", ""):
        now = asked(text or "Quite a Question.", answering=bool(text))
        frame = chat_framed(now, before)
        recorder.frame(CHAT, frame, partial(chat_framed, now, None))
        clock.now_s += 1.0
        before = now


def test_without_words_no_word_gets_into_it(tmp_path: Path) -> None:
    clock = Time()
    recorder = recorder_in(tmp_path, clock, words=False)
    tell(recorder, clock, [scene(0)])
    tell_chat(recorder, clock)
    race = Race.of(RACE)
    for delta in DELTAS:
        race = race.after(delta)
        recorder.frame("/v1/race", delta, partial(race_framed, race, None))
        clock.now_s += 5.0
    log = "prompt: Quirinus\n"
    chunk = LogChunk(name="llama-server", text=log, offset=0, next_offset=len(log))
    recorder.answer("GET", "/v1/logs/llama-server?offset=0&limit=99", None, chunk)
    event = Event(
        number=1,
        at="2026-08-01T12:30:00Z",  # type: ignore[arg-type]
        kind=EventKind.DIED,
        text="it died",
        evidence=("Quirinus was asked",),
    )
    recorder.answer("GET", "/v1/events?after=0", None, (event,))
    recorder.close()
    assert b"Qu" not in unpacked(recorder.file)
    record = FlightRecord.read(recorder.file)
    chat = msgspec.json.decode(record.streams[CHAT].entries[-1].content)["whole"]
    turn = chat["conversation"]["turns"][0]
    assert turn["question"] == "··· ·· ·········"
    assert turn["replies"][0]["text"] == "····· · ·········"


# --- races and sweeps ---------------------------------------------------------------

RACE = RaceRequest(
    contestants=(Contestant(name="now"), Contestant(name="best")),
    prompt="Who is Quirinus?",
)
DELTAS = (
    RaceDelta(stage=RaceStage.ANSWERING, pieces=(RacePiece(0.1, "Quite"),)),
    RaceDelta(pieces=(RacePiece(0.2, " a Question."),)),
    RaceDelta(stage=RaceStage.DONE, figures=RaceFigures(tok_per_s=9.0, tokens=2)),
)


class RaceTeller(ControllerConnection):
    async def stream(
        self, method: str, target: str, kind: type[Any], body: object = None
    ) -> AsyncGenerator[Any, None]:
        assert (method, body) == ("POST", RACE)
        for delta in DELTAS:
            yield delta


async def test_a_race_is_as_it_was_and_stays_when_it_is_over(
    paths: Paths, tmp_path: Path
) -> None:
    clock = Time()
    recorder = recorder_in(tmp_path, clock)
    client = ControllerClient(paths, connection=RaceTeller(paths))
    client.record(recorder)
    told = []
    # Who leaves the first one ends it.
    for n_states in (2, 3):
        race = client.race(RACE)
        for _ in range(n_states):
            told.append(await anext(race))
            clock.now_s += 1.0
        await race.aclose()
        clock.now_s += 1.0
    recorder.close()
    player = RecordPlayer(FlightRecord.read(recorder.file))
    seen = []
    for second in range(7):
        player.seek(second + 0.5)
        seen.append(player.race())
    last = told[1], told[4]
    states = [*told[:2], last[0], *told[2:], last[1]]
    goes_on = [True, True, False, True, True, True, False]
    assert seen == [*zip(states, goes_on, strict=True)]
    assert told[4].sides[0].text == "Quite a Question."
    marks = [(mark.at_s, mark.text.split()[-1]) for mark in player.marks]
    assert marks == [(0, "began"), (2, "ended"), (3, "began"), (6, "ended")]
    with pytest.raises(ReplayRefused):
        await anext(player.client(paths).race(RACE))


# --- a disk, and a client -----------------------------------------------------------


def test_another_file_is_never_written_over(tmp_path: Path) -> None:
    recorder = recorder_in(tmp_path, Time())
    recorder.close()
    before = recorder.file.read_bytes()
    with pytest.raises(UsageError, match="is there already"):
        recorder_in(tmp_path, Time())
    assert recorder.file.read_bytes() == before
    assert recorder.file.stat().st_mode & 0o077 == 0, "it has prompts in it"


def test_what_was_told_is_in_the_file_at_once(tmp_path: Path) -> None:
    clock = Time()
    recorder = recorder_in(tmp_path, clock)
    tell(recorder, clock, [scene(0), scene(1)])
    recorder._writer.submit(int).result()
    # A console that is killed now closes nothing.
    record = FlightRecord.read(recorder.file)
    assert record.snapshot(record.duration_s, "default") == scene(1)
    recorder.close()


@pytest.fixture
def _no_signal() -> Iterator[None]:
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGXFSZ, before)


@pytest.mark.usefixtures("_no_signal")
def test_a_full_disk_ends_it_and_leaves_what_was_written(tmp_path: Path) -> None:
    clock = Time()
    with little_room(8000):
        recorder = recorder_in(tmp_path, clock)
        tell(recorder, clock, [busy_scene(tick) for tick in range(TICKS)])
        recorder.close()
    assert recorder.problem == "File too large"
    record = FlightRecord.read(recorder.file)
    assert 0 < record.duration_s < clock.now_s - 101
    newest = record.snapshot(record.duration_s, "default")
    assert newest == busy_scene(round(record.duration_s * PER_S))


async def test_a_client_is_told_again_what_it_was_told(
    paths: Paths, tmp_path: Path
) -> None:
    client = ControllerClient(paths)
    records = ClientRecords(client)
    stream = client.snapshots()
    first = await anext(stream)
    # The stream runs already: a record begins with what is known of it.
    records.begin(file=tmp_path / "one.gz", size=(80, 24))
    catalogue = await client.catalogue()
    await client.events()
    assert "one.gz" in await records.end()
    assert records.file == ""
    await stream.aclose()
    player = RecordPlayer(FlightRecord.read(tmp_path / "one.gz"))
    replayed = player.client(paths)
    assert await anext(replayed.snapshots()) == first == player.snapshot()
    assert await replayed.catalogue() == catalogue
    with pytest.raises(ReplayRefused, match="This is a replay"):
        await replayed.stop()
    with pytest.raises(ReplayRefused, match="This is a replay"):
        await anext(replayed.get_engine())
    with pytest.raises(NotRecorded, match="no inspect"):
        await replayed.inspect("m.gguf")
    await client.shutdown()


async def test_a_controller_that_was_away_is_away_again(
    paths: Paths, tmp_path: Path
) -> None:
    clock = Time()
    recorder = recorder_in(tmp_path, clock)
    tell(recorder, clock, [scene(0)])
    recorder.ended(SNAPSHOTS)
    clock.now_s += 5.0
    tell(recorder, clock, [scene(1), scene(2)])
    recorder.close()
    player = RecordPlayer(FlightRecord.read(recorder.file), clock)
    client = player.client(paths)
    player.seek(2.0)
    assert player.snapshot() is None
    with pytest.raises(ControllerError, match="was away"):
        await anext(client.snapshots())
    player.seek(6.0)
    stream = client.snapshots()
    assert (await anext(stream)).seq == scene(2).seq
    await stream.aclose()


def test_an_answer_that_ended_has_a_mark(tmp_path: Path) -> None:
    clock = Time()
    recorder = recorder_in(tmp_path, clock)
    tell_chat(recorder, clock)
    recorder.close()
    marks = FlightRecord.read(recorder.file).marks
    assert [(mark.at_s, mark.kind) for mark in marks] == [(3.0, MarkKind.ANSWER)]


def test_a_log_is_as_long_as_it_was_then(tmp_path: Path) -> None:
    clock = Time()
    recorder = recorder_in(tmp_path, clock)
    pieces = [(0, "one\n"), (4, "two\n"), (4, "two\n"), (2, "e\ntwo\nthree\n")]
    for offset, text in pieces:
        end = offset + len(text)
        chunk = LogChunk(name="w", text=text, offset=offset, next_offset=end)
        recorder.answer("GET", "/v1/logs/w?offset=0&limit=99", None, chunk)
        clock.now_s += 1.0
    recorder.close()
    record = FlightRecord.read(recorder.file)

    def log(at_s: float, offset: int) -> str:
        return record.log("w", offset, 99, at_s).text

    assert log(0.5, 0) == "one\n"
    assert log(1.5, 0) == "one\ntwo\n"
    assert log(1.5, -4) == "two\n"
    assert log(9.0, 4) == "two\nthree\n"
    assert log(9.0, 99) == ""
    assert record.log("w", 99, 99, 9.0).next_offset == 14


async def test_a_clock_plays_stands_and_is_set() -> None:
    time = Time()
    clock = ReplayClock(60.0, time)
    assert not clock.playing
    clock.play(True)
    time.now_s += 2.0
    clock.run_at(4.0)
    time.now_s += 2.0
    assert clock.position_s == 10.0
    clock.play(False)
    time.now_s += 2.0
    assert clock.position_s == 10.0
    clock.seek(59.0)
    clock.play(True)
    time.now_s += 2.0
    assert (clock.position_s, clock.playing) == (60.0, False)
    clock.play(True)
    assert (clock.position_s, clock.playing) == (0.0, True)
