"""Plans with a part of each tensor on every device: where they win, and why not."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backends.server_settings import BY_TENSOR, is_by_tensor, without_tensor
from backends.split.cost import pass_cost
from backends.split.layout import make_split
from backends.split.objectives import best_split, in_parts
from backends.split.problem import SplitProblem, parse_pins
from backends.split.rpc_traffic import TensorStage, tensor_bytes, tensor_trips
from backends.split.tensor_parallel import NAME, by_tensor
from backends.state import FlashAttention, Objective, ServerSettings
from tests.unit.split.test_objectives import FULL, MODEL, site

AIM = Objective.DECODE


def near(**rooms: tuple[float, float, float]) -> SplitProblem:
    """Two devices alike, as slow as they are large, and next to no network."""
    there = site(rtt_ms=0.001, **rooms)
    slow = there.speeds.devices[1]
    alike = (there.speeds.devices[0], slow, replace(slow, device="b/CUDA0"))
    speeds = tuple(replace(s, ms=tuple(20 * ms for ms in s.ms)) for s in alike)
    return there._replace(speeds=replace(there.speeds, devices=speeds))


def test_where_the_link_is_nothing_it_wins() -> None:
    there = near()
    by_layers = best_split(there, AIM).forecast
    found = by_tensor(there, by_layers)
    assert found.plan is not None
    assert found.plan.extra_args == BY_TENSOR
    assert {s.device for s in found.plan.split.shares if s.layers} == set(FULL[1:])
    told = there._replace(plan=found.plan).forecast()
    assert told.tok_per_s > 1.2 * by_layers.tok_per_s
    assert told.trips_per_token == 2 * (2 * MODEL.n_layer + 1)
    instead = in_parts(NAME, there, found)
    assert (instead.by_tensor, instead.forecast) == (True, told)


@pytest.mark.parametrize(
    ("there", "says"),
    [
        (site(rtt_ms=2), "tok/s; 26 trips a token, and "),
        (near()._replace(pins=parse_pins(["a/CUDA0>=1"])), "pins are about whole"),
        (near(rooms_gib=(64, 0.4, 0.4)), "have no room"),
        (
            site()._replace(
                plan=replace(site().plan, split=make_split(6, FULL[:2], [0, 7]))
            ),
            "needs two devices",
        ),
        (
            site()._replace(
                plan=replace(
                    site().plan,
                    server=ServerSettings(flash_attention=FlashAttention.OFF),
                )
            ),
            "needs flash attention",
        ),
    ],
)
def test_elsewhere_the_reason_is_told(there: SplitProblem, says: str) -> None:
    found = by_tensor(there, site(rtt_ms=2).forecast())
    assert found.plan is None
    assert says in found.why


def test_the_slowest_device_counts_and_each_fetch() -> None:
    there = near()
    plan = replace(there.plan, extra_args=BY_TENSOR)
    there = there._replace(plan=plan)
    cost = pass_cost(MODEL, plan, there.speeds, depth=1, batch=1, rows=1)
    parts = {part.name: part for part in cost.parts}
    assert parts["a"].trips == parts["b"].trips == 13
    slower = replace(there.speeds.devices[1], ms=(1000.0, 0, 0, 0, 0, 0))
    devices = (there.speeds.devices[0], slower, there.speeds.devices[2])
    speeds = replace(there.speeds, devices=devices)
    uneven = pass_cost(MODEL, plan, speeds, depth=1, batch=1, rows=1)
    computing = sum(part.compute_ms for part in uneven.parts[1:])
    read_gb = (MODEL.output_bytes + sum(one.bytes for one in MODEL.layers)) / 1e9
    assert computing == pytest.approx(1000 * read_gb * 4 / 7)


def test_pairs_of_pairs_fetch_twice() -> None:
    assert tensor_trips(MODEL, 2) == 13
    assert tensor_trips(MODEL, 4) == 25
    two, four = (TensorStage(n, 1, 1, 1) for n in (2, 4))
    for protocol in ("7.0.0", "8.0.0", ""):
        more, less = (tensor_bytes(MODEL, one, protocol)[0] for one in (four, two))
        assert more > less
    assert tensor_bytes(MODEL, two, "6.1.0") == tensor_bytes(MODEL, two, "7.3.0")
    assert tensor_bytes(MODEL, two, "9.0.0") == tensor_bytes(MODEL, two, "8.0.0")
    assert tensor_bytes(MODEL, two, "8.0.0") < tensor_bytes(MODEL, two, "7.0.0")


@pytest.mark.parametrize(
    ("words", "is_one"),
    [
        ("-sm tensor", True),
        ("--split_mode tensor", True),
        ("-sm tensor -sm layer", False),
        ("--temp 0", False),
    ],
)
def test_the_arguments_say_so(words: str, is_one: bool) -> None:
    assert is_by_tensor(words.split()) is is_one
    assert without_tensor(("-x", *BY_TENSOR)) == ("-x",)
