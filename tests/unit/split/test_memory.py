"""Memory predicted per device, and splits balanced by it."""

from __future__ import annotations

from backends.split.layout import counts, make_split
from backends.split.memory import balance, device_loads, overcommitted
from backends.state import Device, Layer, ModelInfo

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
    assert second.compute_bytes > first.compute_bytes, (
        "the output needs room for logits"
    )


def test_what_does_not_fit_is_named() -> None:
    split = make_split(4, ["a", "b"], [3, 2])
    loads = device_loads(MODEL, split, 1024)
    assert overcommitted(loads, [device("a", 100), device("b", 100)]) == frozenset()
    assert overcommitted(loads, [device("a", 20), device("b", 100)]) == {"a"}


def test_shared_memory_is_counted_once() -> None:
    split = make_split(4, ["a", "b"], [3, 2])
    loads = device_loads(MODEL, split, 1024)
    both = [device("a", 40, "ram"), device("b", 40, "ram")]
    assert overcommitted(loads, both) == {"a", "b"}


def test_a_budget_replaces_what_is_free() -> None:
    split = make_split(4, ["a"], [5])
    tight = Device(id="a", name="a", free_bytes=1000 * MIB, budget_bytes=10 * MIB)
    assert overcommitted(device_loads(MODEL, split, 16), [tight]) == {"a"}


def test_unknown_devices_are_not_judged() -> None:
    loads = device_loads(MODEL, make_split(4, ["a"], [5]), 16)
    assert overcommitted(loads, []) == frozenset()


def test_balance_follows_memory() -> None:
    split = balance(MODEL, [device("a", 300), device("b", 100)], 16, head_cpu=None)
    assert counts(split) == (3, 2)
    even = balance(MODEL, [device("a", 100), device("b", 100)], 16, head_cpu=None)
    assert counts(even) == (2, 3)


def test_balance_leaves_the_heads_cpu_to_the_user() -> None:
    split = balance(
        MODEL, [device("local/CPU", 9), device("a", 9)], 16, head_cpu="local/CPU"
    )
    assert counts(split) == (0, 5)
    alone = balance(MODEL, [device("local/CPU", 9)], 16, head_cpu="local/CPU")
    assert counts(alone) == (5,)


def test_balance_without_figures_is_even() -> None:
    split = balance(MODEL, [device("a", 0), device("b", 0)], 16, head_cpu=None)
    assert counts(split) == (3, 2)
