"""Best splits are those that trying every one finds, for every aim, under any pins."""

from __future__ import annotations

import os
from itertools import combinations, pairwise, permutations
from random import Random
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from backends.errors import PlanError
from backends.split.calibration import HEAD_PRIOR, given_speed
from backends.split.cost import KINDS, Workload
from backends.split.device_memory import pool_of, room_bytes
from backends.split.layout import devices, make_split
from backends.split.objectives import MARGIN, best_split
from backends.split.problem import Pins, SplitProblem
from backends.state import (
    ClusterSpeeds,
    Device,
    DeviceKind,
    DeviceSpeed,
    Layer,
    LinkSpeed,
    ModelInfo,
    Objective,
    Plan,
    ServerSettings,
    Share,
    Split,
    WorkerSpec,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MIB = 1 << 20
CELLS = 256
QUICK = 150
INSTANCES = int(os.environ.get("DLLM_SPLITS", "1000"))
CPU = "local/CPU"
NAMES = (CPU, "local/CUDA0", "a/CUDA0", "a/CUDA1", "b/CUDA0", "c/CPU")


def random_model(random: Random) -> ModelInfo:
    n_layer = random.randint(1, 4)
    tied = random.random() < 0.5
    embedding = random.randint(5, 60) * MIB
    return ModelInfo(
        path="m.gguf",
        arch="llama",
        n_layer=n_layer,
        n_embd=random.choice([256, 1024]),
        n_vocab=random.choice([500, 50_000]),
        n_head=8,
        n_head_kv=8,
        n_ctx_train=random.choice([1024, 8192]),
        layers=tuple(
            Layer(
                index=index,
                bytes=random.randint(20, 120) * MIB,
                quants={"Q4_K": MIB},
                kv_bytes_per_token=(per_token := random.choice([2048, 16_384])),
                k_bytes_per_token=per_token // 2,
                kv_window=random.choice([0, 0, 512]),
            )
            for index in range(n_layer)
        ),
        output_bytes=embedding if tied else random.randint(5, 60) * MIB,
        embedding_bytes=embedding,
        tied_output=tied,
    )


def random_problem(random: Random, *, pools: bool) -> SplitProblem:
    model = random_model(random)
    names = random.sample(NAMES[1:], random.randint(0 if pools else 1, 3))
    if random.random() < 0.8 or not names:
        names = [CPU, *names[:2]]
    total_mib = sum(layer.bytes for layer in model.layers) // MIB
    roomy = random.random() < 0.2
    gb_s = {name: random.choice([10, 40, 200, 900]) for name in NAMES}
    workers = tuple(
        WorkerSpec(name=machine, peer=machine, devices=tuple(ids))
        for machine in ("a", "b", "c")
        if (ids := [n.partition("/")[2] for n in names if n.startswith(f"{machine}/")])
    )
    ctx_size = random.choice([512, 1024, 4096])
    slots = random.choice([1, 1, 4])
    return SplitProblem(
        model=model,
        plan=Plan(
            model="m.gguf",
            split=make_split(
                model.n_layer, names, [model.n_layer + 1, *[0] * (len(names) - 1)]
            ),
            workers=workers,
            ctx_size=ctx_size,
            server=ServerSettings(slots=slots),
        ),
        devices=tuple(
            Device(
                id=name,
                name=name.partition("/")[2],
                kind=DeviceKind.CPU if "CPU" in name else DeviceKind.CUDA,
                free_bytes=(9999 if roomy else random.randint(20, total_mib * 2 + 150))
                * MIB,
                memory_pool=f"{name.partition('/')[0]}/CPU" if pools else "",
            )
            for name in names
        ),
        speeds=ClusterSpeeds(
            head=DeviceSpeed(
                device="head", ms=HEAD_PRIOR.ms, covariance=(0.0,) * KINDS**2
            ),
            devices=tuple(
                DeviceSpeed(
                    device=name,
                    ms=given_speed(
                        DeviceKind.CPU if "CPU" in name else DeviceKind.CUDA, gb_s[name]
                    ).ms,
                    covariance=(0.0,) * KINDS**2,
                )
                for name in names
            ),
            links=tuple(
                LinkSpeed(
                    worker=worker.name,
                    rtt_ms=random.choice([0.1, 1, 5]),
                    ms_per_mb=random.choice([0, 1, 100]),
                )
                for worker in workers
            ),
            rpc_protocol="8.0.0" if ctx_size == 1024 else "7.0.0",
        ),
        pins=random_pins(random, names, model.n_layer + 1),
        load=Workload(depth=ctx_size // 2, prompt_tokens=min(512, ctx_size // 2)),
    )


def random_pins(random: Random, names: list[str], n_layers: int) -> Pins:
    def some(low: int, high: int) -> dict[str, int]:
        return {n: random.randint(low, high) for n in names if random.random() < 0.15}

    least = some(1, 2)
    return Pins(
        output=random.choice(names) if random.random() < 0.15 else "",
        least=least if sum(least.values()) <= n_layers else {},
        most={n: max(m, least.get(n, 0)) for n, m in some(0, n_layers).items()},
        budget={n: mib * MIB for n, mib in some(50, 400).items()},
    )


def every_split(there: SplitProblem) -> Iterator[SplitProblem]:
    """Every subset in every order with all counts, as far as pins allow."""
    names, pins = devices(there.plan.split), there.pins
    n_layers = there.model.n_layer + 1
    for used in range(1, len(names) + 1):
        for chosen in permutations(names, used):
            if CPU in chosen[1:] or pins.output not in ("", chosen[-1]):
                continue
            rest = [name for name in names if name not in chosen]
            for cuts in combinations(range(1, n_layers), used - 1):
                edges = (0, *cuts, n_layers)
                held = [b - a for a, b in pairwise(edges)]
                order, numbers = [*chosen, *rest], [*held, *[0] * len(rest)]
                if CPU in rest:
                    order = [CPU, *(name for name in order if name != CPU)]
                    numbers = [0, *held, *[0] * (len(rest) - 1)]
                by_name = dict(zip(order, numbers, strict=True))
                if all(
                    pins.least.get(n, 0) <= count <= pins.most.get(n, n_layers)
                    for n, count in by_name.items()
                ):
                    split = make_split(there.model.n_layer, order, numbers)
                    yield there.with_split(split)


def fits(there: SplitProblem) -> bool:
    """True if a margin stays free on each device, and in the memory that some share."""
    by_id = {device.id: device for device in there.devices}
    rooms: dict[str, int] = {}
    taken: dict[str, int] = {}
    for load in there.loads(there.plan, all_masks=True):
        device = by_id[load.device]
        room = room_bytes(device, {}) * (1 - MARGIN)
        if load.n_layers:
            room = min(room, there.pins.budget.get(device.id, room))
        if load.total_bytes > room:
            return False
        pool = pool_of(device)
        rooms[pool] = max(rooms.get(pool, 0), room_bytes(device, {}))
        taken[pool] = taken.get(pool, 0) + load.total_bytes
    return all(taken[pool] <= room * (1 - MARGIN) for pool, room in rooms.items())


def cost(there: SplitProblem, objective: Objective) -> float:
    told = there.forecast()
    match objective:
        case Objective.FIRST_TOKEN:
            return told.first_token_s
        case Objective.NETWORK:
            return told.bytes_per_token
        case _:
            return -told.tok_per_s


def found_by_trying(
    there: SplitProblem, objective: Objective
) -> tuple[int, float | None]:
    """The context that counts, and the least cost there; None if nothing fits."""
    contexts = [there.plan.ctx_size]
    if objective is Objective.CONTEXT:
        contexts = list(range(there.model.n_ctx_train, 0, -CELLS))
    splits = list(every_split(there))
    for context in contexts:
        at = [one._replace(plan=replace(one.plan, ctx_size=context)) for one in splits]
        if costs := [cost(one, objective) for one in at if fits(one)]:
            return context, min(costs)
    return 0, None


def compare(there: SplitProblem, objective: Objective) -> bool | None:
    """See that the best split is allowed, and none better if it is called exact.

    True if it is called so; None if nothing fits.
    """
    if objective is Objective.THROUGHPUT:
        slots = there.plan.server.slots
        there = there._replace(load=there.load._replace(slots=slots))
    context, least = found_by_trying(there, objective)
    if least is None:
        refusal = "No split of these devices fits|The pins allow"
        with pytest.raises(PlanError, match=refusal):
            best_split(there, objective)
        return None
    best = best_split(there, objective)
    chosen = there._replace(
        plan=replace(there.plan, split=best.split, ctx_size=best.ctx_size)
    )
    assert fits(chosen)
    assert used(best.split) in [used(one.plan.split) for one in every_split(there)]
    if best.exact:
        assert best.ctx_size == context
        assert cost(chosen, objective) == pytest.approx(least)
    return best.exact


def used(split: Split) -> tuple[Share, ...]:
    return tuple(share for share in split.shares if share.layers)


def compare_all(instances: int, *, pools: bool) -> list[bool | None]:
    random, aims = Random(26), list(Objective)
    return [
        compare(random_problem(random, pools=pools), aims[number % len(aims)])
        for number in range(instances)
    ]


def check_without_pools(instances: int) -> None:
    outcomes = compare_all(instances, pools=False)
    assert False not in outcomes
    assert 0 < outcomes.count(None) < instances / 2


def check_with_pools(instances: int) -> None:
    """Of devices that share a memory most are exact, and others are told apart."""
    outcomes = compare_all(instances, pools=True)
    assert 0 < outcomes.count(False) < instances / 10
    assert 0 < outcomes.count(None) < instances / 2


def test_no_split_is_better_for_any_aim() -> None:
    check_without_pools(QUICK)


def test_no_split_is_better_where_devices_share_memory() -> None:
    check_with_pools(QUICK)


@pytest.mark.trial
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("check", [check_without_pools, check_with_pools])
def test_many_instances(check: Callable[[int], None]) -> None:
    """``DLLM_SPLITS`` sets how many."""
    check(INSTANCES)
