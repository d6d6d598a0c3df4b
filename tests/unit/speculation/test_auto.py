"""``--draft auto``: one comparison at an idle moment, kept for later launches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from threading import get_ident
from typing import Any

import pytest
from msgspec.structs import replace

from backends.config import Config
from backends.controller.snapshot_store import SnapshotStore
from backends.engine.llama_client import Counts, ServerClient
from backends.errors import ControllerError
from backends.speculation import auto
from backends.speculation.auto import (
    FAILURES_MAX,
    KEPT_MAX,
    QUESTIONS,
    ROUNDS_MAX,
    AutoDraft,
    Measured,
    TrialBook,
    fastest,
    measured,
    model_fingerprint,
    network_text,
    result_key,
    with_draft_text,
    with_speedups,
)
from backends.speculation.gain import WORTH, DraftGain
from backends.speculation.methods import methods_of, with_method
from backends.state import (
    NO_DRAFT,
    Acceptance,
    ChatDelta,
    ChatRequest,
    ChatTimings,
    ClusterState,
    DraftTrial,
    Lab,
    Link,
    ServerSettings,
    Speculation,
    Speed,
)
from backends.state.snapshots import RequestCounts
from tests.kit.waiting import until
from tests.unit.planning.machines import ADA, plan_for
from tests.unit.planning.machines import MODEL as BIG
from tests.unit.planning.machines import PLAIN as HEAD
from tests.unit.split.test_objectives import site
from tui.model.launch_settings import auto_text, trials_text

NGRAM, MODEL = "ngram", "/models/small.gguf"
PLAN = replace(
    plan_for(HEAD, ADA, peers=("ada",)),
    server=ServerSettings(draft="auto"),
    speculation=Speculation(
        type="draft-simple", model=MODEL, instead=(Speculation(type="ngram-map-k"),)
    ),
)
RATES = {NO_DRAFT: 20.0, NGRAM: 24.0, MODEL: 60.0}
ADA_FORECAST = site().forecast()
ADA_LINK = Link(worker="ada", rtt_ms=3.0)


class Events:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.failures: list[str] = []

    def tried(self, what: str) -> None:
        self.texts.append(what)

    def tried_in_vain(self, what: str, error: Exception) -> None:
        self.failures.append(f"{what}: {error}")


class Stage:
    """A cluster that serves with the draft that ``auto`` wants."""

    def __init__(self, folder: Path) -> None:
        self.store = SnapshotStore(Config)
        self.store.update(
            state=ClusterState.SERVING,
            requests=RequestCounts(),
            model=BIG,
            links=(ADA_LINK,),
        )
        self.events = Events()
        self.draft = NO_DRAFT
        self.measured: list[str] = []
        self.loads: list[str] = []
        self.shown: list[str] = []
        self.rates = RATES
        self.fails: set[str] = set()
        self.error: BaseException = ControllerError("no answer")
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.gains: dict[str, DraftGain] = {}
        self.file = folder / "trials.json"
        self.auto = self.made()
        self.task: asyncio.Task[None] | None = None

    def made(self) -> AutoDraft:
        book = TrialBook(self.file)
        return AutoDraft(
            *(self.store, self.events, book),
            measure=self.measure,
            predict=self.predict,
            idle_s=0.01,
        )

    async def predict(self, _plan: Any) -> dict[str, DraftGain]:
        return self.gains

    async def measure(self, _port: int, slots: int) -> Measured:
        assert slots == 1
        self.measured.append(self.draft)
        self.shown.append(auto_text(self.store.snapshot))
        await self.goes_on.wait()
        if self.draft in self.fails:
            raise self.error
        acceptance = None if self.draft == NO_DRAFT else 0.75
        return Measured(self.rates[self.draft], acceptance)

    def begins(self, plan: Any = PLAN) -> None:
        self.store.update(plan=plan)

        async def run() -> None:
            while True:
                await self.auto.foresee(plan)
                self.draft = self.auto.begins(plan)
                self.loads.append(self.draft)
                self.auto.serves(8080)
                await self.auto.over(plan, self.draft)

        self.task = asyncio.create_task(run())

    async def ends(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    async def settled(self) -> None:
        await until(lambda: self.now is not None and not self.now.doing)

    async def relaunched(self) -> None:
        await self.ends()
        for seen in (self.measured, self.loads, self.events.texts):
            seen.clear()
        self.auto.forget()
        self.auto = self.made()
        self.begins()

    @property
    def now(self) -> Any:
        return self.store.snapshot.draft_now


@pytest.fixture
async def stage(tmp_path: Path) -> Any:
    stage = Stage(tmp_path)
    stage.begins()
    yield stage
    await stage.ends()


async def rest() -> None:
    await asyncio.sleep(0.1)


# --- the comparison -------------------------------------------------------------


async def test_every_draft_is_measured_once_and_the_fastest_stays(stage: Stage) -> None:
    await stage.settled()
    assert stage.measured == stage.loads == [NO_DRAFT, NGRAM, MODEL]
    assert stage.draft == MODEL
    assert stage.now.why == "×3.00 against none"
    assert auto_text(stage.store.snapshot).startswith("auto: with small (8 tokens) · ")
    assert "with ngram (8 tokens): 24.0 tok/s (×1.20)" in trials_text(
        stage.store.snapshot
    )
    assert [one.acceptance for one in stage.now.trials] == [None, 0.75, 0.75]
    assert stage.events.texts == [
        "Measured without a draft: 20.0 tok/s",
        "Measured with ngram: 24.0 tok/s",
        "Measured with small: 60.0 tok/s",
        "Chosen: with small (×3.00 against none)",
    ]
    assert [text.rpartition(" · ")[2] for text in stage.shown] == [
        "measuring without a draft (1 of 3)",
        "measuring with ngram (2 of 3)",
        "measuring with small (3 of 3)",
    ]


async def test_a_small_gain_is_not_worth_a_draft(stage: Stage) -> None:
    stage.rates = {**RATES, MODEL: 20.0 * WORTH - 0.1, NGRAM: 20.1}
    await stage.settled()
    assert stage.draft == NO_DRAFT
    assert stage.now.why == "no draft was faster"


async def test_a_client_ends_a_measurement_which_comes_again(stage: Stage) -> None:
    stage.goes_on.clear()
    await until(lambda: stage.measured == [NO_DRAFT])
    stage.store.update(requests=RequestCounts(in_flight=1))
    await until(lambda: "nobody asks" in stage.now.doing)
    stage.goes_on.set()
    await rest()
    assert stage.measured == [NO_DRAFT]
    stage.store.update(requests=RequestCounts())
    await stage.settled()
    assert stage.measured == [NO_DRAFT, NO_DRAFT, NGRAM, MODEL]


@pytest.mark.parametrize(
    "busy",
    [
        {"requests": None},
        {"requests": RequestCounts(waiting=1)},
        {"speed": Speed(requests_active=1)},
        {"state": ClusterState.LOADING},
    ],
)
async def test_it_measures_while_idle(tmp_path: Path, busy: dict[str, Any]) -> None:
    stage = Stage(tmp_path)
    stage.store.update(**busy)
    stage.begins()
    await rest()
    assert not stage.measured
    stage.store.update(
        requests=RequestCounts(), speed=Speed(), state=ClusterState.SERVING
    )
    await stage.settled()
    assert len(stage.measured) == len(RATES)
    await stage.ends()


async def test_without_any_draft_nothing_is_measured(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.begins(replace(PLAN, speculation=None))
    await stage.settled()
    assert stage.loads == [NO_DRAFT]
    assert not stage.measured
    await stage.ends()


# --- what is predicted ----------------------------------------------------------


def foreseen(**speedups: tuple[float, float, float]) -> dict[str, DraftGain]:
    """By ``small`` and ``ngram``: the least, the middle and the most."""
    predicted = ADA_FORECAST
    names = {"small": MODEL, "ngram": NGRAM}
    return {
        names[name]: DraftGain(names[name], predicted, middle, low, high)
        for name, (low, middle, high) in speedups.items()
    }


async def predicting(folder: Path, gains: dict[str, DraftGain]) -> Stage:
    stage = Stage(folder)
    stage.gains = gains
    stage.begins()
    await stage.settled()
    await stage.ends()
    return stage


async def test_what_surely_gains_is_begun_with_and_measured(tmp_path: Path) -> None:
    gains = foreseen(small=(1.2, 2.0, 3.0), ngram=(0.9, 1.1, 1.4))
    stage = await predicting(tmp_path, gains)
    assert stage.measured == [MODEL, NO_DRAFT, NGRAM]
    assert stage.loads == [MODEL, NO_DRAFT, NGRAM, MODEL]
    assert stage.draft == MODEL


async def test_what_surely_gains_nothing_is_not_loaded(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.gains = foreseen(small=(0.3, 0.5, 0.8), ngram=(0.9, 1.1, 1.4))
    stage.begins()
    await stage.settled()
    assert stage.measured == stage.loads == [NO_DRAFT, NGRAM]
    assert stage.draft == NGRAM
    stage.auto.repeat()
    await until(lambda: MODEL in stage.measured)
    await stage.settled()
    await stage.ends()
    assert stage.draft == MODEL


async def test_a_wrong_prediction_is_measured_and_undone(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.gains = foreseen(small=(1.2, 2.0, 3.0), ngram=(0.5, 0.6, 0.7))
    stage.rates = {**RATES, MODEL: 19.0}
    stage.begins()
    await until(lambda: bool(stage.measured))
    assert stage.loads == [MODEL]
    await stage.settled()
    await stage.ends()
    assert stage.measured == [MODEL, NO_DRAFT]
    assert stage.draft == NO_DRAFT
    assert stage.now.why == "no draft was faster"


SURE_LOSSES = foreseen(small=(0.3, 0.5, 0.8), ngram=(0.5, 0.6, 0.7))


async def test_nothing_is_measured_where_surely_nothing_gains(tmp_path: Path) -> None:
    stage = await predicting(tmp_path, SURE_LOSSES)
    assert stage.loads == [NO_DRAFT]
    assert not stage.measured
    assert not stage.events.texts
    assert stage.now.why == "no draft is likely to be faster"
    assert not TrialBook(stage.file).found_for(BIG)


async def test_what_may_gain_behind_a_lab_is_measured_there(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.gains = SURE_LOSSES
    stage.begins()
    await stage.settled()
    stage.gains = foreseen(small=(0.9, 2.0, 3.0), ngram=(0.5, 0.6, 0.7))
    stage.store.update(links=(replace(ADA_LINK, lab=Lab(latency_ms=10)),))
    await until(lambda: stage.draft == MODEL)
    await stage.settled()
    await stage.ends()
    assert stage.measured == [NO_DRAFT, MODEL]


async def test_a_lab_amid_a_comparison_begins_it_anew(stage: Stage) -> None:
    await until(lambda: NGRAM in stage.measured)
    stage.store.update(links=(replace(ADA_LINK, lab=Lab(latency_ms=10)),))
    await stage.settled()
    networks = [one.network for one in TrialBook(stage.file).found_for(BIG)]
    assert networks == ["8 to 32 ms"] * 3


# --- what goes wrong ------------------------------------------------------------


async def test_a_draft_whose_measurement_fails_again_is_left_out(stage: Stage) -> None:
    stage.fails.add(NGRAM)
    await stage.settled()
    assert stage.measured == [NO_DRAFT, *[NGRAM] * FAILURES_MAX, MODEL]
    what = "Measuring with ngram failed: no answer"
    assert stage.events.failures == [what] * FAILURES_MAX
    assert stage.draft == MODEL


@pytest.mark.parametrize("error", [ZeroDivisionError("oh"), asyncio.CancelledError()])
async def test_an_unforeseen_failure_ends_nothing_else(
    stage: Stage, error: BaseException
) -> None:
    stage.fails.add(NGRAM)
    stage.error = error
    await stage.settled()
    assert stage.draft == MODEL
    assert len(stage.events.failures) == FAILURES_MAX


async def test_without_a_baseline_nothing_is_compared_or_kept(stage: Stage) -> None:
    stage.fails |= set(RATES)
    await stage.settled()
    assert stage.measured == [NO_DRAFT] * FAILURES_MAX
    assert stage.now.why == "nothing could be compared"
    assert not TrialBook(stage.file).found_for(BIG)


async def test_a_broken_comparison_leaves_the_cluster_as_it_is(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> str:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("backends.speculation.auto.result_key", broken)
    await until(lambda: bool(stage.events.failures))
    assert stage.events.failures == [
        "The comparison of drafts ended; the cluster serves on: oh"
    ]
    await rest()
    assert stage.loads == [NO_DRAFT]
    monkeypatch.undo()
    stage.auto.repeat()
    await stage.settled()
    assert stage.draft == MODEL


async def test_a_draft_that_is_given_up_is_not_loaded_again(stage: Stage) -> None:
    await stage.settled()
    stage.auto.give_up(MODEL)
    assert stage.auto.begins(PLAN) == NO_DRAFT
    over = asyncio.create_task(stage.auto.over(PLAN, NO_DRAFT))
    assert await over == "Loaded again with ngram: ×1.20 against none"


async def test_a_draft_is_blamed_for_a_server_that_never_served(tmp_path: Path) -> None:
    auto = Stage(tmp_path).auto
    auto.begins(PLAN)
    assert auto.blames(MODEL)
    assert not auto.blames(NO_DRAFT)
    auto.serves(8080)
    assert not auto.blames(MODEL)


async def test_measurement_cut_short_leaves_nothing_on_the_board(stage: Stage) -> None:
    stage.goes_on.clear()
    await until(lambda: bool(stage.measured))
    stage.auto.forget()
    await stage.ends()
    assert stage.now is None


# --- what is kept ---------------------------------------------------------------


async def test_a_later_launch_takes_the_result(stage: Stage) -> None:
    await stage.settled()
    before = stage.now
    await stage.relaunched()
    await stage.settled()
    assert (stage.measured, stage.loads) == ([], [MODEL])
    assert stage.now == before
    assert not stage.events.texts


async def test_another_network_is_measured_anew_at_next_launch(stage: Stage) -> None:
    await stage.settled()
    stage.store.update(links=(replace(ADA_LINK, rtt_ms=200.0),))
    await rest()
    assert len(stage.measured) == len(RATES), "not while it serves"
    await stage.relaunched()
    await stage.settled()
    assert sorted(stage.measured) == sorted(RATES)
    networks = [one.network for one in TrialBook(stage.file).found_for(BIG)]
    assert networks == ["over 128 ms"] * 3 + ["2 to 8 ms"] * 3


async def test_on_request_everything_is_measured_again(stage: Stage) -> None:
    await stage.settled()
    stage.measured.clear()
    stage.rates = {**RATES, NGRAM: 90.0}
    stage.auto.repeat()
    await until(lambda: len(stage.measured) == len(RATES))
    await stage.settled()
    assert stage.draft == NGRAM
    await stage.relaunched()
    await stage.settled()
    assert stage.loads == [NGRAM]


async def test_nothing_is_repeated_where_nothing_is_compared(stage: Stage) -> None:
    stage.auto.forget()
    with pytest.raises(ControllerError, match="does not run with --draft auto"):
        stage.auto.repeat()


async def test_a_later_controller_adopts_the_draft_that_runs(stage: Stage) -> None:
    await until(lambda: stage.draft == NGRAM)
    assert stage.made().begins(PLAN) == NGRAM


def test_the_key_is_plan_model_and_network() -> None:
    key = result_key(PLAN, BIG, (ADA_LINK,))
    same = replace(PLAN, api_port=9, asked=None, prompt_cache_mib=7)
    assert result_key(same, BIG, (replace(ADA_LINK, rtt_ms=7.0),)) == key
    others = [
        (replace(PLAN, ctx_size=77), BIG, (ADA_LINK,)),
        (replace(PLAN, speculation=None), BIG, (ADA_LINK,)),
        (PLAN, replace(BIG, n_layer=99), (ADA_LINK,)),
        (PLAN, BIG, (replace(ADA_LINK, lab=Lab(latency_ms=10)),)),
    ]
    assert len({key, *(result_key(*one) for one in others)}) == 1 + len(others)
    assert model_fingerprint(BIG) == model_fingerprint(
        replace(BIG, path="/elsewhere/m.gguf")
    )


def test_the_round_trips_of_a_token_in_words() -> None:
    assert network_text(()) == "under 2 ms"
    far = replace(ADA_LINK, lab=Lab(latency_ms=10))
    assert network_text((far, Link(worker="bob"))) == "8 to 32 ms"
    assert network_text((far, far)) == "32 to 128 ms"


async def test_file_that_cannot_be_read_or_written_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "trials.json").write_text("{")
    assert TrialBook(tmp_path / "trials.json").running(PLAN) is None
    gone = TrialBook(tmp_path / "trials.json" / "no" / "folder")
    await gone.runs(PLAN, MODEL)
    assert gone.running(PLAN) == MODEL


async def test_the_file_is_written_beside_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(
        auto, "write_private", lambda *a, **k: threads.append(get_ident())
    )
    await TrialBook(tmp_path / "trials.json").runs(PLAN, MODEL)
    assert threads
    assert get_ident() not in threads


async def test_the_oldest_results_are_forgotten(tmp_path: Path) -> None:
    book = TrialBook(tmp_path / "trials.json")
    for number in range(KEPT_MAX + 1):
        await book.keep(f"key{number}", (trial(NO_DRAFT, 1.0),))
    kept = TrialBook(tmp_path / "trials.json")
    assert (bool(kept.of("key0")), bool(kept.of("key1"))) == (False, True)


def trial(draft: str, tok_per_s: float) -> DraftTrial:
    return DraftTrial(draft=draft, tok_per_s=tok_per_s, at=1.0)


def test_the_fastest_is_chosen_if_it_is_worth_it() -> None:
    trials = with_speedups(trial(draft, rate) for draft, rate in RATES.items())
    assert fastest(trials) == MODEL
    assert fastest(trials, {MODEL}) == NGRAM
    assert fastest(trials[:1]) == fastest(()) == NO_DRAFT
    assert fastest(with_speedups([trial(MODEL, 60.0)])) == NO_DRAFT


def test_a_plan_runs_with_the_draft_that_was_chosen() -> None:
    assert methods_of(PLAN) == (NO_DRAFT, NGRAM, MODEL)
    assert PLAN.speculation is not None
    chosen = with_method(PLAN, MODEL)
    assert chosen.server.draft == MODEL
    assert chosen.speculation == replace(PLAN.speculation, instead=())
    assert with_method(PLAN, NGRAM).speculation == PLAN.speculation.instead[0]
    plain = with_method(PLAN, NO_DRAFT)
    assert (plain.server.draft, plain.speculation) == (NO_DRAFT, None)


def test_a_draft_in_words() -> None:
    assert with_draft_text("mini:/m/small.gguf") == "with small"
    assert with_draft_text(NO_DRAFT) == "without a draft"


# --- measuring ------------------------------------------------------------------


class Server(ServerClient):
    """Answers in so many tokens, each time with the next speed."""

    def __init__(self, speeds: Iterator[float], tokens: int = 32) -> None:
        self._speeds = speeds
        self._tokens = tokens
        self.asked: list[ChatRequest] = []
        self.told = [
            Counts(acceptance=Acceptance(drafted=100, accepted=50)),
            Counts(acceptance=Acceptance(drafted=160, accepted=95)),
        ]

    async def counts(self) -> Counts:
        return self.told.pop(0)

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatDelta, None]:
        self.asked.append(request)
        tokens = min(self._tokens, request.sampling.max_tokens or self._tokens)
        yield ChatDelta(text="word " * tokens)
        timings = ChatTimings(tokens=tokens, tok_per_s=next(self._speeds))
        yield ChatDelta(timings=timings)


def always(speed: float) -> Iterator[float]:
    while True:
        yield speed


def but_slow(speed: float, *numbers: int) -> Iterator[float]:
    for number, one in enumerate(always(speed)):
        yield one / 10 if number in numbers else one


async def test_other_work_on_the_machine_is_not_measured() -> None:
    undisturbed = await measured(Server(always(100.0)), 1)
    assert undisturbed.tok_per_s == pytest.approx(100 * 31 / 32)
    disturbed = await measured(Server(but_slow(100.0, 1, 4)), 1)
    assert disturbed[:2] == undisturbed[:2]


async def test_slots_are_counted_together() -> None:
    found = await measured(Server(always(50.0)), 4)
    assert found.tok_per_s == pytest.approx(4 * 50 * 31 / 32)


@pytest.mark.parametrize("untold", [None, 0, 1])
async def test_the_acceptance_is_that_of_the_measurement(untold: int | None) -> None:
    server = Server(always(50.0))
    if untold is not None:
        server.told[untold] = Counts()
    found = await measured(server, 1)
    known = {None: 0.75, 0: 95 / 160, 1: None}
    assert found.acceptance == known[untold]
    if untold is None:
        # The first answer only warms up.
        tokens = 32 * (len(server.asked) - 1)
        assert found.drafted == pytest.approx(60 / (tokens - 45))


@pytest.mark.parametrize(
    ("speed", "answers"), [(1000.0, 2 * ROUNDS_MAX), (20.0, 2 * 4), (1.0, 2)]
)
async def test_a_fast_cluster_is_asked_more(speed: float, answers: int) -> None:
    server = Server(always(speed))
    await measured(server, 1)
    texts = [request.messages[-1].content for request in server.asked[1:]]
    assert len(texts) == answers
    assert set(texts) <= set(QUESTIONS)


async def test_an_answer_of_one_token_tells_nothing() -> None:
    with pytest.raises(ControllerError, match="too short"):
        await measured(Server(always(100.0), tokens=1), 1)
