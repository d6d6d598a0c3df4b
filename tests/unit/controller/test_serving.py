"""What llama-server is asked while it serves, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from backends.controller import serving
from backends.controller.metrics import prometheus_text
from backends.controller.serving import (
    LOOK_S,
    SPEED_IDLE_S,
    LoadProgress,
    Serving,
    SpeedMeter,
    Watch,
    overall,
)
from backends.engine.llama_client import Counts, Slot
from backends.errors import MachineError
from backends.split.layout import make_split
from backends.state import (
    Acceptance,
    ChatTimings,
    ClusterSnapshot,
    Lab,
    Layer,
    Link,
    LinkCommand,
    LogChunk,
    ModelInfo,
    Plan,
    Speed,
    WorkerSpec,
)
from tests.kit.clusters import Stage
from tests.kit.virtual_time import in_virtual_time

SLOW = Lab(latency_ms=10)
IDLE = "0.01.000.000 I srv  update_slots: all slots are idle\n"
BUSY = "0.01.000.000 I slot launch_slot_: id  0 | task 10 | processing task\n"


class LogHost:
    def __init__(self) -> None:
        self.log = IDLE
        self.gone = False

    async def read_log(self, name: str, offset: int, limit_bytes: int) -> LogChunk:
        if self.gone:
            raise MachineError("gone")
        start = len(self.log) + offset if offset < 0 else offset
        text = self.log[start : start + limit_bytes]
        end = start + len(text)
        return LogChunk(name=name, text=text, offset=start, next_offset=end)


class Server:
    """A llama-server with one slot, and its links; it notes what it is asked, when."""

    def __init__(self, rows: int | None = None, **slot: bool) -> None:
        self.slot = Slot(id=0, **slot)
        self.count = rows
        self.carried: dict[str, int] = {}
        self.labs: dict[str, Lab | None] = {"mini": None}
        self.host: Any = LogHost()
        self.asked: list[str] = []
        self.asked_at_s: list[float] = []
        self.heed: Callable[[object], None] = lambda speed: None
        store: Any = SimpleNamespace(update=lambda **_: None)
        links: Any = SimpleNamespace(
            rows=lambda: self.count,
            carried_bytes=lambda: dict(self.carried),
            labs=lambda: dict(self.labs),
            heed=lambda speed: self.heed(speed),
        )
        self.serving = Serving(store, links)

    def __call__(self, port: int) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def slots(self) -> tuple[Slot, ...]:
        self.asked.append("slots")
        self.asked_at_s.append(asyncio.get_running_loop().time())
        return (self.slot,)

    async def counts(self) -> Counts:
        self.asked.append("metrics")
        return Counts(finished_tokens=7)

    async def moved(self) -> bool:
        return await self.serving.moved(self.host, "default/llama-server")


def follow(
    server: Server, monkeypatch: pytest.MonkeyPatch, seconds: float = 60.0
) -> list[str]:
    monkeypatch.setattr(serving, "ServerClient", server)

    async def run() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(seconds):
                await server.serving.follow(1, server.host, "default/llama-server")

    in_virtual_time(run)
    return server.asked


async def test_what_was_reported_of_earlier_build_is_forgotten(tmp_path: Path) -> None:
    watch = Watch(Stage(tmp_path).context)
    watch.report(MachineError("the gateway cannot be started"))
    watch.forget()
    await watch.require()
    watch.report(MachineError("nor can this one"))
    with pytest.raises(MachineError, match="nor can this one"):
        await watch.require()


@pytest.mark.parametrize("rows", [None, 3])
def test_an_idle_server_gets_few_lines_in_its_log(
    monkeypatch: pytest.MonkeyPatch, rows: int | None
) -> None:
    assert 0 < len(follow(Server(rows), monkeypatch)) <= 5


def test_its_averages_are_left_alone_where_relays_see_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = follow(Server(3, is_processing=True), monkeypatch)
    assert asked.count("metrics") == 1
    assert asked.count("slots") == 120


@pytest.mark.parametrize(("rows", "speculative"), [(None, False), (3, True)])
def test_it_is_asked_where_relays_do_not_see_tokens(
    monkeypatch: pytest.MonkeyPatch, rows: int | None, speculative: bool
) -> None:
    server = Server(rows, is_processing=True, speculative=speculative)
    asked = follow(server, monkeypatch)
    assert asked.count("metrics") == asked.count("slots")


def test_a_figure_not_to_be_shown_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(3, is_processing=True)

    def heed(speed: object) -> None:
        raise ZeroDivisionError

    server.heed = heed
    assert follow(server, monkeypatch).count("slots") > 100


def test_it_is_asked_anew_when_something_moved_or_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = Server()
    follow(server, monkeypatch, seconds=SPEED_IDLE_S + LOOK_S)
    assert server.asked_at_s == pytest.approx([0.0, SPEED_IDLE_S])
    server.asked_at_s.clear()
    server.heed = lambda speed: server.carried.update(w=len(server.asked))
    follow(server, monkeypatch, seconds=1.5 * LOOK_S)
    assert server.asked_at_s == pytest.approx([0.0, LOOK_S])
    server.asked_at_s.clear()
    server.heed = lambda speed: server.labs.update(mini=SLOW)
    follow(server, monkeypatch, seconds=1.5 * LOOK_S)
    assert server.asked_at_s == pytest.approx([0.0, LOOK_S])


async def test_bytes_on_the_links_are_activity() -> None:
    server = Server()
    server.carried = {"worker1": 5, "worker2": 7}
    await server.moved()
    assert not await server.moved()
    server.carried["worker2"] = 8
    assert await server.moved()
    assert not await server.moved()


async def test_without_links_lines_that_are_not_answers_to_us_are_activity() -> None:
    server = Server()
    assert not await server.moved()
    server.host.log += IDLE
    assert not await server.moved()
    server.host.log += BUSY + IDLE
    assert await server.moved()
    assert not await server.moved()
    server.host.gone = True
    assert not await server.moved()


# --- Tokens per second from readings of the slots, on an injected clock ---


def slot(n_decoded: int, *, task: int = 1, busy: bool = True, number: int = 0) -> Slot:
    return Slot(
        id=number,
        task=task,
        n_decoded=n_decoded,
        n_prompt_tokens=10,
        is_processing=busy,
    )


def test_a_steady_generation() -> None:
    meter = SpeedMeter()
    meter.read([slot(0)], 0.0)
    speed = [meter.read([slot(10 * i)], i * 0.5) for i in range(1, 12)][-1]
    assert speed.tok_per_s == pytest.approx(20.0)
    assert speed.requests_active == 1
    assert speed.ctx_used == 120


def test_idle_shows_the_last_speed() -> None:
    meter = SpeedMeter()
    meter.read([slot(0)], 0.0)
    meter.read([slot(10)], 0.5)
    idle = meter.read([slot(12, busy=False)], 1.0)
    assert idle.tok_per_s is None
    assert idle.last_tok_per_s == pytest.approx(20.0)
    assert meter.read([slot(12, busy=False)], 9.0).last_tok_per_s is not None
    assert idle.last_depth == idle.ctx_used - 6
    assert meter.read([slot(30, task=2)], 10.0).last_depth == idle.last_depth


def test_the_last_depth_is_of_the_slot_that_answered_last() -> None:
    meter = SpeedMeter()
    full = slot(3000, task=1, busy=False)
    meter.read([full, slot(0, task=2, number=1)], 0.0)
    idle = [full, slot(20, task=2, busy=False, number=1)]
    assert [meter.read(idle, at).last_depth for at in (1.0, 2.0)] == [20, 20]
    unseen = [full, slot(40, task=3, busy=False, number=1)]
    assert SpeedMeter().read(idle, 0.0).last_depth == 1510
    assert meter.read(unseen, 3.0).last_depth == 30
    # Some servers count all tokens of an idle slot as its prompt.
    meter.read([slot(100, task=4)], 4.0)
    forgotten = Slot(id=0, task=4, n_prompt_tokens=110)
    assert [meter.read([forgotten], at).last_depth for at in (5.0, 6.0)] == [60, 60]


def test_the_last_speed_is_the_mean_of_a_whole_answer() -> None:
    """However slow its end was, and however long its prompt and what follows."""
    meter = SpeedMeter()
    made = [0, 0, 0, 4, 14, 24, 34, 44, 45, 46, 47, 48]
    told = [meter.read([slot(n)], at * 1.0).last_tok_per_s for at, n in enumerate(made)]
    assert told == [None] * len(made), "it goes on"
    idle = meter.read([slot(49, busy=False)], 20.0)
    assert idle.last_tok_per_s == pytest.approx(44 / 8)


def test_an_answer_right_after_another_ends_that() -> None:
    meter = SpeedMeter()
    for at, made in enumerate((0, 10, 20, 30)):
        meter.read([slot(made)], at)
    assert meter.read([slot(2, task=2)], 4.0).last_tok_per_s == pytest.approx(10)


def test_a_speed_under_another_lab_is_forgotten() -> None:
    meter = SpeedMeter()
    assert not meter.under({"mini": None})
    meter.answered(ChatTimings(tok_per_s=20, prompt_tokens=20, prompt_ms=10))
    assert not meter.under({"mini": None})
    assert meter.under({"mini": SLOW})
    idle = meter.read([slot(0, busy=False)], 0.0)
    assert (idle.last_tok_per_s, idle.prompt_tok_per_s) == (None, None)
    meter.answered(ChatTimings(tokens=25, tok_per_s=2))
    assert meter.read([slot(0, busy=False)], 1.0).last_tok_per_s == 2


def test_an_answer_under_two_labs_has_the_speed_of_its_end() -> None:
    meter = SpeedMeter()
    meter.under({"mini": None})
    for at, made in enumerate((0, 10, 20, 30)):
        meter.read([slot(made)], at)
    meter.under({"mini": SLOW})
    late = [meter.read([slot(30 + 2 * at)], 3.0 + at).tok_per_s for at in range(4)]
    assert late == [None, *[pytest.approx(2)] * 3]
    meter.answered(ChatTimings(tokens=36, tok_per_s=6))
    assert meter.read([slot(36, busy=False)], 7.0).last_tok_per_s == pytest.approx(2)
    meter.answered(ChatTimings(tokens=36, tok_per_s=6))
    meter.read([slot(0, task=2)], 8.0)
    meter.answered(ChatTimings(tokens=9, tok_per_s=3))
    assert meter.read([slot(9, busy=False)], 9.0).last_tok_per_s == 3


def test_answers_after_one_under_two_labs_count_again() -> None:
    """Also those that no reading sees."""
    meter = SpeedMeter()
    meter.under({"mini": None})
    meter.read([slot(0)], 0.0)
    meter.under({"mini": SLOW})
    late = ChatTimings(tokens=36, tok_per_s=6)
    for at in (1.0, 2.0):
        idle = meter.read([slot(36, busy=False)], at)
        assert idle.last_tok_per_s is None
        if at == 1.0:
            meter.answered(late)
    meter.answered(ChatTimings(tokens=9, tok_per_s=40))
    assert meter.read([slot(36, busy=False)], 3.0).last_tok_per_s == 40


def test_an_answer_under_two_labs_stays_so_when_another_joins_it() -> None:
    meter = SpeedMeter()
    meter.under({"mini": None})
    meter.read([slot(0)], 0.0)
    meter.under({"mini": SLOW})
    joined = slot(0, task=2, number=1)
    meter.read([slot(10), joined], 1.0)
    meter.answered(ChatTimings(tokens=12, tok_per_s=6))
    told = meter.read([slot(12, busy=False), joined], 2.0)
    assert told.last_tok_per_s is None


def test_an_answer_between_two_readings_has_the_servers_own_time() -> None:
    meter = SpeedMeter()
    first = Counts(
        finished_tokens=10, generating_s=0.5, prompt_tokens=100, prompt_s=1.0
    )
    then = Counts(
        finished_tokens=106, generating_s=0.74, prompt_tokens=180, prompt_s=1.01
    )
    meter.counted(first)
    meter.read([slot(10, busy=False)], 0.0, first.finished_tokens)
    meter.counted(then)
    speed = meter.read([slot(96, task=2, busy=False)], 1.0, then.finished_tokens)
    assert speed.last_tok_per_s == pytest.approx(96 / 0.24)
    assert speed.prompt_tok_per_s == pytest.approx(80 / 0.01)
    assert speed.prompt_tokens == 80
    meter.counted(then)
    idle = meter.read([slot(96, task=2, busy=False)], 2.0, then.finished_tokens)
    assert idle.last_tok_per_s == pytest.approx(96 / 0.24)


def test_a_server_that_was_not_asked_for_once_tells_no_average_of_its_life() -> None:
    meter = SpeedMeter()
    meter.counted(Counts(finished_tokens=1000, generating_s=100.0))
    meter.counted(Counts())
    meter.counted(Counts(finished_tokens=1050, generating_s=101.0))
    speed = meter.read([slot(50, busy=False)], 1.0, 1050)
    assert speed.last_tok_per_s == pytest.approx(50.0)


def test_a_counter_of_six_digits_does_not_time_a_short_answer() -> None:
    """After three hours 0.12 s may be none of its steps, or two."""
    meter = SpeedMeter()
    meter.counted(Counts(finished_tokens=48, generating_s=0.12))
    meter.counted(Counts(finished_tokens=500_000, generating_s=10800.0))
    before = meter.read([slot(0, busy=False)], 0.0).last_tok_per_s
    meter.counted(Counts(finished_tokens=500_048, generating_s=10800.2))
    assert meter.read([slot(0, busy=False)], 1.0).last_tok_per_s == before


def test_what_the_server_told_of_an_answer_stays_until_the_next() -> None:
    """A reading after the end counts the pause as well."""
    meter = SpeedMeter()
    meter.read([slot(0)], 0.0)
    meter.read([slot(20)], 0.5)
    meter.answered(ChatTimings(tokens=25, tok_per_s=194.8))
    late = meter.read([slot(20)], 0.75)
    assert late.last_tok_per_s == pytest.approx(194.8)
    for at in (1.0, 1.5):
        idle = meter.read([slot(25, busy=False)], at)
        assert idle.last_tok_per_s == pytest.approx(194.8)
    meter.read([slot(5, task=2)], 10.0)
    running = meter.read([slot(15, task=2)], 11.0)
    assert running.last_tok_per_s == pytest.approx(194.8)
    ended = meter.read([slot(15, task=2, busy=False)], 12.0)
    assert ended.last_tok_per_s == pytest.approx(10.0)


def test_a_single_token_has_no_speed() -> None:
    """As what is made while a conversation is read again ahead."""
    meter = SpeedMeter()
    meter.read([slot(0)], 0.0)
    meter.read([slot(1)], 0.5)
    assert meter.read([slot(1, busy=False)], 0.6).last_tok_per_s is None
    meter.read([slot(0, task=2)], 9.0)
    meter.read([slot(10, task=2)], 10.0)
    for at in (20.0, 20.5):
        assert meter.read([slot(1, task=3)], at).last_tok_per_s == pytest.approx(10)
    idle = meter.read([slot(1, task=3, busy=False)], 21.0)
    assert idle.last_tok_per_s == pytest.approx(10)


def test_a_new_task_starts_from_nothing() -> None:
    meter = SpeedMeter()
    meter.read([slot(500, task=1)], 0.0)
    speed = meter.read([slot(10, task=2)], 1.0)
    assert speed.tok_per_s == pytest.approx(10.0)


def test_a_pause_is_no_part_of_the_next_answer() -> None:
    meter = SpeedMeter()
    meter.read([slot(0)], 0.0)
    meter.read([slot(10)], 1.0)
    meter.read([slot(10, busy=False)], 2.0)
    meter.read([slot(0, task=2)], 100.0)
    assert meter.read([slot(30, task=2)], 101.0).tok_per_s == pytest.approx(30.0)


def test_what_the_server_counted_itself_misses_no_token() -> None:
    meter = SpeedMeter()
    assert meter.read([slot(30)], 0.0, finished=100).tokens == 130
    assert meter.read([slot(0, busy=False)], 0.5, finished=100).tokens == 130
    assert meter.read([slot(0, busy=False)], 1.0, finished=175).tokens == 175
    assert meter.read([slot(5, task=2)], 1.5, finished=175).tokens == 180


def test_a_count_in_steps_takes_nothing_back() -> None:
    """From a million tokens on the server's count moves by tens."""
    meter = SpeedMeter()
    readings = [(1_000_000, 40), (1_000_000, 48), (1_000_040, 0), (1_000_040, 6)]
    totals = [
        meter.read([slot(made, busy=made > 0)], at * 0.5, finished=finished).tokens
        for at, (finished, made) in enumerate(readings)
    ]
    assert totals == [1_000_040, 1_000_048, 1_000_048, 1_000_048]


def test_rows_are_tokens_after_the_server_s_first_count() -> None:
    meter = SpeedMeter()
    assert meter.read([slot(30)], 0.0, finished=100, rows=7).tokens == 130
    assert meter.read([slot(40)], 0.5, rows=17).tokens == 140
    assert meter.read([slot(0, busy=False)], 1.0, rows=22).tokens == 145


def test_a_count_that_did_not_come_counts_nothing_twice() -> None:
    meter = SpeedMeter()
    meter.read([slot(30)], 0.0, finished=100)
    assert meter.read([slot(35)], 0.5).tokens == 135


def test_an_answer_too_short_to_be_seen() -> None:
    meter = SpeedMeter()
    meter.answered(ChatTimings(tok_per_s=500, prompt_tokens=20, prompt_ms=10))
    speed = meter.read([], 0.0)
    assert speed.last_tok_per_s == 500
    assert speed.prompt_tok_per_s == 2000


def test_tokens_that_were_cached_are_in_no_prompt_speed() -> None:
    meter = SpeedMeter()
    meter.answered(ChatTimings(prompt_tokens=967, cached_tokens=953, prompt_ms=245.77))
    speed = meter.read([], 0.0)
    assert speed.prompt_tok_per_s == pytest.approx(56.96, abs=0.01)
    assert speed.prompt_tokens == 14
    meter.answered(ChatTimings(prompt_tokens=967, cached_tokens=967, prompt_ms=40))
    assert meter.read([], 1.0) == speed


# --- Load progress from the bytes that relays carried ---

MIB = 1 << 20
MODEL = ModelInfo(
    path="m",
    arch="llama",
    n_layer=2,
    n_embd=8,
    n_vocab=8,
    layers=tuple(Layer(index=i, bytes=100 * MIB) for i in range(2)),
    output_bytes=0,
)
WORKERS = (WorkerSpec(name="a"), WorkerSpec(name="b"))
PLAN = Plan(model="m", split=make_split(2, ["a/CPU", "b/CPU"], [1, 2]), workers=WORKERS)


class Relays:
    def __init__(self) -> None:
        self.carried = {"a": 1 * MIB, "b": 0}
        self.now = 0.0
        self.progress = LoadProgress(
            PLAN, MODEL, lambda: self.carried, clock=self.clock
        )
        self.progress.measure()

    def clock(self) -> float:
        return self.now

    def after(self, seconds: float, **more_mib: int) -> None:
        self.now += seconds
        for worker, mib in more_mib.items():
            self.carried[worker] += mib * MIB


def test_what_was_carried_before_does_not_count() -> None:
    relays = Relays()
    arrived = relays.progress.measure()
    assert {worker: one.arrived_bytes for worker, one in arrived.items()} == {
        "a": 0,
        "b": 0,
    }


def test_each_worker_has_its_own_progress_rate_and_rest() -> None:
    relays = Relays()
    relays.after(1, a=1)
    relays.progress.measure()
    relays.after(2, a=49)
    arrived = relays.progress.measure()
    assert arrived["a"].fraction == 0.5
    assert arrived["a"].text == "50.0 MiB of 100 MiB · 25.0 MiB/s · ~2.00 s left"
    assert arrived["b"].bytes_per_s is None


def test_headers_and_questions_are_no_weights() -> None:
    relays = Relays()
    relays.after(1, a=140)
    assert relays.progress.measure()["a"].fraction == 1.0
    assert relays.progress.measure()["a"].text == "100 MiB of 100 MiB"


def test_all_together() -> None:
    relays = Relays()
    relays.after(1, a=1, b=1)
    relays.progress.measure()
    relays.after(4, a=39, b=59)
    whole = overall(relays.progress.measure())
    assert whole.arrived_bytes == 100 * MIB
    assert whole.total_bytes == 200 * MIB
    assert whole.bytes_per_s == 25 * MIB


def test_a_worker_without_layers_expects_nothing() -> None:
    split = make_split(2, ["a/CPU", "b/CPU"], [3, 0])
    plan = Plan(model="m", split=split, workers=WORKERS)
    progress = LoadProgress(plan, MODEL, lambda: {"a": 0, "b": 0})
    assert set(progress.measure()) == {"a"}


def test_what_a_worker_reads_from_its_own_disk_is_told_apart() -> None:
    carried, home = {"a": 7 * MIB, "b": 0}, {"a": 5 * MIB}
    progress = LoadProgress(
        PLAN, MODEL, lambda: carried, lambda: home, clock=lambda: 0.0
    )
    progress.measure()
    progress.measure()
    carried["a"] += 50 * MIB
    home["a"] += 40 * MIB
    arrived = progress.measure()
    assert arrived["a"].text == "50.0 MiB of 100 MiB · 40.0 MiB home, 10.0 MiB sent"
    assert arrived["b"].home_bytes is None
    assert overall(arrived).home_bytes == 40 * MIB


# --- What whoever scrapes the controller's socket is told of links ---

PAIRED = Link(
    worker="mini",
    mode="pair",
    bytes_up=100,
    bytes_down=40,
    wire_bytes_up=10,
    wire_bytes_down=41,
    weight_bytes_home=90,
    weight_bytes_sent=0,
    commands={"HELLO": LinkCommand(bytes_up=9, wire_bytes_up=4, wire_bytes_down=5)},
)


def test_a_pair_tells_what_crossed_and_what_stayed_home() -> None:
    alone = Link(worker="box", bytes_up=7, commands={"HELLO": LinkCommand()})
    text = prometheus_text(ClusterSnapshot(links=(PAIRED, alone)))
    said = [line for line in text.splitlines() if not line.startswith("#")]
    assert 'dllm_link_mode{mode="pair",worker="mini"} 1.0' in said
    assert 'dllm_link_mode{mode="metered",worker="box"} 1.0' in said
    assert 'dllm_link_wire_bytes_up_total{worker="mini"} 10.0' in said
    assert 'dllm_link_weight_bytes_home_total{worker="mini"} 90.0' in said
    assert 'dllm_link_bytes_up_total{worker="box"} 7.0' in said
    crossed = 'dllm_command_wire_bytes_up_total{command="HELLO",worker="mini"} 4.0'
    assert crossed in said
    assert not [line for line in said if "wire_bytes" in line and "box" in line]


def test_drafted_tokens_are_counted() -> None:
    acceptance = Acceptance(drafted=8, accepted=6, passes=1)
    text = prometheus_text(ClusterSnapshot(speed=Speed(acceptance=acceptance)))
    assert "dllm_draft_accepted_total 6.0" in text.splitlines()
    assert "dllm_draft" not in prometheus_text(ClusterSnapshot())
