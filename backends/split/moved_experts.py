"""Plans with experts on another device than their layers, where they win.

A token reads few of a layer's experts, but they are most of its bytes. So a fast device
can hold more layers without them, and a large slow one their experts. Each such layer
costs both devices a visit. The first and the last layers of the model, and of each
device, are tried; for each the best split is searched anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from backends.split.cost import MB, expert_work, handed_ms, mean_ms
from backends.split.device_memory import room_bytes
from backends.split.experts import as_runs, experts_text, owners
from backends.split.layout import devices, runs_of, with_idle
from backends.split.objectives import (
    crowded_by,
    places_of,
    rooms_of,
    sizes_of,
    split_of,
)
from backends.split.optimiser import DeviceOffer, best
from backends.split.problem import PartsPlan, SplitProblem
from backends.split.rpc_traffic import graph_bytes
from backends.state import Forecast, Objective, Plan, Split
from backends.units import format_count, format_speed

NAME = "experts elsewhere (-ot)"
GAIN_MIN = 1.05
"""Times as fast as whole layers, for it to be proposed: less is within the error."""
TRIED_MAX = 48
"""Ranges that are tried; of more layers not every number of them is.

For each device beyond SEARCHED_MAX it is half as many: a search takes twice as long."""
SEARCHED_MAX = 6
"""Devices among which it is searched."""
TRIED_BEAM = 16
"""Sets of devices followed for each range; for the best one as many as anywhere."""
NEVER_MS = 1e9
"""Cost of a layer where it may not be: finite, for the search adds and subtracts it."""


class _Move(NamedTuple):
    run: tuple[int, ...]
    """Layers of which so many move: the first ones, or the last ones."""
    moved: int
    from_end: bool
    device: str
    """The one that gets their experts."""

    @property
    def layers(self) -> tuple[int, ...]:
        return self.run[-self.moved :] if self.from_end else self.run[: self.moved]


def moved_experts(
    problem: SplitProblem, by_layers: tuple[Split, Forecast] | None
) -> PartsPlan:
    """The fastest such plan if it beats whole layers, else why it does not.

    ``by_layers`` is the best split of whole layers; None if none fits.
    """
    if not any(layer.groups.experts for layer in problem.model.layers):
        return PartsPlan(None, "the model has no experts")
    split = by_layers[0] if by_layers else None
    few = _of_few(problem, split)
    found = _searched(few._replace(beam=min(few.beam, TRIED_BEAM)), split)
    if found and few.beam > TRIED_BEAM:
        found += _found(few, [max(found, key=lambda one: one[0].tok_per_s)[1]])
    if not found:
        return PartsPlan(
            None, "no device gains by the experts of others' layers, or has room"
        )
    told, _, plan = max(found, key=lambda one: one[0].tok_per_s)
    plan = replace(plan, split=with_idle(plan.split, devices(problem.plan.split)))
    text = experts_text(plan.experts)
    if by_layers and told.tok_per_s < GAIN_MIN * by_layers[1].tok_per_s:
        trips = format_count(round(told.trips_per_token), "trip")
        speeds = f"{format_speed(told.tok_per_s)} with {trips} a token, whole layers "
        speeds += format_speed(by_layers[1].tok_per_s)
        return PartsPlan(None, f"not worth it: {text}: {speeds}")
    return PartsPlan(plan, text, told)


def _of_few(problem: SplitProblem, split: Split | None) -> SplitProblem:
    """Without most devices that the best split leaves out, if there are very many."""
    shares, pins = problem.plan.split.shares, problem.pins
    if len(shares) <= SEARCHED_MAX:
        return problem
    used = {share.device for share in split.shares if share.layers} if split else set()
    rooms = {device.id: room_bytes(device, {}) for device in problem.devices}
    kept = {*used, *pins.least, pins.output, f"{problem.plan.head}/CPU"}
    kept &= {share.device for share in shares}
    others = [s.device for s in shares if s.device in rooms.keys() - kept]
    others.sort(key=lambda device: -rooms[device])
    kept.update(others[: max(SEARCHED_MAX - len(kept), 0)])
    return problem.with_split(
        Split(
            n_layer=problem.model.n_layer,
            shares=tuple(share for share in shares if share.device in kept),
        )
    )


def _searched(
    problem: SplitProblem, split: Split | None
) -> list[tuple[Forecast, _Move, Plan]]:
    """The plans that were tried: at first not every number, then near the best."""
    runs, targets = _runs(problem, split), _targets(problem)
    more = max(len(problem.plan.split.shares) - SEARCHED_MAX, 0)
    if more:
        # Each search takes long then; so of all runs the whole one must do.
        runs = runs[:1]
    step = -(-2 * sum(map(len, runs)) * len(targets) // (TRIED_MAX >> more or 1))
    moves = (
        _Move(run, count, from_end, device)
        for device in targets
        for run in runs
        for count in range(len(run), 0, -max(step, 1))
        for from_end in (False, True)
    )
    found = _found(problem, moves)
    while found and step > 1:
        step = -(-step // 2)
        best_one = max(found, key=lambda one: one[0].tok_per_s)[1]
        counts = best_one.moved - step, best_one.moved + step
        near = [count for count in counts if 0 < count <= len(best_one.run)]
        # A whole run has both ends: fewer layers may be the first ones, or the last.
        is_whole = best_one.moved == len(best_one.run)
        ends = (False, True) if is_whole else (best_one.from_end,)
        moves = (best_one._replace(moved=n, from_end=e) for n in near for e in ends)
        found += _found(problem, moves)
    return found


def _found(
    problem: SplitProblem, moves: Iterable[_Move]
) -> list[tuple[Forecast, _Move, Plan]]:
    return [
        (problem._replace(plan=plan).forecast(), move, plan)
        for move in moves
        for plan in _plans(problem, move)
    ]


def _runs(problem: SplitProblem, split: Split | None) -> list[tuple[int, ...]]:
    """Layers with experts: all of the model, and those of each device."""
    layers = problem.model.layers
    experts = tuple(layer.index for layer in layers if layer.groups.experts)
    if split is None:
        return [experts]
    holders = owners(split)
    parts = [
        tuple(layer for layer in experts if holders[layer] == device)
        for device in dict.fromkeys(holders)
    ]
    return list(dict.fromkeys([experts, *filter(None, parts)]))


def _targets(problem: SplitProblem) -> list[str]:
    least = min(
        one.groups.experts for one in problem.model.layers if one.groups.experts
    )
    rooms = {device.id: room_bytes(device, {}) for device in problem.devices}
    names = (share.device for share in problem.plan.split.shares)
    return [name for name in names if rooms.get(name, least) >= least]


def _plans(problem: SplitProblem, move: _Move) -> Iterator[Plan]:
    """The best splits with these experts there, with and without the head's CPU.

    A device other than that gets experts only beside a layer of its own.
    """
    plan = problem.plan
    sizes = sizes_of(problem, plan.ctx_size)
    for layer in move.layers:
        sizes[layer] -= problem.model.layers[layer].groups.experts
    for places in _cases(problem, move):
        for tried in (places, _elsewhere(places, move)):
            found = best(tried, sizes, problem.beam)
            if found is None:
                break
            split = split_of(plan, found)
            experts = as_runs(split, runs_of(move.device, move.layers))
            # The device that gets them may be the cheapest for the layers, too.
            if not experts:
                continue
            moved = replace(plan, split=split, experts=experts)
            if not crowded_by(problem, moved):
                yield moved
            break


def _elsewhere(places: list[DeviceOffer], move: _Move) -> list[DeviceOffer]:
    """The same, but the device that gets the experts holds none of their layers."""

    def apart(place: DeviceOffer) -> DeviceOffer:
        costs = enumerate(place.layer_costs)
        without = (NEVER_MS if layer in move.layers else cost for layer, cost in costs)
        return place._replace(layer_costs=tuple(without))

    return [apart(p) if p.device == move.device else p for p in places]


def _cases(problem: SplitProblem, move: _Move) -> Iterator[list[DeviceOffer]]:
    taken = sum(problem.model.layers[layer].groups.experts for layer in move.layers)
    rooms = rooms_of(problem, problem.plan.ctx_size)
    places = _places(problem, move)
    others = [place for place in places if not place.first_only]

    def roomy(place: DeviceOffer) -> DeviceOffer:
        # With overrides llama.cpp does not pipeline: it keeps its inputs once.
        there = rooms(place, 1)
        less = taken if place.device == move.device else 0
        return there._replace(room=there.room - less)

    leads = [place for place in places if place.first_only]
    for lead in leads:
        pinned = lead._replace(least=max(lead.least, 1))
        yield [roomy(place) for place in (pinned, *others)]
    if any(lead.least for lead in leads):
        return
    # Without layers of its own the head's CPU must hold the experts all the same.
    getting = [lead for lead in leads if lead.device == move.device]
    if all(roomy(lead).room >= 0 for lead in getting):
        yield [roomy(place) for place in others]
        # One alone may fit where devices of one memory do not together.
        needed = {place.device for place in others if place.least}
        yield from ([roomy(p)] for p in others if needed <= {p.device})


def _places(problem: SplitProblem, move: _Move) -> list[DeviceOffer]:
    """The devices with the costs of their layers where some experts are elsewhere.

    What the experts cost where they are is the same for every split.
    """
    load, model = problem.load, problem.model
    works = [
        expert_work(model.layers[layer], model, load.batch) for layer in move.layers
    ]
    protocol = problem.speeds.rpc_protocol
    graph_mb = graph_bytes(model, protocol, resized=False, in_parts=True) / MB
    found = []
    for place in places_of(problem, Objective.DECODE):
        costs = list(place.layer_costs)
        speed = problem.speeds.of_device.get(place.device)
        worker = problem.plan.worker_of.get(place.device)
        is_there = place.device == move.device
        # Its whole graph is sent anew. Of the others, only as much is counted here as
        # moves; the forecast of what is found counts all.
        link = problem.speeds.link_to(worker.name if worker else "")
        graph_ms = graph_mb * link.ms_per_mb
        handed = graph_ms
        if is_there:
            costs, handed = [cost + graph_ms for cost in costs], 0.0
        else:
            pair = place.device, move.device
            handed += handed_ms(model, problem.plan, problem.speeds, *pair, load.batch)
        for layer, work in zip(move.layers, works, strict=True):
            costs[layer] += handed - (mean_ms(speed, work) if speed else 0.0)
        least = max(place.least, int(is_there and not place.first_only))
        found.append(place._replace(layer_costs=tuple(costs), least=least))
    return found
