"""Load progress from the bytes that relays carried."""

from __future__ import annotations

from backends.controller.load_progress import LoadProgress, overall
from backends.split.layout import make_split
from backends.state import Layer, ModelInfo, Plan, WorkerSpec

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
