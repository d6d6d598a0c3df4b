"""What a token waits for, and the change of the plan that helps most."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from backends.controller.best_plans import Option
from backends.controller.bottleneck import NEEDS_ANSWER, NEEDS_ANSWER_NOW, explain
from backends.link.figures import token_parts
from backends.split.cost import with_labs
from backends.split.layout import counts, devices, make_split
from backends.state import (
    Acceptance,
    Bottleneck,
    ClusterSnapshot,
    ClusterState,
    DraftTrial,
    Lab,
    Link,
    Plan,
    ServerSettings,
    Speculation,
    Speed,
)
from tests.unit.controller.test_best_plans import ASK, MODEL, options

ORDER = ["studio/CPU", "mini/MTL0", "mini2/MTL0", "studio/MTL0"]
SLOW = Lab(latency_ms=10)
HELD = ("mini/MTL0=8", "mini2/MTL0=0", "studio/MTL0=41")
NGRAM = Speculation(type="ngram-map-k")


def option(*held: int, layers: int = 48, **changes: Any) -> Option:
    """The cluster file's machines, with so many layers on each of ``ORDER``."""
    model = replace(MODEL, layers=MODEL.layers[:1] * layers, n_layer=layers)
    found = options(replace(ASK, objective=None), model)[0]
    plan = replace(found.plan, split=make_split(layers, ORDER, held))
    return dataclasses.replace(found, plan=plan, **changes)


def link(worker: str, *, up_ms: float, compute_ms: float, **more: Any) -> Link:
    return Link(
        worker=worker,
        round_trips_per_token=1,
        head_ms_per_token=100 - up_ms - compute_ms,
        up_ms_per_token=up_ms,
        compute_ms_per_token=compute_ms,
        pass_p50_ms=100,
        **more,
    )


def explained(there: Option, *links: Link, **more: Any) -> Bottleneck:
    """The answer of the controller, which puts the labs into the speeds."""
    labs = {one.worker: one.lab for one in links}
    there = dataclasses.replace(there, speeds=with_labs(there.speeds, labs.get))
    drafted = more.pop("drafted", ())
    snapshot = ClusterSnapshot(
        state=ClusterState.SERVING, plan=there.plan, links=links, **more
    )
    return explain(there, snapshot, drafted)


def taken(found: Bottleneck) -> dict[str, int]:
    assert found.change is not None
    split = found.change.plan.split
    return dict(zip(devices(split), counts(split), strict=True))


def test_a_slow_link_is_named_and_its_layers_go_elsewhere() -> None:
    mini = link("mini", up_ms=60, compute_ms=5, lab=SLOW)
    found = explained(option(0, 1, 0, 48), mini)
    assert found.text.startswith(
        "60 % of a token is mini's link, slowed by the lab; "
        "all layers from mini/MTL0 to studio/MTL0: +"
    )
    assert "tok/s (predicted, +" in found.text
    assert found.bound == "round trips"
    assert taken(found)["mini/MTL0"] == 0
    assert found.change is not None
    assert 0 < found.change.low < found.change.gain < found.change.high
    # Of the measured 10 tokens a second, not of the planner's.
    assert found.tok_per_s == pytest.approx(10)


def test_what_is_not_surely_faster_is_no_change() -> None:
    """The studio is full, so that its memory is what limits it."""
    mini = link("mini", up_ms=1, compute_ms=10)
    found = explained(option(0, 9, 0, 54, layers=62), mini)
    assert found.change is None
    assert found.text == (
        "89 % of a token is studio's compute (memory bandwidth); no change of the plan "
        "is predicted to gain 3 %."
    )


@pytest.mark.parametrize(
    ("held", "pins"), [((0, 10, 0, 39), ("mini/MTL0>=10",)), ((0, 0, 0, 49), ())]
)
def test_pins_hold_and_the_best_stays(
    held: tuple[int, ...], pins: tuple[str, ...]
) -> None:
    links = [link("mini", up_ms=1, compute_ms=50)] if held[1] else []
    speed = Speed(last_tok_per_s=10)
    found = explained(option(*held, pins=pins), *links, speed=speed)
    assert found.parts
    assert found.change is None


def test_a_head_alone_is_all_of_a_token() -> None:
    speed = Speed(
        last_tok_per_s=20, acceptance=Acceptance(drafted=4, accepted=2, passes=2)
    )
    found = explained(option(0, 0, 0, 49), speed=speed)
    assert [(part.name, part.share) for part in found.parts] == [("studio", 1.0)]
    # Two tokens a pass.
    assert found.pass_ms == pytest.approx(100)


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ((), "The links are not measured"),
        ((Link(worker="mini"),), NEEDS_ANSWER),
        ((Link(worker="mini", round_trips_per_token=1.0),), NEEDS_ANSWER_NOW),
        (
            (Link(worker="mini", mode="plain", reason="RPC 9.0 is not known"),),
            "The link to mini is not measured: RPC 9.0 is not known.",
        ),
    ],
)
def test_without_figures_it_says_why(links: tuple[Link, ...], said: str) -> None:
    found = explained(option(0, 10, 0, 39), *links)
    assert found.text.startswith(said)
    assert found.parts == ()


def drafted(plan: Plan) -> Plan:
    return replace(
        plan, server=ServerSettings(draft="ngram", draft_max=8), speculation=NGRAM
    )


def luck(acceptance: float) -> tuple[DraftTrial, ...]:
    return (
        DraftTrial(
            draft="ngram", tok_per_s=1, acceptance=acceptance, drafted=6.0, at=1.0
        ),
    )


def test_a_draft_that_was_measured_is_a_change() -> None:
    there = option(0, 8, 0, 41, trials=luck(0.8), pins=HELD)
    mini = link("mini", up_ms=50, compute_ms=10, lab=SLOW)
    found = explained(there, mini, drafted=[drafted(there.plan)])
    assert found.change is not None
    assert found.change.text == "--draft ngram"
    assert found.change.plan.speculation == NGRAM


def test_a_draft_that_never_ran_comes_after_all_else() -> None:
    """The part of it that is accepted is a guess."""
    mini = link("mini", up_ms=50, compute_ms=10, lab=SLOW)
    for pins, text in ((HELD, "--draft ngram"), ((), "all layers from mini/MTL0")):
        there = option(0, 8, 0, 41, pins=pins)
        found = explained(there, mini, drafted=[drafted(there.plan)])
        assert found.change is not None
        assert found.change.text.startswith(text)


def test_a_draft_of_no_use_is_left_out() -> None:
    there = option(0, 8, 0, 41, pins=HELD)
    there = dataclasses.replace(there, plan=drafted(there.plan))
    mini = link("mini", up_ms=5, compute_ms=10)
    useless = Acceptance(drafted=900, accepted=9, passes=100)
    found = explained(there, mini, speed=Speed(acceptance=useless))
    assert found.change is not None
    assert found.change.text == "no draft"
    assert found.change.plan.speculation is None


def test_the_output_goes_to_the_device_that_need_not_send_it() -> None:
    """A worker that has it sends the whole vocabulary for each token."""
    there = option(0, 0, 0, 49)
    order = ["studio/CPU", "studio/MTL0", "mini/MTL0"]
    pinned = make_split(48, order, [0, 41, 8])
    there = dataclasses.replace(
        there, plan=replace(there.plan, split=pinned), pins=("mini/MTL0=8",)
    )
    mini = link("mini", up_ms=60, compute_ms=5, lab=Lab(rate_mb_s=1))
    found = explained(there, mini)
    assert found.bound == "data rate"
    assert found.change is not None
    assert found.change.text == "studio/MTL0 last, with the output"
    assert devices(found.change.plan.split)[-1] == "studio/MTL0"


def test_parts_together_take_the_median_of_passes() -> None:
    links = [
        link("mini", up_ms=10, compute_ms=20),
        link("mini2", up_ms=5, compute_ms=15),
    ]
    snapshot = ClusterSnapshot(plan=option(0, 10, 10, 29).plan, links=tuple(links))
    parts = token_parts(snapshot)
    assert sum(part.ms for part in parts) == pytest.approx(100)
    assert parts[0].name == "studio"
    assert parts[0].ms == pytest.approx(50)
