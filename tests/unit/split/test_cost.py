"""The predicted speed of a plan: its work, its network, its error band."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backends.split.cost import (
    KINDS,
    Work,
    Workload,
    active_bytes,
    counted_work,
    expert_work,
    forecast,
    lab_ms,
    layer_work,
    pass_cost,
    time_text,
    with_lab,
    work_ms,
)
from backends.split.layout import make_split
from backends.split.rpc_traffic import stage_bytes
from backends.state import (
    ClusterSpeeds,
    DeviceSpeed,
    Lab,
    Layer,
    LayerBytes,
    LinkSpeed,
    ModelInfo,
    Plan,
    ServerSettings,
    SpeedSource,
    WorkerSpec,
)

MODEL = ModelInfo(
    path="m.gguf",
    arch="llama",
    n_layer=4,
    n_embd=500,
    n_vocab=10_000,
    n_head=8,
    n_head_kv=4,
    layers=tuple(
        Layer(
            index=i,
            bytes=100_000_000,
            quants={"F16": 100_000_000},
            kv_bytes_per_token=2000,
            k_bytes_per_token=1000,
        )
        for i in range(4)
    ),
    output_bytes=50_000_000,
)


def speed(device: str, *ms: float, spread: float = 0.0) -> DeviceSpeed:
    diagonal = tuple(
        (spread * ms[row]) ** 2 if row == col else 0.0
        for row in range(KINDS)
        for col in range(KINDS)
    )
    return DeviceSpeed(
        device=device, ms=ms, covariance=diagonal, source=SpeedSource.MEASURED
    )


SPEEDS = ClusterSpeeds(
    head=speed("head", 0, 0, 0, 0, 0.5, 1),
    devices=(
        speed("local/CPU", 100, 0, 0, 0, 0, 0),
        speed("a/CPU", 50, 10, 0, 0, 1, 0.5),
        speed("b/CPU", 10, 0, 0, 0, 0, 0),
    ),
    links=(
        LinkSpeed(worker="a", rtt_ms=2, source=SpeedSource.MEASURED),
        LinkSpeed(worker="b", rtt_ms=3, ms_per_mb=10, source=SpeedSource.MEASURED),
    ),
    noise=0.0,
)


def plan_of(*counts: int) -> Plan:
    return Plan(
        model="m.gguf",
        split=make_split(4, ["local/CPU", "a/CPU", "b/CPU"], counts),
        workers=(WorkerSpec(name="a", peer="a"), WorkerSpec(name="b", peer="b")),
    )


def test_a_pass_adds_up_by_hand() -> None:
    cost = pass_cost(MODEL, plan_of(1, 2, 2), SPEEDS, depth=1, batch=1, rows=1)
    head, a, b = cost.parts
    assert head.name == "local"
    # It hands over to two devices of workers.
    assert head.compute_ms == pytest.approx(1 + 2 * 0.5 + 0.1 * 100)
    # 0.1 · 10⁹ weights of F16, each a tenth of the work of one of Q4_K.
    assert a.compute_ms == pytest.approx(0.2 * 50 + 0.01 * 10 + 2 * 1 + 0.5)
    assert a.network_ms == pytest.approx(2)
    # The output is on b: 4 bytes for each word come back.
    up = 1924 + 318 + 4 * 500 + 2 * 256
    down = 8 + 4 * 10_000
    assert (b.bytes_up, b.bytes_down) == (up, down)
    assert b.compute_ms == pytest.approx(0.15 * 10)
    assert b.network_ms == pytest.approx(3 + (up + down) / 1e6 * 10)
    assert cost.ms == pytest.approx(
        sum(p.compute_ms + p.network_ms for p in cost.parts)
    )


def test_the_bytes_of_a_stage_are_those_on_the_wire() -> None:
    """Counted on the wire with SmolLM2 at a depth of 561 tokens (RPC 7.0.0)."""
    smol = replace(MODEL, n_embd=576, n_vocab=49_152)
    assert stage_bytes(smol, 561, 1, rows=1, has_output=False) == (5764, 2312)
    assert stage_bytes(smol, 561, 1, rows=1, has_output=True) == (6082, 196_616)


def multiplied(kind: str, name: str = "") -> float:
    """10⁹ weights of Q4_K that are as much work as those in a layer of 0.1 GB."""
    layers = (replace(MODEL.layers[0], quants={kind: 1}),)
    model = replace(MODEL, name=name, n_layer=1, layers=layers)
    return layer_work(model, plan_of(1, 2, 2), 1, 1, rows=1)[0].gvalues


def test_weights_are_counted_by_the_work_of_their_type() -> None:
    plain = 0.1 * 8 / 4.5
    assert multiplied("Q4_K") == pytest.approx(plain)
    assert multiplied("Q4_0") == pytest.approx(plain * 2.7)
    assert multiplied("Q4_K", "zeros, 32x1024x2816-Q4_K") < 0.8 * plain
    assert multiplied("F16", "zeros, x") < multiplied("F16") < 0.1 * plain
    # One that is not in the table counts as the one with as many bits.
    assert multiplied("Q2_0") == pytest.approx(0.1 * 8 / 2.5 * 2.6)


@pytest.mark.parametrize(("bits", "of_one"), [(4.5, 1.0), (8.5, 2.2), (16, 0.1)])
def test_the_type_of_the_output_is_told_by_its_bits(bits: float, of_one: float) -> None:
    values = MODEL.n_embd * MODEL.n_vocab
    model = replace(MODEL, output_bytes=int(values * bits / 8))
    output = layer_work(model, plan_of(1, 2, 2), 1, 1, rows=1)[-1]
    assert output.gvalues == pytest.approx(values * of_one / 1e9)


def test_a_machine_alone_has_no_network() -> None:
    told = forecast(MODEL, plan_of(5, 0, 0), SPEEDS)
    assert told.trips_per_token == told.bytes_per_token == 0
    assert time_text(told) == "A pass takes 46.0 ms, without a network."
    assert told.tok_per_s == pytest.approx(1000 / (1 + 0.45 * 100))


def test_a_lab_adds_its_trips_and_bytes() -> None:
    lab = Lab(latency_ms=10, rate_mb_s=1)
    plain = pass_cost(MODEL, plan_of(0, 2, 3), SPEEDS, depth=1, batch=1, rows=1)
    links = tuple(with_lab(link, lab) for link in SPEEDS.links)
    slow = pass_cost(
        MODEL, plan_of(0, 2, 3), replace(SPEEDS, links=links), depth=1, batch=1, rows=1
    )
    added = sum(lab_ms(lab, p.trips, p.bytes_up + p.bytes_down) for p in plain.parts)
    assert slow.ms - plain.ms == pytest.approx(added)
    assert added > 2 * 20


def test_experts_that_a_token_does_not_use_are_not_read() -> None:
    layer = Layer(index=0, bytes=1000, groups=LayerBytes(experts=800, attention=200))
    moe = replace(MODEL, n_expert=8, n_expert_used=2, layers=(layer,))
    assert active_bytes(layer, moe, 1) == pytest.approx(200 + 800 / 4)
    assert 400 < active_bytes(layer, moe, 4) < 1000
    assert active_bytes(layer, moe, 512) == pytest.approx(1000)
    assert active_bytes(layer, MODEL, 1) == 1000


def test_experts_of_zeros_are_no_more_work_than_their_layer() -> None:
    layer = replace(MODEL.layers[0], groups=LayerBytes(experts=99_000_000))
    zeros = replace(MODEL, name="zeros, x", n_expert=1, n_expert_used=1)
    model = replace(zeros, layers=(layer,))
    whole = layer_work(model, plan_of(1, 2, 2), 1, 1, rows=1)[0]
    experts = expert_work(layer, model, 1)
    assert experts.gvalues == pytest.approx(0.99 * whole.gvalues)


def test_cache_grows_with_depth_up_to_the_window() -> None:
    window = replace(MODEL.layers[0], kv_window=100)
    model = replace(MODEL, layers=(window, *MODEL.layers[1:]))
    slid, whole, *_ = layer_work(model, plan_of(5, 0, 0), 1000, 1, rows=1)
    assert whole.kv_gb == pytest.approx(1000 * 2000 / 1e9)
    assert slid.kv_gb == pytest.approx(100 * 2000 / 1e9)
    small = replace(plan_of(5, 0, 0), server=ServerSettings(cache_type_k="q8_0"))
    halved = layer_work(model, small, 1000, 1, rows=1)[1]
    assert whole.kv_gb / 2 < halved.kv_gb < whole.kv_gb


def test_slots_share_a_pass_but_not_their_caches() -> None:
    one = layer_work(MODEL, plan_of(5, 0, 0), 1000, 1, rows=1)[0]
    four = layer_work(MODEL, plan_of(5, 0, 0), 1000, 4, rows=4, slots=4)[0]
    assert four.weight_gb == one.weight_gb
    assert four.kv_gb == pytest.approx(4 * one.kv_gb)
    assert one.gops == 0 < four.gops
    alone = forecast(MODEL, plan_of(0, 2, 3), SPEEDS)
    together = forecast(MODEL, plan_of(0, 2, 3), SPEEDS, Workload(slots=4))
    assert together.tok_per_s > 2 * alone.tok_per_s
    assert together.trips_per_token == pytest.approx(alone.trips_per_token / 4)


def test_drafted_tokens_of_a_slot_read_its_cache_together() -> None:
    kv_ms = tuple(replace(one, ms=(0, 0, 1, 0, 0, 0)) for one in SPEEDS.devices)
    speeds = replace(SPEEDS, devices=kv_ms)
    for slots in (1, 4):
        plain, drafted = (
            forecast(MODEL, plan_of(5, 0, 0), speeds, Workload(slots=slots, drafted=n))
            for n in (0, 7)
        )
        assert drafted.pass_ms == pytest.approx(plain.pass_ms)
    assert plain.pass_ms == pytest.approx(1 + 4 * 4 * 2000 * 512 * 1e-9)


def test_a_draft_divides_trips_by_the_tokens_of_a_pass() -> None:
    alone = forecast(MODEL, plan_of(0, 2, 3), SPEEDS)
    load = Workload(tokens_per_pass=3, drafted=4, draft_ms=2)
    drafted = forecast(MODEL, plan_of(0, 2, 3), SPEEDS, load)
    assert drafted.trips_per_token == pytest.approx(alone.trips_per_token / 3)
    assert drafted.pass_ms > alone.pass_ms + 2


def test_the_band_holds_the_figure_and_grows_with_what_is_unknown() -> None:
    sure = forecast(MODEL, plan_of(5, 0, 0), replace(SPEEDS, noise=0.03))
    loose = replace(
        SPEEDS, devices=(speed("local/CPU", 100, 0, 0, 0, 0, 0, spread=0.5),)
    )
    unsure = forecast(MODEL, plan_of(5, 0, 0), loose)
    assert unsure.low < sure.low < sure.tok_per_s < sure.high < unsure.high
    assert unsure.low > 0


def test_variance_counts_what_is_correlated_together() -> None:
    """Two figures that only their sum is known of are sure of that sum."""
    covariance = [0.0] * (KINDS * KINDS)
    covariance[0] = covariance[4 * KINDS + 4] = 4.0
    covariance[4] = covariance[4 * KINDS] = -4.0
    told = DeviceSpeed(device="d", ms=(1.0,) * KINDS, covariance=tuple(covariance))
    assert work_ms(told, Work(weight_gb=1, layers=1))[1] == pytest.approx(0)
    assert work_ms(told, Work(weight_gb=1))[1] == pytest.approx(4)


def test_a_long_prompt_overlaps_where_all_layers_are_on_devices() -> None:
    gops = tuple(replace(one, ms=(0, 0, 0, 1, 0, 0)) for one in SPEEDS.devices)
    speeds = replace(SPEEDS, devices=gops, links=())
    load = Workload(prompt_tokens=2048)
    serial = forecast(MODEL, plan_of(2, 2, 1), speeds, load)
    piped = forecast(MODEL, plan_of(0, 2, 3), speeds, load)
    assert piped.first_token_s < 0.8 * serial.first_token_s


def test_work_that_was_counted_predicts_every_split_the_same() -> None:
    works = counted_work(MODEL, plan_of(5, 0, 0))
    for counts in ((5, 0, 0), (1, 2, 2), (0, 1, 4), (0, 0, 5)):
        plan = plan_of(*counts)
        again = forecast(MODEL, plan, SPEEDS, works=works)
        assert again == forecast(MODEL, plan, SPEEDS)
