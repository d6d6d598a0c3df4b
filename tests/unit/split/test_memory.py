"""Memory predicted per device, and splits balanced by it."""

from __future__ import annotations

import msgspec
import pytest

from backends.split.cost import is_pipelined
from backends.split.device_memory import (
    EngineFigures,
    balance,
    device_loads,
    ours_by_pool,
    overcommitted,
    plan_loads,
    room_bytes,
)
from backends.split.layout import counts, make_split
from backends.state import (
    Device,
    DeviceMemory,
    Layer,
    MemorySource,
    ModelInfo,
    Plan,
    Split,
)

MIB = 1 << 20
MODEL = ModelInfo(
    path="m.gguf",
    arch="llama",
    n_layer=4,
    n_embd=64,
    n_vocab=1000,
    layers=tuple(
        Layer(index=i, bytes=10 * MIB, kv_bytes_per_token=1024) for i in range(4)
    ),
    output_bytes=5 * MIB,
    embedding_bytes=5 * MIB,
)

BIG = msgspec.structs.replace(
    MODEL,
    layers=tuple(
        msgspec.structs.replace(layer, bytes=100 * MIB) for layer in MODEL.layers
    ),
)


def device(name: str, free_mib: int, pool: str = "") -> Device:
    return Device(id=name, name=name, free_bytes=free_mib * MIB, memory_pool=pool)


def test_loads_add_up() -> None:
    split = make_split(4, ["a", "b", "c"], [0, 3, 2])
    empty, first, second = device_loads(MODEL, split, 1024)
    assert empty.total_bytes == 0
    assert empty.first > empty.last
    assert first.weight_bytes == 30 * MIB
    assert first.kv_bytes == 3 * MIB
    assert second.weight_bytes == 15 * MIB
    assert 0 < first.compute_bytes < second.compute_bytes


def test_the_head_has_the_embedding_and_buffers_of_its_own() -> None:
    split = make_split(4, ["local/CPU", "a"], [0, 5])
    head, worker = device_loads(MODEL, split, 1024)
    assert head.weight_bytes == MODEL.embedding_bytes
    assert head.kv_bytes == 0
    assert 0 < head.compute_bytes < worker.compute_bytes


def test_a_tied_output_on_the_head_is_there_once() -> None:
    tied = msgspec.structs.replace(MODEL, tied_output=True)
    (alone,) = device_loads(tied, make_split(4, ["local/CPU"], [5]), 1024)
    assert alone.weight_bytes == 45 * MIB
    head, worker = device_loads(tied, make_split(4, ["local/CPU", "a"], [0, 5]), 1024)
    assert (head.weight_bytes, worker.weight_bytes) == (5 * MIB, 45 * MIB)


def test_compute_buffers_grow_with_the_context_and_with_several_devices() -> None:
    one, two = make_split(4, ["a"], [5]), make_split(4, ["a", "b"], [3, 2])

    def compute(split: Split, ctx_size: int) -> int:
        return device_loads(MODEL, split, ctx_size)[0].compute_bytes

    assert compute(one, 131_072) - compute(one, 4096) == 512 * 2 * (131_072 - 4096)
    assert compute(two, 4096) > 4 * 512 * 2 * 4096


HIDDEN = 512 * 4 * 64
"""Bytes of the hidden state of a prompt pass."""
MASK = 512 * 2 * 256


def compute_bytes(
    model: ModelInfo, *counts: int, ctx_size: int = 256, protocol: str = ""
) -> list[int]:
    """Of the head's CPU, then of each worker."""
    ids = ["local/CPU", "a", "b", "c"][: len(counts)]
    split = make_split(4, ids, counts)
    loads = device_loads(model, split, ctx_size, protocol=protocol)
    return [load.compute_bytes for load in loads]


@pytest.mark.parametrize(("words", "copies"), [((), 4), (("-nkvo",), 1)])
def test_arguments_may_keep_llama_cpp_from_pipelining(
    words: tuple[str, ...], copies: int
) -> None:
    """It keeps its inputs once then, and devices read a prompt one after another."""
    split = make_split(4, ["local/CPU", "a", "b"], [0, 2, 3])
    plan = Plan(model="m.gguf", split=split, ctx_size=256, extra_args=words)
    head = plan_loads(MODEL, plan)[0]
    assert head.compute_bytes == HIDDEN * (copies + 1) + copies * MASK
    assert is_pipelined(plan) is (copies > 1)


def test_the_width_of_the_feed_forward_part_counts_in_the_compute_buffer() -> None:
    wide = msgspec.structs.replace(MODEL, n_ff=640)
    _, worker = compute_bytes(wide, 0, 5)
    assert worker == 3 * (HIDDEN + 10 * HIDDEN) + MASK


def test_the_results_of_many_experts_are_added_up() -> None:
    many = msgspec.structs.replace(MODEL, n_ff=64, n_expert=64, n_expert_used=8)
    _, worker = compute_bytes(many, 0, 5)
    assert worker == (2 * 8 + 5) * HIDDEN + MASK


def test_a_device_after_another_has_copies_of_what_it_gets() -> None:
    _, first, second, third = compute_bytes(MODEL, 0, 2, 1, 2)
    assert second == third == first + 4 * HIDDEN


def test_models_that_attend_nowhere_hand_more_over() -> None:
    state = msgspec.structs.replace(MODEL, n_handed_over=3)
    alone = compute_bytes(MODEL, 0, 5)[1]
    assert compute_bytes(state, 0, 5)[1] == alone
    usual = compute_bytes(MODEL, 0, 2, 1, 2)
    more = [
        (b - a) / (4 * HIDDEN)
        for a, b in zip(usual, compute_bytes(state, 0, 2, 1, 2), strict=True)
    ]
    assert more == [0, 3 - 1, 3 - 1 + 5 - 1, 3 - 1 + 3 - 1]


def test_the_heads_cpu_turns_tokens_into_vectors() -> None:
    (_, alone), (head, worker) = compute_bytes(MODEL, 0, 5), compute_bytes(MODEL, 2, 3)
    assert (head, worker) == (alone + HIDDEN, alone)


def test_a_device_of_windowed_layers_has_no_mask_of_the_whole_context() -> None:
    windowed = [msgspec.structs.replace(x, kv_window=256) for x in MODEL.layers[:2]]
    model = msgspec.structs.replace(MODEL, layers=(*windowed, *MODEL.layers[2:]))
    ctx_size = 1 << 20
    head, first, second = compute_bytes(model, 0, 2, 3, ctx_size=ctx_size)
    whole = 4 * 512 * 2 * ctx_size
    assert head > whole < second
    assert first < whole
    # Both masks are there though a short context makes them alike.
    both = compute_bytes(model, 0, 5)[1]
    assert both == compute_bytes(MODEL, 0, 5)[1] + MASK


def test_vectors_of_tokens_are_an_input_since_rpc_8() -> None:
    def more(*held: int) -> list[float]:
        old = compute_bytes(MODEL, *held, protocol="7.0.0")
        new = compute_bytes(MODEL, *held, protocol="8.0.0")
        assert old == compute_bytes(MODEL, *held)
        return [(b - a) / HIDDEN for a, b in zip(old, new, strict=True)]

    assert more(0, 5) == [2, 1]
    assert more(0, 3, 2) == [5, 9, 0]
    assert more(2, 2, 1) == [1, 0, 0]


def told(split: Split, ctx_size: int) -> EngineFigures:
    """An engine whose buffers are 7 MiB larger than ours, its weights a tenth."""
    memory = (
        DeviceMemory(
            device=load.device,
            model_bytes=load.weight_bytes * 11 // 10,
            kv_bytes=load.kv_bytes,
            compute_bytes=load.compute_bytes + 7 * MIB,
            source=MemorySource.ENGINE,
        )
        for load in device_loads(BIG, split, ctx_size)
    )
    return EngineFigures(split=split, ctx_size=ctx_size, memory=tuple(memory))


def test_the_engines_answer_is_taken_as_it_is_for_its_own_split() -> None:
    split = make_split(4, ["local/CPU", "a", "b"], [0, 3, 2])
    answer = told(split, 1024)
    loads = device_loads(BIG, split, 1024, told=[answer])
    assert tuple(load.memory for load in loads)[1:] == answer.memory[1:]


def test_near_the_engines_answer_our_arithmetic_learns_from_it() -> None:
    answer = told(make_split(4, ["local/CPU", "a", "b"], [0, 3, 2]), 1024)
    far = told(make_split(4, ["local/CPU", "a", "b"], [0, 4, 1]), 65_536)
    split = make_split(4, ["local/CPU", "a", "b"], [0, 2, 3])
    ours = device_loads(BIG, split, 2048)
    better = device_loads(BIG, split, 2048, told=[far, answer])
    assert {load.source for load in better} == {MemorySource.PREDICTED}
    for before, after in zip(ours, better, strict=True):
        assert after.compute_bytes == before.compute_bytes + 7 * MIB
    assert better[1].weight_bytes == pytest.approx(ours[1].weight_bytes * 1.1)


def test_an_answer_for_other_devices_teaches_nothing() -> None:
    answer = told(make_split(4, ["local/CPU", "a"], [0, 5]), 1024)
    split = make_split(4, ["local/CPU", "a", "b"], [0, 2, 3])
    assert device_loads(BIG, split, 1024, told=[answer]) == device_loads(
        BIG, split, 1024
    )


def test_figures_that_round_to_the_engines_stay_finer_than_its_whole_mebibytes() -> (
    None
):
    model = msgspec.structs.replace(
        MODEL,
        layers=tuple(
            msgspec.structs.replace(layer, bytes=MIB * 7 // 10, kv_bytes_per_token=700)
            for layer in MODEL.layers
        ),
    )
    split = make_split(4, ["a", "b"], [3, 2])
    ours = device_loads(model, split, 1024)
    whole = tuple(
        DeviceMemory(
            device=load.device,
            model_bytes=load.weight_bytes // MIB * MIB,
            kv_bytes=-(-load.kv_bytes // MIB) * MIB,
            compute_bytes=load.compute_bytes // MIB * MIB,
            source=MemorySource.ENGINE,
        )
        for load in ours
    )
    assert sum(memory.total_bytes for memory in whole) != sum(
        load.total_bytes for load in ours
    )
    answer = EngineFigures(split=split, ctx_size=1024, memory=whole)
    confirmed = device_loads(model, split, 1024, told=[answer])
    assert [
        msgspec.structs.replace(load, source=MemorySource.PREDICTED)
        for load in confirmed
    ] == list(ours)
    assert {load.source for load in confirmed} == {MemorySource.ENGINE}
    moved = make_split(4, ["a", "b"], [2, 3])
    assert sum(
        load.weight_bytes for load in device_loads(model, moved, 1024, told=[answer])
    ) == sum(load.weight_bytes for load in ours)
    off = msgspec.structs.replace(whole[0], model_bytes=whole[0].model_bytes + 2 * MIB)
    answer = EngineFigures(split=split, ctx_size=1024, memory=(off, whole[1]))
    first, _ = device_loads(model, split, 1024, told=[answer])
    assert first.weight_bytes == off.model_bytes


def test_what_runs_is_not_counted_against_itself() -> None:
    """A model that fills a memory fits there when it is launched again."""
    split = make_split(4, ["a"], [5])
    loads = device_loads(MODEL, split, 1024)
    running = Device(
        id="a", name="a", free_bytes=10 * MIB, total_bytes=100 * MIB, memory_pool="ram"
    )
    ours = ours_by_pool([load.memory for load in loads], [running], head="local")
    assert overcommitted(loads, [running]) == {"a"}
    assert overcommitted(loads, [running], ours) == frozenset()


def test_room_is_never_more_than_there_is() -> None:
    small = Device(id="a", name="a", free_bytes=90 * MIB, total_bytes=100 * MIB)
    assert room_bytes(small, {"a": 50 * MIB}) == 100 * MIB


def test_weights_the_head_maps_count_as_free_and_are_not_given_back() -> None:
    split = make_split(4, ["local/CPU", "a"], [2, 3])
    head, worker = device_loads(MODEL, split, 1024)
    devices = [device("local/CPU", 100, "ram"), device("a", 100, "ram")]
    memory = [head.memory, worker.memory]
    taken = ours_by_pool(memory, devices, head="local")
    assert taken == {"ram": head.kv_bytes + head.compute_bytes + worker.total_bytes}
    to_come = ours_by_pool(
        memory, devices, head="local", arrived={"a": worker.total_bytes + 1}
    )
    assert to_come == {"ram": head.kv_bytes + head.compute_bytes}


def test_the_head_is_judged_without_layers_too() -> None:
    split = make_split(4, ["local/CPU", "a"], [0, 5])
    devices = [device("local/CPU", 1), device("a", 1000)]
    assert overcommitted(device_loads(MODEL, split, 1024), devices) == {"local/CPU"}


def test_two_workers_of_one_memory_get_the_layers_of_one() -> None:
    model = msgspec.structs.replace(
        MODEL,
        n_layer=32,
        layers=tuple(
            Layer(index=i, bytes=10 * MIB, kv_bytes_per_token=1024) for i in range(32)
        ),
    )
    pair = [device("w1", 8192, "local"), device("w2", 8192, "local")]
    split = balance(model, [*pair, device("mini", 8192)], 1024, head_cpu=None)
    first, second, third = counts(split)
    assert first + second in (16, 17)
    assert first + second + third == 33


def test_what_does_not_fit_is_named() -> None:
    split = make_split(4, ["a", "b"], [3, 2])
    loads = device_loads(MODEL, split, 1024)
    assert overcommitted(loads, [device("a", 100), device("b", 100)]) == frozenset()
    assert overcommitted(loads, [device("a", 20), device("b", 100)]) == {"a"}
    # Of devices that are not known nothing is said.
    assert overcommitted(loads, []) == frozenset()
    # Shared memory counts once.
    both = [device("a", 40, "ram"), device("b", 40, "ram")]
    assert overcommitted(loads, both) == {"a", "b"}


def test_a_budget_replaces_what_is_free() -> None:
    split = make_split(4, ["a"], [5])
    tight = Device(id="a", name="a", free_bytes=1000 * MIB, budget_bytes=10 * MIB)
    assert overcommitted(device_loads(MODEL, split, 16), [tight]) == {"a"}


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([device("a", 300), device("b", 100)], (3, 2)),
        ([device("a", 100), device("b", 100)], (2, 3)),
        ([device("local/CPU", 9), device("a", 9)], (0, 5)),
        ([device("local/CPU", 9)], (5,)),
        ([device("a", 0), device("b", 0)], (3, 2)),
    ],
)
def test_balance_follows_memory_and_leaves_the_heads_cpu_to_the_user(
    devices: list[Device], expected: tuple[int, ...]
) -> None:
    cpu = next((one.id for one in devices if one.id == "local/CPU"), None)
    assert counts(balance(MODEL, devices, 16, head_cpu=cpu)) == expected
