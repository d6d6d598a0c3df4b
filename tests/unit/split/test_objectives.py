"""Best splits for an aim, under pins and memory, and what else would be possible."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backends.errors import PlanError
from backends.split.calibration import HEAD_PRIOR, given_speed
from backends.split.cost import KINDS, forecast
from backends.split.layout import counts, devices, make_split
from backends.split.objectives import (
    FAST_LINK,
    MARGIN,
    Best,
    alternatives,
    best_split,
    crowded_by,
    why_best,
)
from backends.split.problem import Pins, SplitProblem, parse_pins
from backends.state import (
    ClusterSpeeds,
    Device,
    DeviceKind,
    DeviceMemory,
    DeviceSpeed,
    Layer,
    LinkSpeed,
    ModelInfo,
    Objective,
    Plan,
    Speculation,
    Split,
    WorkerSpec,
)

MIB = 1 << 20
GIB = 1 << 30
NONE = (0.0,) * (KINDS * KINDS)
MODEL = ModelInfo(
    path="m.gguf",
    arch="llama",
    n_layer=6,
    n_embd=1024,
    n_vocab=100_000,
    n_head=8,
    n_head_kv=8,
    n_ctx_train=32_768,
    layers=tuple(
        Layer(
            index=i,
            # The first ones are dense: layers are not uniform.
            bytes=(400 if i < 2 else 200) * MIB,
            quants={"Q4_K": MIB},
            kv_bytes_per_token=8192,
            k_bytes_per_token=4096,
        )
        for i in range(6)
    ),
    output_bytes=300 * MIB,
    embedding_bytes=100 * MIB,
)
FULL = ["local/CPU", "a/CUDA0", "b/CUDA0"]


def speed(device: str, kind: DeviceKind, gb_s: float) -> DeviceSpeed:
    return DeviceSpeed(device=device, ms=given_speed(kind, gb_s).ms, covariance=NONE)


def site(
    *, rooms_gib: tuple[float, float, float] = (64, 64, 64), rtt_ms: float = 2.0
) -> SplitProblem:
    return SplitProblem(
        model=MODEL,
        plan=Plan(
            model="m.gguf",
            split=make_split(6, FULL, [0, 4, 3]),
            workers=(
                WorkerSpec(name="a", peer="a", devices=("CUDA0",)),
                WorkerSpec(name="b", peer="b", devices=("CUDA0",)),
            ),
            ctx_size=4096,
        ),
        devices=tuple(
            Device(
                id=name,
                name=name.partition("/")[2],
                kind=DeviceKind.CPU if "CPU" in name else DeviceKind.CUDA,
                free_bytes=round(room * GIB),
            )
            for name, room in zip(FULL, rooms_gib, strict=True)
        ),
        speeds=ClusterSpeeds(
            head=DeviceSpeed(device="head", ms=HEAD_PRIOR.ms, covariance=NONE),
            devices=(
                speed("local/CPU", DeviceKind.CPU, 20),
                speed("a/CUDA0", DeviceKind.CUDA, 300),
                speed("b/CUDA0", DeviceKind.CUDA, 800),
            ),
            links=(
                LinkSpeed(worker="a", rtt_ms=rtt_ms, ms_per_mb=10),
                LinkSpeed(worker="b", rtt_ms=rtt_ms, ms_per_mb=10),
            ),
        ),
    )


def test_pins_hold() -> None:
    there = site(rtt_ms=0.1)
    pins = parse_pins(["output=a/CUDA0", "b/CUDA0>=2", "a/CUDA0<=3"])
    found = best_split(there._replace(pins=pins), Objective.DECODE)
    held = dict(zip(devices(found.split), counts(found.split), strict=True))
    last = [name for name in devices(found.split) if held[name]][-1]
    assert last == "a/CUDA0"
    assert held["b/CUDA0"] >= 2
    assert 1 <= held["a/CUDA0"] <= 3
    tight = parse_pins(["b/CUDA0<=600MiB", "local/CPU=0"])
    found = best_split(there._replace(pins=tight), Objective.DECODE)
    held = dict(zip(devices(found.split), counts(found.split), strict=True))
    assert held["b/CUDA0"] <= 2
    assert held["local/CPU"] == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "cannot be read"),
        ("a/CUDA0>=-3", "cannot be read"),
        ("a/CUDA0>=12GiB", "cannot be read"),
        ("a/CUDA0<=99999999999", "cannot be read"),
        ("c/CUDA0>=1", "no device of the plan"),
        ("output=a/CUDA1", "no device of the plan"),
        ("a/CUDA0>=8", "more than it may or can have"),
    ],
)
def test_a_pin_that_cannot_be_meant_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        best_split(site()._replace(pins=parse_pins([text])), Objective.DECODE)


def test_pins_that_leave_no_room_for_all_layers_are_one_sentence() -> None:
    pins = parse_pins(["local/CPU=0", "a/CUDA0<=2", "b/CUDA0<=3"])
    with pytest.raises(PlanError, match="allow 5 layers on all devices together"):
        best_split(site()._replace(pins=pins), Objective.DECODE)


def test_all_pins_hold_together() -> None:
    assert parse_pins(()) == Pins()
    pins = parse_pins(["a>=5", "a>=2", "a<=9", "a<=12", "b<=2GiB", "b<=1GiB"])
    assert pins == Pins(least={"a": 5}, most={"a": 9}, budget={"b": GIB})
    assert parse_pins([f"a<={'9' * 400}TiB"]).budget["a"] >= 1 << 50
    with pytest.raises(PlanError, match="the output on a and on b"):
        parse_pins(["output=a", "output=b"])


def test_a_draft_on_a_device_without_layers_takes_of_the_memory_it_shares() -> None:
    """The GPU that has it is so slow that it gets no layers."""
    there = site(rooms_gib=(3, 3, 0.9), rtt_ms=0.1)
    draft = DeviceMemory(
        device="a/CUDA0", model_bytes=2 * GIB, kv_bytes=0, compute_bytes=0
    )
    method = Speculation(type="draft-simple", model="d.gguf", memory=(draft,))
    slow = tuple(
        replace(one, ms=given_speed(DeviceKind.CPU, gb_s).ms)
        for one, gb_s in zip(there.speeds.devices, (80, 1, 800), strict=True)
    )
    there = there._replace(
        plan=replace(there.plan, speculation=method),
        devices=tuple(
            replace(d, memory_pool="" if d.id == "b/CUDA0" else "one")
            for d in there.devices
        ),
        speeds=replace(there.speeds, devices=slow),
    )
    with pytest.raises(PlanError, match="fits"):
        best_split(there, Objective.DECODE)


def test_alternatives_answer_what_else_would_be_possible() -> None:
    there = site(rooms_gib=(64, 1.5, 0.9), rtt_ms=0.1)
    found = best_split(there, Objective.DECODE)
    split = there.with_split(found.split)
    told = alternatives(split, Objective.DECODE)
    named = {one.name: one for one in told}
    assert named["solo on local/CPU"].forecast is not None
    solo = forecast(
        MODEL, replace(there.plan, split=make_split(6, FULL, [7, 0, 0])), there.speeds
    )
    assert named["solo on local/CPU"].forecast.tok_per_s == pytest.approx(
        solo.tok_per_s
    )
    assert named["solo on b/CUDA0"].forecast is None
    assert "does not fit" in named["solo on b/CUDA0"].why
    without = named["without a"]
    assert without.forecast is not None
    assert without.forecast.tok_per_s <= found.forecast.tok_per_s
    assert "a/CUDA0" not in without.devices
    little = site(rooms_gib=(0.5, 1.5, 0.9))
    (lacking,) = (
        o for o in alternatives(little, Objective.DECODE) if o.name == "without a"
    )
    assert lacking.forecast is None
    assert "fits" in lacking.why
    faster, twin = named[FAST_LINK], named["with one more like b"]
    assert faster.forecast is not None
    assert faster.forecast.tok_per_s > found.forecast.tok_per_s
    assert twin.forecast is not None
    assert twin.forecast.tok_per_s > found.forecast.tok_per_s
    assert "b-twin/CUDA0" in twin.devices
    like_head = named["with one more like local"]
    assert like_head.forecast is not None
    assert "local-twin/CPU" in like_head.devices


def test_one_more_is_told_of_every_kind_of_machine() -> None:
    there = site()
    names = [f"w{number}" for number in range(5)]
    there = there._replace(
        plan=replace(
            there.plan,
            split=make_split(
                6, ["local/CPU", *(f"{n}/CUDA0" for n in names)], [7, *[0] * 5]
            ),
            workers=tuple(
                WorkerSpec(name=n, peer=n, devices=("CUDA0",)) for n in names
            ),
        ),
        devices=(
            there.devices[0],
            *(replace(there.devices[1], id=f"{name}/CUDA0") for name in names),
        ),
        speeds=replace(
            there.speeds,
            devices=(
                there.speeds.devices[0],
                *(
                    speed(f"{name}/CUDA0", DeviceKind.CUDA, gb_s)
                    for name, gb_s in zip(names, (1, 2, 3, 4, 4), strict=True)
                ),
            ),
            links=tuple(LinkSpeed(worker=name, rtt_ms=1) for name in names),
        ),
    )
    told = [one.name for one in alternatives(there, Objective.DECODE)]
    more = [f"with one more like {name}" for name in ("local", *names[:4])]
    assert [name for name in told if "one more" in name] == more, "two are alike"


def test_one_more_is_not_told_where_no_link_is_known() -> None:
    """Else its network would cost nothing."""
    there = site()
    alone = there._replace(
        plan=replace(there.plan, split=make_split(6, FULL[:1], [7]), workers=()),
        devices=there.devices[:1],
        speeds=replace(there.speeds, links=()),
    )
    told = {one.name for one in alternatives(alone, Objective.DECODE)}
    assert told == {"solo on local/CPU"}


def test_a_device_elsewhere_alone_needs_no_network() -> None:
    told = alternatives(site(), Objective.DECODE)
    solo = {one.name: one for one in told}["solo on b/CUDA0"]
    assert solo.head == "b"
    assert solo.forecast is not None
    assert solo.forecast.trips_per_token == 0
    capped = site()._replace(pins=parse_pins(["b/CUDA0<=4"]))
    told = alternatives(capped, Objective.DECODE)
    solo = {one.name: one for one in told}["solo on b/CUDA0"]
    assert solo.forecast is None
    assert "it may have 4 layers" in solo.why


@pytest.mark.parametrize("aim", [Objective.DECODE, Objective.FIRST_TOKEN])
def test_room_is_reckoned_by_the_head_s_own_version(aim: Objective) -> None:
    """Since RPC 8.0.0 the vectors of tokens are an input of the first device too."""
    there = with_protocol(site(), "7.0.0")
    alone = replace(there.plan, split=make_split(6, FULL, [0, 0, 7]))
    old, new = (
        with_protocol(there, version).loads(alone)[-1].total_bytes
        for version in ("7.0.0", "8.0.0")
    )
    assert new == old + 512 * 4 * MODEL.n_embd
    room = round((old + new) / 2 / (1 - MARGIN))
    tight = there._replace(
        devices=(*there.devices[:2], replace(there.devices[2], free_bytes=room)),
        pins=parse_pins(["local/CPU<=0", "a/CUDA0<=0"]),
    )
    assert counts(best_split(tight, aim).split) == (0, 7, 0)
    assert not crowded_by(tight, alone)
    with pytest.raises(PlanError, match="No split"):
        best_split(with_protocol(tight, "8.0.0"), aim)
    assert crowded_by(with_protocol(tight, "8.0.0"), alone) == {"b/CUDA0"}


def with_protocol(there: SplitProblem, version: str) -> SplitProblem:
    return there._replace(speeds=replace(there.speeds, rpc_protocol=version))


def test_why_names_where_the_time_goes() -> None:
    there = site()
    found: Best = best_split(there, Objective.DECODE)
    text = why_best(found.forecast, there.forecast())
    assert "ms" in text
    assert "layers by memory: +" in text


def test_devices_that_get_nothing_stay_in_the_split() -> None:
    found = best_split(site(rtt_ms=300), Objective.DECODE)
    assert set(devices(found.split)) == set(FULL)
    assert isinstance(found.split, Split)
    assert sum(counts(found.split)) == 7
