"""The optimiser finds what trying everything finds, and finds it fast."""

from __future__ import annotations

import os
from itertools import combinations, permutations
from random import Random

import pytest

from backends.split import optimiser
from backends.split.optimiser import DeviceOffer, best, best_of_each_size, cost_of

UNLIMITED = float("inf")
QUICK = 150
INSTANCES = int(os.environ.get("DLLM_SPLITS", "10000"))


def exhaustive(places: list[DeviceOffer], sizes: list[int]) -> float | None:
    """The least cost of all orders, subsets and counts that keep to the limits."""
    costs = [
        cost_of(chosen, counts)
        for used in range(1, len(places) + 1)
        for chosen in permutations(places, used)
        if all(place in chosen for place in places if place.least)
        and not any(place.first_only for place in chosen[1:])
        and chosen[-1].takes_output
        for counts in compositions(len(sizes), used)
        if keeps_to_limits(chosen, counts, sizes)
    ]
    return min(costs, default=None)


def compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    return [
        tuple(b - a for a, b in zip((0, *cuts), (*cuts, total), strict=True))
        for cuts in combinations(range(1, total), parts - 1)
    ]


def keeps_to_limits(
    chosen: tuple[DeviceOffer, ...], counts: tuple[int, ...], sizes: list[int]
) -> bool:
    first = 0
    for place, count in zip(chosen, counts, strict=True):
        most = len(sizes) if place.most is None else place.most
        if not max(place.least, 1) <= count <= most:
            return False
        if sum(sizes[first : first + count]) > place.room:
            return False
        first += count
    return True


def random_instance(random: Random) -> tuple[list[DeviceOffer], list[int]]:
    n_layers = random.randint(1, 6)
    sizes = [random.randint(1, 9) for _ in range(n_layers)]
    places: list[DeviceOffer] = []
    for number in range(random.randint(1, 4 if n_layers < 6 else 3)):
        if places and random.random() < 0.25:
            twin = places[-1]._replace(device=f"d{number}", first_only=False)
            places.append(twin)
            continue
        even = random.random() < 0.5
        places.append(
            DeviceOffer(
                device=f"d{number}",
                layer_costs=(random.random(),) * n_layers
                if even
                else tuple(random.random() for _ in range(n_layers)),
                fixed_cost=random.random() / 2,
                output_cost=random.random() / 2,
                room=random.choice([UNLIMITED, random.randint(3, 30)]),
                least=random.choice([0, 0, 0, 1, 2]),
                most=random.choice([None, None, random.randint(1, 5)]),
                first_only=number == 0 and random.random() < 0.4,
                takes_output=random.random() < 0.85,
            )
        )
    return places, sizes


@pytest.mark.parametrize(
    "instances",
    [
        QUICK,
        pytest.param(INSTANCES, marks=[pytest.mark.trial, pytest.mark.timeout(900)]),
    ],
)
def test_equal_to_trying_everything(
    instances: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``DLLM_SPLITS`` sets how many are tried; a seed makes them the same each time."""
    random = Random(26)
    infeasible = 0
    for number in range(instances):
        # All, some or none of the kinds are tried together.
        monkeypatch.setattr(optimiser, "NARROW_MAX", number % 4 * 2)
        places, sizes = random_instance(random)
        least, found = exhaustive(places, sizes), best(places, sizes)
        if least is None:
            infeasible += 1
            assert found is None, number
            continue
        assert found is not None, number
        assert found.cost == pytest.approx(least), number
        by_name = {place.device: place for place in places}
        chosen = tuple(by_name[device] for device in found.devices)
        assert keeps_to_limits(chosen, found.counts, sizes), number
        assert cost_of(chosen, found.counts) == pytest.approx(least), number
        assert found.exact
    assert 0 < infeasible < instances


def test_uneven_devices_of_200_layers_are_all_followed() -> None:
    random = Random(1)
    places = [
        DeviceOffer(
            device=f"d{number}",
            layer_costs=tuple(random.random() for _ in range(201)),
            fixed_cost=random.random() * 5,
            output_cost=1.0,
            room=60 * (1 + random.random()),
        )
        for number in range(10)
    ]
    found = best_of_each_size(places, [1] * 201)
    assert all(one.exact for one in found)
    assert {sum(one.counts) for one in found} == {201}
    assert [len(one.devices) for one in found] == list(range(2, 11))


def test_many_devices_are_searched_in_part_and_told_so() -> None:
    random = Random(3)
    machines = [(random.random() * 3, random.random() * 5) for _ in range(16)]
    places = [
        DeviceOffer(
            device=f"m{number}/g{gpu}",
            layer_costs=(per_layer,) * 129,
            fixed_cost=fixed,
            room=20,
        )
        for number, (per_layer, fixed) in enumerate(machines)
        for gpu in range(8)
    ]
    found = best(places, [1] * 129)
    assert found is not None
    assert not found.exact
    assert sum(found.counts) == 129
    assert max(found.counts) <= 20
    # No machine that is used could be replaced by a free one that is cheaper.
    used = {device.partition("/")[0] for device in found.devices}
    assert min(machines)[0] in {machines[int(name[1:])][0] for name in used}


def slow_links(random: Random) -> tuple[list[DeviceOffer], list[int]]:
    """Fourteen uneven devices, of which one or two spare the output its dear way."""
    n_layers = random.choice([25, 49])
    sizes = [
        *(random.randint(3, 5) for _ in range(n_layers - 1)),
        random.choice([4, 20]),
    ]
    n_near, spare = random.randint(1, 2), random.uniform(1.1, 2.5)
    places = []
    for number in range(14):
        is_near, per_layer = number < n_near, random.uniform(0.5, 3)
        places.append(
            DeviceOffer(
                device=f"d{number}",
                layer_costs=(*[per_layer] * (n_layers - 1), per_layer * sizes[-1] / 4),
                fixed_cost=0.05 if is_near else random.uniform(0.2, 4),
                output_cost=0.0 if is_near else random.choice([3, 15]),
                room=sum(sizes) / 14 * spare * random.uniform(0.6, 1.5),
                first_more=random.choice([0, -2, 3]),
                least=random.choice([0] * 9 + [1]),
                most=random.choice([None] * 6 + [4]),
            )
        )
    return places, sizes


def test_a_search_in_part_comes_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of the sets, and fewer where plans are compared."""
    random = Random(9)
    far: dict[int, list[float]] = {256: [], 32: []}
    for _ in range(8):
        places, sizes = slow_links(random)
        monkeypatch.setattr(optimiser, "STATES_MAX", 1 << len(places))
        exact = best(places, sizes)
        monkeypatch.setattr(optimiser, "STATES_MAX", 0)
        for beam, gaps in far.items():
            partly = best(places, sizes, beam)
            assert (exact is None) == (partly is None)
            if exact and partly:
                assert (exact.exact, partly.exact) == (True, False)
                gaps.append(partly.cost / exact.cost - 1)
    assert len(far[32]) > 5
    assert max(far[256]) < 0.02
    assert max(far[32]) < 0.04


def test_a_search_in_part_keeps_the_output_s_device_free_for_it() -> None:
    """The head spares the output the network: as one of the first it would be full."""
    cheap = DeviceOffer("head", (1.0,) * 60, room=4.0)
    others = [
        DeviceOffer(
            f"d{n}", (1 + n / 100,) * 60, 1.0, output_cost=30.0, room=5 + n / 100
        )
        for n in range(15)
    ]
    found = best([cheap, *others], [1] * 60, 32)
    assert found is not None
    assert not found.exact
    assert found.devices[-1] == "head"
    assert found.cost <= cost_of((*others[:12], cheap), [5] * 11 + [4, 1])


def test_a_search_in_part_is_no_worse_than_a_split_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random, gains = Random(4), 0
    monkeypatch.setattr(optimiser, "STATES_MAX", 0)
    for _ in range(8):
        places, sizes = slow_links(random)
        good, partly = best(places, sizes), best(places, sizes, 1)
        if good is None:
            continue
        known = [[*zip(good.devices, good.counts, strict=True)], [("d0", 99)]]
        found = best(places, sizes, 1, known)
        assert found is not None
        assert found.cost <= good.cost + 1e-9
        gains += partly is None or partly.cost > good.cost + 1e-9
    assert gains


@pytest.mark.parametrize("is_lead", [False, True])
def test_no_more_devices_are_used_than_llama_cpp_takes(is_lead: bool) -> None:
    """Of the head's CPU it knows nothing, so that is one more."""
    for n_layers in (15 + is_lead, 16 + is_lead):
        other = DeviceOffer("", (1.0,) * n_layers, room=1.0)
        lead = other._replace(device="cpu", first_only=True, least=1)
        others = [other._replace(device=f"g{n}") for n in range(32)]
        found = best([*([lead] if is_lead else []), *others], [1] * n_layers)
        assert (found is not None) == (n_layers == 15 + is_lead)


def test_devices_that_are_alike_are_all_found() -> None:
    """Ten alike are eleven states, so that 128 of one kind are still exact."""
    places = [
        DeviceOffer(device=f"g{n}", layer_costs=(1.0,) * 100, fixed_cost=1.0, room=25)
        for n in range(128)
    ]
    found = best(places, [1] * 100)
    assert found is not None
    assert found.exact
    assert found.counts == (25, 25, 25, 25)
    assert len(set(found.devices)) == 4


def test_no_places_and_no_room_give_nothing() -> None:
    assert best([], [1]) is None
    assert best([DeviceOffer("a", (1.0,), room=0)], [1]) is None
