"""The channel to an agent: banners, junk, floods, silence and broken streams."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from backends.errors import MachineError, PeerUnreachable
from backends.machines import agent as agents
from backends.machines import agent_channel
from backends.machines.agent import AgentSession
from backends.machines.agent_channel import BANNER_BYTES_MAX, Lines
from backends.paths import relay_binary
from tests.kit.processes import exists
from tests.kit.waiting import until
from tests.unit.machines.processes import SLEEPER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tests.unit.machines.test_agent_adopt import OpenAgent

HELLO = {"hello": "dllm-relay agent", "protocol": 2, "version": "9", "run_dir": "/run"}
RECORD = {"name": "default/w", "pid": 7, "alive": True, "argv": ["x"], "log": "/log"}


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


class Scripted:
    """The other end of a stream: answers each request as a test says."""

    def __init__(
        self, answer: Callable[[dict[str, Any]], bytes], before: bytes = b""
    ) -> None:
        self.answer = answer
        self.coming: asyncio.Queue[bytes] = asyncio.Queue()
        self.coming.put_nowait(before + line(HELLO))
        self.closed = False

    async def read(self, most_bytes: int) -> bytes:
        data = await self.coming.get()
        if len(data) > most_bytes:
            rest = [data[most_bytes:]]
            while not self.coming.empty():
                rest.append(self.coming.get_nowait())
            for part in rest:
                self.coming.put_nowait(part)
        return data[:most_bytes]

    async def write(self, data: bytes) -> None:
        request = json.loads(data)
        if request["do"] == "watch":
            self.coming.put_nowait(line({"id": request["id"], "ok": {"records": []}}))
        elif told := self.answer(request):
            self.coming.put_nowait(told)

    async def close(self) -> None:
        self.closed = True

    def last_words(self) -> str:
        return "its last words"


def host_of(stream: Scripted) -> AgentSession:
    async def open_stream() -> Scripted:
        return stream

    return AgentSession("ada", open_stream)


def ok(request: dict[str, Any], **result: object) -> bytes:
    return line({"id": request["id"], "ok": result})


async def test_a_banner_is_passed_over() -> None:
    banner = b'Welcome!\n\x1b[31m{"hello":"you"}\n' + b"x" * 5000 + b"\n"
    agent = host_of(Scripted(lambda r: ok(r, port=7), banner))
    assert await agent.free_port() == 7
    assert agent.run_dir == "/run"
    await agent.close()


async def test_an_endless_banner_is_no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_channel, "HELLO_TIMEOUT_S", 0.3)
    stream = Scripted(lambda r: b"")
    stream.coming = asyncio.Queue()
    for _ in range(3):
        stream.coming.put_nowait(b"x" * BANNER_BYTES_MAX)
    with pytest.raises(MachineError, match=r"on ada said nothing within 0\.3 s"):
        await host_of(stream).free_port()
    assert stream.closed


async def test_a_program_that_is_no_agent_says_why() -> None:
    stream = Scripted(lambda r: b"")
    stream.coming = asyncio.Queue()
    stream.coming.put_nowait(b"usage: dllm-relay COMMAND\n")
    stream.coming.put_nowait(b"")
    with pytest.raises(MachineError, match="on ada does not run: its last words"):
        await host_of(stream).free_port()


async def test_a_helper_that_knows_no_agent_is_of_another_version() -> None:
    stream = Scripted(lambda r: b"")
    stream.coming = asyncio.Queue()
    stream.coming.put_nowait(b"")
    stream.last_words = lambda: "unknown command 'agent'"  # type: ignore[method-assign]
    with pytest.raises(MachineError, match="is of another version"):
        await host_of(stream).free_port()


@pytest.mark.parametrize("other", [{"protocol": 1}, {"hello": "dllm-relay host"}])
async def test_another_protocol_is_refused(other: dict[str, object]) -> None:
    stream = Scripted(lambda r: b"")
    stream.coming = asyncio.Queue()
    stream.coming.put_nowait(line({**HELLO, **other}))
    stream.coming.put_nowait(b"")
    with pytest.raises(
        MachineError, match="version 9, which this one does not understand"
    ):
        await host_of(stream).free_port()


JUNK = (
    *(b"", b"junk", b"[]", b"{}", b"null", b"\xff\xfe", b"[" * 90_000, b"9" * 5000),
    *(b'{"id":1e999}', b'{"id":"1","ok":{}}', b'{"id":[],"ok":{}}', b'{"push":7}'),
    *(b'{"push":"record"}', b'{"push":"record","record":{"name":7}}'),
    *(b'{"push":"removed","name":{}}', b'{"id":99,"ok":{"port":1}}'),
)


def after(junk: bytes, request: dict[str, Any]) -> bytes:
    return junk + b"\n" + ok(request, port=7)


async def test_junk_between_answers_is_passed_over() -> None:
    for junk in JUNK:
        agent = host_of(Scripted(partial(after, junk)))
        assert [await agent.free_port() for _ in range(3)] == [7, 7, 7], junk
        assert agent.seen == ()
        await agent.close()


async def test_an_answer_without_sense_is_an_error() -> None:
    answers: tuple[dict[str, Any], ...]
    answers = ({}, {"port": "7"}, {"port": None}, {"port": [7]})
    for port in answers:
        agent = host_of(Scripted(partial(ok, **port)))
        with pytest.raises(MachineError, match="ada gave an answer without sense"):
            await agent.free_port()
        await agent.close()


async def test_silence_is_told_of_by_the_name_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agent = host_of(Scripted(lambda r: b"" if r["do"] == "memory" else ok(r, port=7)))
    await agent.connect()
    with pytest.raises(
        MachineError, match=r"ada did not answer within 0\.1 s \(memory\)"
    ):
        await agent._ask("memory", 0.1)
    assert await agent.free_port() == 7
    await agent.close()


async def test_a_broken_stream_ends_all_waiting_and_marks_nothing_dead() -> None:
    stream = Scripted(lambda r: b"")
    agent = host_of(stream)
    await agent.connect()
    stream.coming.put_nowait(line({"push": "record", "record": RECORD}))
    asked = [asyncio.create_task(agent.free_port()) for _ in range(3)]
    told = asyncio.Event()
    agent.subscribe(told.set)
    await told.wait()
    stream.coming.put_nowait(b"")
    for one in asked:
        with pytest.raises(PeerUnreachable, match="helper on ada broke"):
            await one
    assert [(r.name, r.alive) for r in agent.seen] == [("default/w", True)]
    await agent.close()


async def test_a_request_that_cannot_be_sent_ends_all_waiting() -> None:
    lost: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: lost.append(what))

    def broken(request: dict[str, Any]) -> bytes:
        if request["do"] == "memory":
            raise BrokenPipeError
        return b""

    agent = host_of(Scripted(broken))
    await agent.connect()
    waiting = asyncio.create_task(agent.free_port())
    await asyncio.sleep(0)
    with pytest.raises(PeerUnreachable, match="broke: its last words"):
        await agent._ask("memory", 1.0)
    with pytest.raises(PeerUnreachable, match="broke: its last words"):
        await waiting
    await agent.close()
    gc.collect()
    assert lost == [], "an error that nobody looked at is logged as a fault"


async def test_answers_may_come_in_any_order() -> None:
    late: list[bytes] = []

    def answer(request: dict[str, Any]) -> bytes:
        late.insert(0, ok(request, port=request["id"]))
        return b"".join(late) if len(late) == 3 else b""

    agent = host_of(Scripted(answer))
    ports = await asyncio.gather(*(agent.free_port() for _ in range(3)))
    assert ports == sorted(ports)
    await agent.close()


async def test_a_flood_without_line_ends_breaks_the_channel_and_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agent_channel, "ANSWER_BYTES_MAX", 1 << 20)
    agent = host_of(Scripted(lambda r: b"x" * ((1 << 20) + 2)))
    with pytest.raises(PeerUnreachable):
        await agent.free_port()
    await agent.close()


async def test_a_stream_that_broke_is_opened_again_by_the_next_request() -> None:
    streams = [Scripted(lambda r: b""), Scripted(lambda r: ok(r, port=7))]
    opened = iter(streams)

    async def open_stream() -> Scripted:
        return next(opened)

    agent = AgentSession("ada", open_stream)
    await agent.connect()
    streams[0].coming.put_nowait(b"")
    await asyncio.sleep(0.01)
    assert await agent.free_port() == 7
    assert streams[0].closed
    await agent.close()


async def test_closing_ends_an_agent_that_is_being_started() -> None:
    opened = asyncio.Event()
    silent = Scripted(lambda r: b"")
    silent.coming = asyncio.Queue()
    streams = iter([silent, Scripted(lambda r: ok(r, port=7))])

    async def open_stream() -> Scripted:
        opened.set()
        return next(streams)

    agent = AgentSession("ada", open_stream, restarts=True)
    asked = [asyncio.create_task(agent.free_port()) for _ in range(2)]
    await opened.wait()
    await agent.close()
    assert silent.closed
    for one in asked:
        with pytest.raises(PeerUnreachable, match="ended meanwhile"):
            await one
    assert await agent.free_port() == 7
    await agent.close()


async def test_who_leaves_as_an_agent_has_begun_loses_no_agent() -> None:
    stream = Scripted(lambda r: ok(r, port=7))
    agent = host_of(stream)
    asking = asyncio.create_task(agent.free_port())
    await until_now(lambda: agent._opening is not None and agent._opening.done())
    asking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    await agent.close()
    assert stream.closed


async def until_now(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 -- in the very turn of the loop
        await asyncio.sleep(0)


async def test_what_was_stopped_leaves_nothing_behind() -> None:
    agent = host_of(Scripted(lambda r: ok(r, record=None)))
    for number in range(3):
        await agent.stop(f"default/w{number}")
    assert not agent._stopping
    await agent.close()


def test_lines_hold_no_more_than_one() -> None:
    lines = Lines(10)
    assert list(lines.add(b"one\ntw")) == [b"one"]
    assert list(lines.add(b"o\n\n")) == [b"two", b""]
    with pytest.raises(ValueError, match="too long"):
        list(lines.add(b"12345678901"))


class Dying(Scripted):
    """Greets, answers once and ends."""

    async def write(self, data: bytes) -> None:
        await super().write(data)
        self.coming.put_nowait(b"")


@pytest.mark.parametrize(("stayed_s", "is_patient"), [(60.0, True), (0.0, False)])
async def test_one_that_greets_and_dies_is_restarted_ever_more_rarely(
    monkeypatch: pytest.MonkeyPatch, stayed_s: float, *, is_patient: bool
) -> None:
    """One that stayed for a while begins anew."""
    monkeypatch.setattr(agents, "RESTART_PAUSES_S", (0.001, 0.001, 60.0))
    monkeypatch.setattr(agents, "STAYED_S", stayed_s)
    opened = 0

    async def open_stream() -> Scripted:
        nonlocal opened
        opened += 1
        return Dying(lambda r: b"")

    agent = AgentSession("ada", open_stream, restarts=True)
    await agent.connect()
    await until(lambda: opened >= 3)
    await asyncio.sleep(0.1)
    await agent.close()
    assert (opened == 3) is is_patient


# --- An agent whose client is gone without a word ends by itself; nothing else does ---


class Raw:
    """An agent at the end of two pipes, without a client that renews anything."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def ask(self, verb: str, **members: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line({"id": 1, "do": verb, **members}))
        while True:
            answer = json.loads(await self.process.stdout.readline())
            if answer.get("id") == 1:
                result: dict[str, Any] = answer
                return result


@contextlib.asynccontextmanager
async def raw_agent(run_dir: Path) -> AsyncIterator[Raw]:
    process = await asyncio.create_subprocess_exec(
        *(str(relay_binary()), "agent", "--run-dir", str(run_dir)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Raw(process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_silence_beyond_its_lease_ends_an_agent_and_nothing_it_started(
    run_dir: Path, open_agent: OpenAgent
) -> None:
    async with raw_agent(run_dir) as agent:
        answer = await agent.ask("start", name="default/p", argv=SLEEPER)
        started = answer["ok"]["record"]["pid"]
        assert await agent.ask("lease", seconds=0.3) == {"id": 1, "ok": {}}
        assert await asyncio.wait_for(agent.process.wait(), 60) == 0
    assert exists(started)
    next_one = open_agent(run_dir)
    (record,) = await next_one.records()
    assert record.alive
    await next_one.stop("default/p")


async def is_renewed(run_dir: Path, lease_s: float) -> bool:
    async with raw_agent(run_dir) as agent:
        await agent.ask("lease", seconds=lease_s)
        try:
            for _ in range(7):
                await asyncio.sleep(lease_s / 6)
                assert "ok" in await agent.ask("records")
        except (OSError, ValueError):
            return False
        await asyncio.wait_for(agent.process.wait(), 60)
    return True


async def test_any_word_renews_a_lease(run_dir: Path) -> None:
    # Where the machine stands still for a lease, a word comes too late.
    assert await is_renewed(run_dir, 0.6) or await is_renewed(run_dir, 15.0)


async def test_a_lease_without_sense_is_refused(run_dir: Path) -> None:
    async with raw_agent(run_dir) as agent:
        for seconds in (0, -1, 1e9, "soon"):
            answer = await agent.ask("lease", seconds=seconds)
            assert answer["error"]["kind"] == "bad_request"
        assert "ok" in await agent.ask("records")


def leased(stream: Scripted, lease_s: float) -> AgentSession:
    async def open_stream() -> Scripted:
        return stream

    return AgentSession("ada", open_stream, lease_s=lease_s)


async def test_a_client_renews_its_lease_in_time_even_after_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(agents, "ASK_TIMEOUT_S", 0.05)
    leases: list[float] = []
    fourth = asyncio.Event()

    def answer(request: dict[str, Any]) -> bytes:
        assert request["do"] == "lease"
        leases.append(request["seconds"])
        if len(leases) == 4:
            fourth.set()
        # The second is lost, as while a cable is out.
        return b"" if len(leases) == 2 else ok(request)

    agent = leased(Scripted(answer), 0.04)
    await agent.connect()
    await asyncio.wait_for(fourth.wait(), 60)
    assert set(leases) == {0.04}
    await agent.close()


async def test_a_helper_of_another_version_is_to_be_set_up_again() -> None:
    error = {"kind": "bad_request", "message": "there is no verb 'free_port'"}
    agent = host_of(Scripted(lambda r: line({"id": r["id"], "error": error})))
    with pytest.raises(MachineError, match="there is no verb 'free_port'") as told:
        await agent.free_port()
    assert told.value.hint == "dllm-tui peers setup ada"
    await agent.close()
