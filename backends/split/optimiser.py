"""The best split: which devices, in which order, with how many layers each.

The cost of a split is a sum: what a device costs depends on its own layers alone, for
stock RPC is a star. So dynamic programming over the set of used devices and the layers
placed so far is exact. Layers are placed from the output on, which is the dearest one
where a link is slow. Devices that are alike in everything are counted, not told apart.
If there are too many sets for that, only the most promising are followed, and the
answer says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import inf, prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from backends.split.flags import DEVICES_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Figures = NDArray[np.float64]
    Codes = NDArray[np.int64]

STATES_MAX = 4096
"""Sets of devices that are all followed; of more, BEAM at a time."""
BEAM = 256
KINDS_MAX = 40
"""Kinds of devices that are then tried. How many matters more than how many sets."""
ROWS_MAX = 2560
"""Of more kinds of devices fewer sets are followed: so many with one device more."""
NARROW_MAX = 8
"""Kinds that hold no more layers each are tried together, one count after another."""
_PARTS = (0.25, 0.5, 0.75, 0.9, 1.0)
"""Of the layers that a set can hold, so many are placed where sets are compared."""


class DeviceOffer(NamedTuple):
    """A device that may hold layers, and what that costs."""

    device: str
    layer_costs: tuple[float, ...]
    """Of each layer, the output last."""
    fixed_cost: float = 0.0
    """Of taking part at all."""
    output_cost: float = 0.0
    """Further, if it holds the output."""
    room: float = float("inf")
    """Bytes for layers."""
    first_more: float = 0.0
    """Further bytes, if it holds the first ones; they may be less."""
    least: int = 0
    """Layers it must hold; 0: it may be left out."""
    most: int | None = None
    first_only: bool = False
    """llama.cpp fills the head's CPU with the first layers, or not at all."""
    takes_output: bool = True


class FoundSplit(NamedTuple):
    """A split, device by device in the order of their layers."""

    devices: tuple[str, ...]
    counts: tuple[int, ...]
    cost: float
    exact: bool = True
    """False if not all sets of devices were followed."""


def cost_of(places: Sequence[DeviceOffer], counts: Sequence[int]) -> float:
    total, first = 0.0, 0
    for place, count in zip(places, counts, strict=True):
        end = first + count
        total += place.fixed_cost + sum(place.layer_costs[first:end])
        if end == len(place.layer_costs):
            total += place.output_cost
        first = end
    return total


def best(
    places: Sequence[DeviceOffer],
    sizes: Sequence[int],
    beam: int = BEAM,
    known: Iterable[Sequence[tuple[str, int]]] = (),
) -> FoundSplit | None:
    """The split of least cost; None if none keeps to all limits.

    ``sizes`` are the bytes of each layer, the output last. ``beam`` sets are followed
    at a time if there are too many for all. What is found then is no worse than
    ``known`` splits: devices with their layers, in order.
    """
    found = [*_found(places, sizes, beam, only_best=True)]
    if not any(one.exact for one in found):
        found += filter(None, (_as_found(places, sizes, one) for one in known))
    return min(found, key=lambda one: one.cost, default=None)


def _as_found(
    places: Sequence[DeviceOffer],
    sizes: Sequence[int],
    held: Sequence[tuple[str, int]],
) -> FoundSplit | None:
    """A split as if it had been found; None if it does not keep to all limits."""
    by_name = {place.device: place for place in places}
    needed = {place.device for place in places if place.least}
    names, counts = zip(*held, strict=True)
    if not needed <= {*names} <= {*by_name} or sum(counts) != len(sizes):
        return None
    used = [by_name[name] for name in names]
    if len(used) > DEVICES_MAX + used[0].first_only or not used[-1].takes_output:
        return None
    first = 0
    for place, count in zip(used, counts, strict=True):
        room = place.room + (0 if first else place.first_more) + 1e-6
        most = count if place.most is None else place.most
        fits = sum(sizes[first : first + count]) <= room
        if not fits or not place.least <= count <= most or (first and place.first_only):
            return None
        first += count
    return FoundSplit(names, counts, cost_of(used, counts), exact=False)


def best_of_each_size(
    places: Sequence[DeviceOffer], sizes: Sequence[int], beam: int = BEAM
) -> list[FoundSplit]:
    """The split of least cost for each number of devices that can do it."""
    return list(_found(places, sizes, beam, only_best=False))


def _found(
    places: Sequence[DeviceOffer], sizes: Sequence[int], beam: int, *, only_best: bool
) -> Iterable[FoundSplit]:
    if not places:
        return ()
    if len(places) == 1:
        return _alone(places[0], sizes)
    kinds = _kinds(_worth_trying(places), sizes)
    longest = sorted(
        kind.most_layers for kind in kinds for _ in kind.devices[: DEVICES_MAX + 1]
    )
    cannot = any(kind.must and not kind.most_layers for kind in kinds)
    if cannot or sum(longest[-DEVICES_MAX - 1 :]) < len(sizes):
        return ()
    if prod(len(kind.devices) + 1 for kind in kinds) <= STATES_MAX:
        return _Search(kinds, len(sizes), 0).run(only_best=only_best)
    kinds = _most_promising(kinds, KINDS_MAX)
    beam = min(beam, max(ROWS_MAX // len(kinds), 1))
    return _Search(kinds, len(sizes), beam).run(only_best=only_best)


def _alone(place: DeviceOffer, sizes: Sequence[int]) -> Iterator[FoundSplit]:
    n, most = len(sizes), place.most
    allowed = place.takes_output and place.least <= n and (most is None or most >= n)
    if allowed and sum(sizes) <= place.room + place.first_more:
        yield FoundSplit((place.device,), (n,), cost_of((place,), (n,)))


def _most_promising(kinds: Sequence[_Kind], n_kinds: int) -> list[_Kind]:
    """So many: those that must be, half of the rest the cheapest, half the largest."""
    needed = [kind for kind in kinds if kind.must]
    others = sorted((kind for kind in kinds if not kind.must), key=lambda one: one.rate)
    free = max(n_kinds - len(needed), 0)
    cheapest, rest = others[: free - free // 2], others[free - free // 2 :]
    rest.sort(key=lambda one: -one.most_layers)
    return [*needed, *cheapest, *rest[: free // 2]]


def _worth_trying(places: Sequence[DeviceOffer]) -> list[DeviceOffer]:
    """Leave out devices to which so many are preferable that one is always free."""
    if len(places) <= DEVICES_MAX:
        return list(places)
    limits = [
        (
            *(p.fixed_cost, p.output_cost, -p.room, -p.room - p.first_more),
            *(-inf if p.most is None else -p.most, not p.takes_output, p.least > 0),
        )
        for p in places
    ]
    # Many layers cost alike, each on its device. Of all figures less is better.
    figures = {*zip(*(p.layer_costs for p in places), strict=True)}
    figures.update(zip(*limits, strict=True))
    # A column for each device: which others are as good.
    as_good = np.ones((len(places), len(places)), dtype=bool)
    for figure in map(np.array, figures):
        as_good &= figure[:, None] <= figure
    same = as_good & as_good.T
    free = np.array([not p.first_only and not p.least for p in places])
    preferable = (as_good & ~same | np.triu(same, 1)) & free[:, None]
    is_tried = ~free | (preferable.sum(axis=0) < DEVICES_MAX)
    return [place for place, tried in zip(places, is_tried, strict=True) if tried]


class _Kind:
    """Devices that are alike in everything.

    Layers are counted from the output, which is the first one here.
    """

    def __init__(
        self, place: DeviceOffer, devices: Sequence[str], held: Figures, by_room: Codes
    ) -> None:
        self.place = place
        self.devices = devices
        self.must = place.least > 0
        self._held = held
        """The bytes before each layer, and of all of them."""
        self._n = n = len(held) - 1
        self.least = max(place.least, 1)
        self._most = n if place.most is None else min(place.most, n)
        ends = np.arange(n + 1)
        self.low = np.maximum(by_room, ends - self._most)
        """The earliest first layer, by the layer after the last."""
        self.high = ends - self.least
        """The latest first layer."""
        longest = int((ends - self.low).max())
        self.most_layers = longest if longest >= self.least else 0
        self.mean = sum(place.layer_costs[:-1]) / max(n - 1, 1)
        """Cost of a layer that is not the output."""
        self.rate = self.mean + place.fixed_cost / max(self.most_layers, 1)
        """The same on such a device when it is full."""

    # What follows is asked only of kinds that are searched.

    @cached_property
    def sums(self) -> Figures:
        return np.array([0.0, *accumulate(self.place.layer_costs[::-1])])

    @cached_property
    def possible(self) -> NDArray[np.bool_]:
        possible: NDArray[np.bool_] = self.low <= self.high
        possible[: self._n] &= not self.place.first_only
        return possible

    @cached_property
    def added(self) -> Figures:
        return self.sums + self.place.fixed_cost

    @cached_property
    def outputs(self) -> Figures:
        """Costs where it holds the output, by the layer after its last."""
        holds = self.possible & (self.low == 0) & self.place.takes_output
        return np.where(holds, self.added + self.place.output_cost, np.inf)

    @cached_property
    def _ends(self) -> Codes:
        return np.flatnonzero(self.possible)

    @cached_property
    def _windows(self) -> _Windows:
        return _Windows(self.low[self._ends], self.high[self._ends])

    def extended(self, before: Figures) -> Figures:
        """Costs after one more such device; a row for each set, a column for each end.

        ``before`` are the costs without its layers.
        """
        after = np.full_like(before, np.inf)
        if self._ends.size:
            least = self._windows.minima(before - self.sums)
            after[:, self._ends] = least + self.added[self._ends]
        return after

    def first_layer(self, before: Figures, end: int) -> tuple[int, float]:
        """The first layer of the best share that ends there, and the cost then."""
        if not self.possible[end]:
            return 0, float("inf")
        low, high = int(self.low[end]), int(self.high[end])
        rest = before[low : high + 1] - self.sums[low : high + 1]
        at = int(np.argmin(rest))
        return low + at, float(rest[at] + self.added[end])


class _Windows:
    """Runs of columns, of which the least figures are wanted time and again.

    Both ends are included.
    """

    def __init__(self, low: Codes, high: Codes) -> None:
        self._levels: list[tuple[Codes, Codes, Codes]] = []
        """For widths from each power of two: which, and two runs that cover them."""
        self._last = None if low.any() else high
        self._count = len(low)
        if self._last is None:
            depths = np.floor(np.log2(high - low + 1)).astype(np.int64)
            for level in range(int(depths.max()) + 1):
                at = np.flatnonzero(depths == level)
                self._levels.append((at, low[at], high[at] - (1 << level) + 1))

    def minima(self, rows: Figures) -> Figures:
        """The least figure of each row within each window."""
        if self._last is not None:
            return np.minimum.accumulate(rows, axis=1)[:, self._last]
        # Columns first: the figures of a window's end lie together in memory.
        table = np.ascontiguousarray(rows.T)
        found = np.empty((self._count, len(rows)))
        for level, (at, first, second) in enumerate(self._levels):
            if at.size:
                found[at] = np.minimum(table[first], table[second])
            span = 1 << level
            table = np.minimum(table[:-span], table[span:])
        return found.T


def _kinds(places: Sequence[DeviceOffer], sizes: Sequence[int]) -> list[_Kind]:
    alike: dict[tuple[object, ...], list[DeviceOffer]] = {}
    for place in places:
        # Each of its own where it must take part: that is known by the count alone.
        is_own = place.first_only or place.least
        alike.setdefault(place if is_own else place[1:], []).append(place)
    held = np.array([0, *accumulate(reversed(sizes))], dtype=np.float64)
    rooms = np.array([[same[0].room] for same in alike.values()])
    lacking = held - rooms
    # Who ends there has the model's first layers.
    lacking[:, -1] -= [same[0].first_more for same in alike.values()]
    by_room = np.searchsorted(held, lacking - 1e-6, side="left")
    return [
        _Kind(same[0], [place.device for place in same], held, low)
        for same, low in zip(alike.values(), by_room, strict=True)
    ]


@dataclass(frozen=True)
class _Level:
    """All sets of so many devices that are followed."""

    counts: NDArray[np.uint8]
    """Devices of each kind; a row for each set."""
    costs: Figures
    """By the layers placed so far."""

    @cached_property
    def rows(self) -> dict[bytes, int]:
        return {counts.tobytes(): row for row, counts in enumerate(self.counts)}


class _Search:
    def __init__(self, kinds: Sequence[_Kind], n_layers: int, beam: int) -> None:
        self._kinds = kinds
        self._n = n_layers
        self._beam = beam
        """Sets followed at a time; 0: all."""
        self._exact = not beam
        self._room = np.array([kind.most_layers for kind in kinds], dtype=np.float64)
        self._rates = np.array([kind.rate for kind in kinds])
        self._must = np.array([kind.must for kind in kinds])
        self._least = np.array([kind.least for kind in kinds])
        self._least_costs = np.array(
            [kind.place.fixed_cost + kind.least * kind.mean for kind in kinds]
        )
        self._devices = np.array([len(kind.devices) for kind in kinds])
        self._first_only = np.array([kind.place.first_only for kind in kinds])
        self._outputs = np.array([kind.outputs for kind in kinds])
        self._sums = np.array([kind.sums for kind in kinds])
        self._added = np.array([kind.added for kind in kinds])
        self._is_narrow = self._room <= NARROW_MAX
        widest = int(self._room.max(initial=0, where=self._is_narrow))
        self._refused = [self._refused_with(count + 1) for count in range(widest)]
        self._levels: list[_Level] = []
        layers = np.diff(self._sums).min(axis=0)
        one_more = min(kind.place.fixed_cost for kind in kinds)
        self._ahead = np.append(layers[::-1].cumsum()[::-1] + one_more, 0.0)
        """The least that the layers from each one on can cost, on further devices."""

    def _refused_with(self, count: int) -> Figures:
        """Zero where a kind may have so many layers that end there, else infinity."""
        first = np.arange(self._n + 1 - count)
        may = [
            one.possible[count:]
            & (one.low[count:] <= first)
            & (first <= one.high[count:])
            for one in self._kinds
        ]
        return np.where(may, 0.0, np.inf)

    def run(self, *, only_best: bool = False) -> Iterator[FoundSplit]:
        least = np.inf
        start = np.full((1, self._n + 1), np.inf)
        start[0, 0] = 0.0
        none = np.zeros((1, len(self._kinds)), dtype=np.uint8)
        self._levels = [_Level(none, start)]
        # Layers of the head's CPU are not offloaded: it is one device more.
        for _ in range(
            DEVICES_MAX + any(kind.place.first_only for kind in self._kinds)
        ):
            level = self._next(self._levels[-1], least)
            if level is None:
                return
            self._levels.append(level)
            if (found := self._complete()) is not None:
                if only_best:
                    least = min(least, found.cost)
                yield found

    def _next(self, level: _Level, below: float) -> _Level | None:
        goes_on = (level.costs + self._ahead)[:, :-1].min(axis=1) < below
        free = goes_on[:, None] & (level.counts < self._devices)
        if len(self._levels) > DEVICES_MAX:
            free &= self._first_only
        if not free.any():
            return None
        kinds, sets = np.nonzero(free.T)
        all_counts = level.counts[sets]
        all_counts[np.arange(len(sets)), kinds] += 1
        all_costs = self._extended(level.costs, kinds, sets)
        keys = all_counts.view(f"S{all_counts.shape[1]}").ravel()
        order = np.argsort(keys, kind="stable")
        ordered, sets = all_counts[order], keys[order]
        starts = np.flatnonzero(np.append(True, sets[1:] != sets[:-1]))
        merged = np.minimum.reduceat(all_costs[order], starts, axis=0)
        kept = (merged + self._ahead).min(axis=1) < below
        if not kept.any():
            return None
        return self._pruned(_Level(ordered[starts][kept], merged[kept]))

    def _extended(self, costs: Figures, kinds: Codes, sets: Codes) -> Figures:
        """Costs after one more device of these kinds in these sets."""
        if len(self._levels) == 1:
            return self._outputs[kinds]
        after = np.full((len(sets), self._n + 1), np.inf)
        rows = np.flatnonzero(self._is_narrow[kinds])
        if rows.size:
            among = kinds[rows]
            before, least = costs[sets[rows]] - self._sums[among], after[rows]
            for count, refused in enumerate(self._refused, 1):
                ends = least[:, count:]
                np.minimum(ends, before[:, :-count] + refused[among], out=ends)
            after[rows] = least + self._added[among]
        for number, kind in enumerate(self._kinds):
            rows = np.flatnonzero(kinds == number)
            if rows.size and not self._is_narrow[number]:
                after[rows] = kind.extended(costs[sets[rows]])
        return after

    def _pruned(self, level: _Level) -> _Level:
        if self._exact or len(level.counts) <= self._beam:
            return level
        chosen = np.argsort(self._promise(level), kind="stable")[: self._beam]
        return _Level(level.counts[chosen], level.costs[chosen])

    def _promise(self, level: _Level) -> Figures:
        """About what the best split with each set will cost, devices added to it.

        Devices that must take part get their least. The layers that are left then go to
        the cheapest devices that are left, each full.
        """
        finite = np.isfinite(level.costs)
        furthest = self._n - finite[:, ::-1].argmax(axis=1)
        order = np.argsort(self._rates, kind="stable")
        left = (self._devices - level.counts)[:, order] * self._room[order]
        filled = np.zeros((len(left), len(order) + 1))
        full_costs = filled.copy()
        np.cumsum(left, axis=1, out=filled[:, 1:])
        np.cumsum(left * self._rates[order], axis=1, out=full_costs[:, 1:])
        # What no device has room for cannot be: such sets come last.
        rates = np.append(self._rates[order], 1e3 * self._rates.max())
        absent = self._must & (level.counts == 0)
        needed, least_costs = absent @ self._least, absent @ self._least_costs
        promise = np.full(len(level.costs), np.inf)
        rows = np.arange(len(level.costs))
        for part in _PARTS:
            placed = np.ceil(furthest * part).astype(np.int64)
            rest = np.maximum(self._n - placed - needed, 0)
            last = (filled[:, 1:] < rest[:, None]).sum(axis=1)
            ahead = full_costs[rows, last] + (rest - filled[rows, last]) * rates[last]
            ahead += level.costs[rows, placed] + least_costs
            np.minimum(promise, ahead, out=promise)
        return promise

    def _complete(self) -> FoundSplit | None:
        level = self._levels[-1]
        whole = level.costs[:, self._n].copy()
        for number, kind in enumerate(self._kinds):
            if kind.must:
                whole[level.counts[:, number] < len(kind.devices)] = np.inf
        at = int(np.argmin(whole))
        if not np.isfinite(whole[at]):
            return None
        return self._traced(level.counts[at], float(whole[at]))

    def _traced(self, counts: NDArray[np.uint8], cost: float) -> FoundSplit:
        """Walk back from a complete split to the devices that made it."""
        left, end = counts.copy(), self._n
        shares: list[tuple[int, int]] = []
        for level in reversed(self._levels[:-1]):
            kind, first = self._step_back(level, left, end)
            shares.append((kind, end - first))
            left[kind] -= 1
            end = first
        names = [iter(kind.devices) for kind in self._kinds]
        return FoundSplit(
            devices=tuple(next(names[kind]) for kind, _ in shares),
            counts=tuple(count for _, count in shares),
            cost=cost,
            exact=self._exact,
        )

    def _step_back(
        self, level: _Level, left: NDArray[np.uint8], end: int
    ) -> tuple[int, int]:
        found = (float("inf"), 0, 0)
        for number, kind in enumerate(self._kinds):
            if not left[number]:
                continue
            if level is self._levels[0]:
                found = min(found, (float(kind.outputs[end]), number, 0))
                continue
            before = left.copy()
            before[number] -= 1
            row = level.rows.get(before.tobytes())
            if row is not None:
                first, cost = kind.first_layer(level.costs[row], end)
                found = min(found, (cost, number, first))
        return found[1], found[2]
