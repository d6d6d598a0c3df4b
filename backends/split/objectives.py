"""Best splits of a plan for an aim, and what else would be possible.

The devices of the plan take part, as far as pins and memory allow. Every answer is a
prediction of ``split.cost``; the search is that of ``split.optimiser``.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from backends.errors import PlanError
from backends.server_settings import is_by_tensor, pipelines
from backends.split import buffers
from backends.split.cost import (
    MB,
    Work,
    counted_work,
    mean_ms,
    prompt_batches,
    time_text,
    workload,
)
from backends.split.device_memory import (
    CTX_STEP,
    layer_bytes,
    longest,
    overcommitted,
    room_bytes,
)
from backends.split.flags import DEVICES_MAX
from backends.split.layout import counts as counts_of
from backends.split.layout import is_head_cpu, make_split
from backends.split.optimiser import (
    DeviceOffer,
    FoundSplit,
    best,
    best_of_each_size,
    cost_of,
)
from backends.split.problem import PartsPlan, Pins, SplitProblem, check_pins
from backends.split.rpc_traffic import graph_bytes, stage_bytes
from backends.state import (
    Alternative,
    Device,
    Forecast,
    LinkSpeed,
    Objective,
    Plan,
    Share,
    Split,
    WorkerSpec,
)
from backends.units import MS_PER_S, format_bytes, format_count, format_difference

MARGIN = 0.01
"""Part of a device's room that a best split leaves free."""
FAST_LINK_MB_S = 312.5
FAST_LINK_RTT_MS = 0.3
FAST_LINK = "with 2.5 GbE links"
# Bytes decide first; among splits of as many bytes, milliseconds do.
_TIE_BREAK = 1e-3
_PENALTIES = 12
_FIRST_PENALTY = 1e-3
_DEARER = 3.0
_TWINS_BEAM = 8


class Best(NamedTuple):
    """A best split, with the context that it is for."""

    split: Split
    ctx_size: int
    forecast: Forecast
    exact: bool


# --- costs ---------------------------------------------------------------------------


class _Stage(NamedTuple):
    """A pass that counts towards the aim."""

    depth: int
    batch: int
    rows: int
    slots: int = 1


def _stages(problem: SplitProblem, objective: Objective) -> list[_Stage]:
    load = problem.load
    if objective is Objective.FIRST_TOKEN:
        stages, depth = [], 0
        for batch in prompt_batches(load.prompt_tokens):
            stages.append(_Stage(depth + batch // 2, batch, 1))
            depth += batch
        return stages
    if objective is Objective.THROUGHPUT:
        load = load._replace(slots=max(problem.plan.server.slots, load.slots))
    return [_Stage(load.depth, load.batch, load.batch, load.slots)]


def places_of(problem: SplitProblem, objective: Objective) -> list[DeviceOffer]:
    """The devices with their costs and pins; their rooms are those of a case."""
    plan, model = problem.plan, problem.model
    stages = _stages(problem, objective)
    counted = problem.works or counted_work(model, plan)
    works = np.sum([counted(*one) for one in stages], axis=0)
    handover_ms = mean_ms(problem.speeds.head, Work(layers=1))
    hidden_bytes, last_bytes = (
        sum(
            sum(stage_bytes(model, one.depth, one.batch, rows=one.rows, has_output=has))
            for one in stages
        )
        for has in (False, True)
    )
    protocol = problem.speeds.rpc_protocol
    graphs = sum(
        graph_bytes(model, protocol, resized=one.rows != one.batch, in_parts=False)
        for one in stages
    )
    places = []
    for share in plan.split.shares:
        device, speed = share.device, problem.speeds.of_device.get(share.device)
        ms, fixed = (0.0,) * (model.n_layer + 1), 0.0
        if speed is not None:
            ms = tuple((works @ speed.ms).tolist())
            fixed = len(stages) * mean_ms(speed, Work(passes=1))
        output, n_bytes, output_bytes = 0.0, 0.0, 0.0
        if worker := plan.worker_of.get(device):
            link = problem.speeds.link_to(worker.name)
            fixed += len(stages) * handover_ms
            n_bytes, output_bytes = hidden_bytes, last_bytes - hidden_bytes
            fixed += len(stages) * (link.trips_per_pass * link.rtt_ms + link.pass_ms)
            fixed += n_bytes / MB * link.ms_per_mb
            output = output_bytes / MB * link.ms_per_mb
            if graphs:
                ms = tuple(one + graphs / MB * link.ms_per_mb for one in ms)
        if objective is Objective.NETWORK:
            ms = tuple(_TIE_BREAK * one for one in ms)
            fixed = n_bytes + _TIE_BREAK * fixed
            output = output_bytes + _TIE_BREAK * output
        places.append(
            DeviceOffer(
                device=device,
                layer_costs=ms,
                fixed_cost=fixed,
                output_cost=output,
                least=max(
                    problem.pins.least.get(device, 0),
                    int(problem.pins.output == device),
                ),
                most=problem.pins.most.get(device),
                first_only=is_head_cpu(device, plan.head),
                takes_output=problem.pins.output in ("", device),
            )
        )
    return places


def _cases(
    problem: SplitProblem, objective: Objective, ctx_size: int
) -> Iterator[list[DeviceOffer]]:
    """Places to search on their own: buffers depend on which devices take part.

    They are each device alone, the head's CPU with others, and others without it.
    """
    places = places_of(problem, objective)
    rooms = rooms_of(problem, ctx_size)
    needed = {place.device for place in places if place.least}
    total = sum(sizes_of(problem, ctx_size))
    lead = [place for place in places if place.first_only]
    others = [place for place in places if not place.first_only]
    together = [rooms(place, 1) for place in others]
    alike: set[tuple[object, ...]] = set()
    for alone in (*(rooms(place, 1, alone=True) for place in lead), *together):
        # All but its name.
        kind = alone[1:]
        fits = alone.room + alone.first_more >= total
        if fits and needed <= {alone.device} and kind not in alike:
            alike.add(kind)
            yield [alone]
    for cpu in lead:
        pinned = cpu._replace(least=max(cpu.least, 1))
        yield [rooms(pinned, 1), *together]
    if needed.isdisjoint(cpu.device for cpu in lead):
        is_serial = not pipelines(problem.plan.extra_args)
        n_copies = buffers.copies(len(others), all_offloaded=not is_serial)
        yield [rooms(place, n_copies) for place in others]


def rooms_of(problem: SplitProblem, ctx_size: int) -> Callable[..., DeviceOffer]:
    """Gives a place its bytes for weights and KV cache, by the copies of inputs."""
    plan, model = problem.plan, problem.model
    taken = _drafts(plan)
    allowed = {
        device.id: allowed_bytes(problem, device) - taken[device.id]
        for device in problem.devices
    }

    @cache
    def compute(n_copies: int) -> tuple[int, int, int, int]:
        sizes = (model, ctx_size, n_copies, plan.server)
        protocol = problem.speeds.rpc_protocol
        on_host, on_first = buffers.embedded_bytes(model, n_copies, protocol)
        own, hidden = buffers.device_compute_bytes(*sizes), buffers.hidden_bytes(model)
        on_lead = max(
            own + hidden + min(hidden, on_host),
            on_host + buffers.host_compute_bytes(*sizes),
        )
        return on_lead, own, on_first, buffers.later_bytes(model, n_copies)

    def with_room(
        place: DeviceOffer, n_copies: int, *, alone: bool = False
    ) -> DeviceOffer:
        room = allowed.get(place.device)
        if room is None:
            return place
        on_lead, own, on_first, later = compute(n_copies)
        if not place.first_only:
            return place._replace(room=room - own - later, first_more=later - on_first)
        if not (alone and model.tied_output):
            room -= model.embedding_bytes
        return place._replace(room=room - on_lead)

    return with_room


def allowed_bytes(problem: SplitProblem, device: Device) -> float:
    room = room_bytes(device, {}) * (1 - MARGIN)
    return min(room, problem.pins.budget.get(device.id, room))


def _drafts(plan: Plan) -> Counter[str]:
    taken = Counter[str]()
    for method in plan.speculation.methods if plan.speculation else ():
        for one in method.memory:
            taken[one.device] += one.total_bytes
    return taken


def sizes_of(problem: SplitProblem, ctx_size: int) -> list[int]:
    kv = buffers.kv_bytes(problem.model, ctx_size, problem.plan.server)
    return [a + b for a, b in zip(layer_bytes(problem.model), kv, strict=True)]


# --- the best one --------------------------------------------------------------------


def best_split(problem: SplitProblem, objective: Objective) -> Best:
    """The best split of a plan for an aim.

    Raises:
        PlanError: none keeps to the pins and fits.
    """
    check_pins(problem.pins, problem)
    if objective is Objective.CONTEXT:
        return _longest(problem)
    return _required(problem, objective, problem.plan.ctx_size)


def _required(problem: SplitProblem, objective: Objective, ctx_size: int) -> Best:
    found = _at_context(problem, objective, ctx_size)
    if found is not None:
        return found
    needed = sum(sizes_of(problem, ctx_size))
    raise PlanError(
        f"No split of these devices fits: the model needs {format_bytes(needed)} at a "
        f"context of {ctx_size}, beside compute buffers",
        "Add a peer, take a smaller context (--context) or quant, or drop a pin.",
    )


def _known(problem: SplitProblem) -> Iterator[list[tuple[str, int]]]:
    # Made only if it is asked for: most searches are exact.
    for split in (problem.plan.split, *problem.known()):
        yield [(share.device, share.layers) for share in split.shares if share.layers]


def _at_context(
    problem: SplitProblem, objective: Objective, ctx_size: int
) -> Best | None:
    sizes = sizes_of(problem, ctx_size)
    cases = [
        (one, places)
        for places in _cases(problem, objective, ctx_size)
        if (one := best(places, sizes, problem.beam, _known(problem))) is not None
    ]
    cases.sort(key=lambda case: case[0].cost)
    exact = all(one.exact for one, _ in cases)
    least: FoundSplit | None = None
    for one, places in cases:
        if least is not None and one.cost >= least.cost:
            # A case costs no less for having to leave a memory room.
            break
        fitting: FoundSplit | None = one
        if crowded := _crowded(problem, one, ctx_size):
            if crowded.isdisjoint(one.devices):
                # What the head keeps without layers is too much already.
                continue
            exact = False
            fitting = _less_crowded(problem, places, crowded, ctx_size)
        if fitting is not None and (least is None or fitting.cost < least.cost):
            least = fitting
    if least is None:
        return None
    return _as_best(problem, least._replace(exact=exact), ctx_size)


def _as_best(problem: SplitProblem, found: FoundSplit, ctx_size: int) -> Best:
    split = split_of(problem.plan, found)
    there = problem._replace(plan=replace(problem.plan, split=split, ctx_size=ctx_size))
    return Best(split, ctx_size, there.forecast(), found.exact)


def best_of_sizes(problem: SplitProblem, objective: Objective) -> Iterator[Best]:
    """The best split of each number of devices, as far as they fit."""
    ctx_size = problem.plan.ctx_size
    sizes = sizes_of(problem, ctx_size)
    found = [
        one
        for places in _cases(problem, objective, ctx_size)
        for one in best_of_each_size(places, sizes, problem.beam)
    ]
    done: set[int] = set()
    for one in sorted(found, key=lambda one: one.cost):
        n_devices = len(one.devices)
        if n_devices not in done and not _crowded(problem, one, ctx_size):
            done.add(n_devices)
            yield _as_best(problem, one, ctx_size)


def split_of(plan: Plan, found: FoundSplit) -> Split:
    """The split with these shares first, then the devices that get no layers."""
    return _split_among((share.device for share in plan.split.shares), plan, found)


def _split_among(names: Iterable[str], plan: Plan, found: FoundSplit) -> Split:
    held = dict(zip(found.devices, found.counts, strict=True))
    lead = [s.device for s in plan.split.shares if is_head_cpu(s.device, plan.head)]
    names = dict.fromkeys([*lead, *found.devices, *names])
    return make_split(
        plan.split.n_layer, list(names), [held.get(name, 0) for name in names]
    )


def _less_crowded(
    problem: SplitProblem,
    places: list[DeviceOffer],
    crowded: frozenset[str],
    ctx_size: int,
) -> FoundSplit | None:
    """A good split, not surely the best, that devices of one memory can hold together.

    Bytes on those that the best split crowds are made dearer until one can be held.
    If none can, each of them is tried without the others.
    """
    sizes = sizes_of(problem, ctx_size)
    dearest = sum(place.fixed_cost + sum(place.layer_costs) for place in places)
    price = dearest / max(sum(sizes), 1) * _FIRST_PENALTY
    for _ in range(_PENALTIES):
        dearer = [
            place._replace(
                layer_costs=tuple(
                    cost + (price * size if place.device in crowded else 0.0)
                    for cost, size in zip(place.layer_costs, sizes, strict=True)
                )
            )
            for place in places
        ]
        found = best(dearer, sizes, problem.beam)
        if found is None:
            return None
        if not _crowded(problem, found, ctx_size):
            by_name = {place.device: place for place in places}
            used = [by_name[name] for name in found.devices]
            return found._replace(cost=cost_of(used, found.counts))
        price *= _DEARER
    fewer = (
        best(
            [p for p in places if p.device not in crowded - {one}], sizes, problem.beam
        )
        for one in sorted(crowded)
        if not any(p.least for p in places if p.device in crowded - {one})
    )
    fit = [f for f in fewer if f and not _crowded(problem, f, ctx_size)]
    return min(fit, key=lambda found: found.cost, default=None)


def _crowded(problem: SplitProblem, found: FoundSplit, ctx_size: int) -> frozenset[str]:
    # Devices without layers need nothing, unless a draft is there, but there may be
    # very many.
    drafts = _drafts(problem.plan)
    drafting = [s.device for s in problem.plan.split.shares if s.device in drafts]
    split = _split_among(drafting, problem.plan, found)
    return crowded_by(problem, replace(problem.plan, split=split, ctx_size=ctx_size))


def crowded_by(problem: SplitProblem, plan: Plan) -> frozenset[str]:
    """Devices of a memory that a plan exceeds, be it by what the head keeps there."""
    loads = problem.loads(plan, all_masks=True)
    if drafts := _drafts(plan):
        loads = tuple(
            replace(load, compute_bytes=load.compute_bytes + drafts[load.device])
            for load in loads
        )
    return overcommitted(loads, problem.devices, part=1 - MARGIN)


def _longest(problem: SplitProblem) -> Best:
    """The longest context that any split can hold, and the fastest split for it.

    The fastest is searched for the longest that fits device by device. Where devices
    share a memory that may be too long.
    """

    def made(ctx_size: int) -> Best:
        return _required(problem, Objective.DECODE, ctx_size)

    def held(ctx_size: int) -> None:
        if not _can_be_held(problem, ctx_size):
            raise PlanError("No split of these devices fits")

    most = problem.model.n_ctx_train or problem.plan.ctx_size
    sizes = range(CTX_STEP, most + 1, CTX_STEP)
    longest_held = longest(sizes, held)
    found = longest(sizes[: longest_held[0] + 1], made) if longest_held else None
    return found[1] if found else made(CTX_STEP)


def _can_be_held(problem: SplitProblem, ctx_size: int) -> bool:
    """True if a split fits, with a memory of its own for each device."""
    sizes = sizes_of(problem, ctx_size)
    costs = (0.0,) * len(sizes)
    return any(
        # The fewest devices, the largest ones: that is soon found, or impossible.
        best(
            [
                p._replace(layer_costs=costs, fixed_cost=1.0, output_cost=0)
                for p in case
            ],
            sizes,
            problem.beam,
        )
        for case in _cases(problem, Objective.DECODE, ctx_size)
    )


# --- alternatives --------------------------------------------------------------------


def alternatives(
    problem: SplitProblem, objective: Objective
) -> tuple[Alternative, ...]:
    """Answers to what else would be possible, each with its predicted speed."""
    return (
        *_solos(problem),
        *_without(problem, objective),
        *_with_fast_links(problem, objective),
        *_one_more(problem, objective),
    )


def in_parts(name: str, problem: SplitProblem, found: PartsPlan) -> Alternative:
    """A plan with parts of layers elsewhere, or the reason against it."""
    if found.plan is None or found.forecast is None:
        return Alternative(name=name, head=problem.plan.head, why=found.why)
    there = problem._replace(plan=found.plan)
    one = Best(found.plan.split, found.plan.ctx_size, found.forecast, exact=False)
    return alternative(name, there, one, found.why)


def alternative(
    name: str, problem: SplitProblem, found: Best, why: str = ""
) -> Alternative:
    plan = replace(problem.plan, split=found.split, ctx_size=found.ctx_size)
    together = None
    if plan.server.slots > 1:
        load = workload(problem.plan, Objective.THROUGHPUT)
        together = problem._replace(plan=plan, load=load).forecast().tok_per_s
    return Alternative(
        name=name,
        devices=tuple(share.device for share in found.split.shares),
        counts=counts_of(found.split),
        head=plan.head,
        ctx_size=found.ctx_size,
        forecast=found.forecast,
        why=why,
        by_tensor=is_by_tensor(plan.extra_args),
        experts=plan.experts,
        all_slots_tok_per_s=together,
    )


def _solos(problem: SplitProblem) -> Iterator[Alternative]:
    """Each device alone, its machine being the head."""
    alike: set[tuple[object, ...]] = set()
    for share in problem.plan.split.shares:
        speed = problem.speeds.of_device.get(share.device)
        stands_for = (share.device.partition("/")[0], speed.ms if speed else ())
        if stands_for in alike:
            continue
        alike.add(stands_for)
        worker = problem.plan.worker_of.get(share.device)
        machine = worker.peer if worker else problem.plan.head
        if not share.device.startswith(f"{machine}/"):
            # A second worker on the head's machine is no machine of its own.
            continue
        yield solo(problem, share.device, machine)


def solo(problem: SplitProblem, device: str, machine: str) -> Alternative:
    """A device alone, without a network."""
    n_layer = problem.model.n_layer
    split = Split(n_layer=n_layer, shares=(Share(device=device, layers=n_layer + 1),))
    plan = replace(problem.plan, split=split, head=machine, workers=())
    name = f"solo on {device}"
    most = problem.pins.most.get(device, n_layer + 1)
    if most <= n_layer:
        why = f"it may have {format_count(most, 'layer')}, and the model {n_layer + 1}"
        return Alternative(name=name, head=machine, why=why)
    loads = problem.loads(plan)
    if short := overcommitted(loads, [d for d in problem.devices if d.id == device]):
        need = sum(load.total_bytes for load in loads if load.device in short)
        return Alternative(
            name=name, head=machine, why=f"does not fit: it needs {format_bytes(need)}"
        )
    there = problem._replace(plan=plan)
    found = Best(split, plan.ctx_size, there.forecast(), exact=True)
    return alternative(name, there, found)


def _excluding(problem: SplitProblem, devices: Iterable[str]) -> SplitProblem:
    gone = set(devices)
    shares = tuple(s for s in problem.plan.split.shares if s.device not in gone)
    split = Split(n_layer=problem.plan.split.n_layer, shares=shares)
    pins = problem.pins
    return problem._replace(
        plan=replace(problem.plan, split=split),
        pins=Pins(
            output="" if pins.output in gone else pins.output,
            least={k: v for k, v in pins.least.items() if k not in gone},
            most={k: v for k, v in pins.most.items() if k not in gone},
            budget={k: v for k, v in pins.budget.items() if k not in gone},
        ),
    )


def _without(problem: SplitProblem, objective: Objective) -> Iterator[Alternative]:
    used = {share.device for share in problem.plan.split.shares if share.layers}
    machines: dict[str, list[str]] = {}
    for worker in problem.plan.workers:
        machines.setdefault(worker.place or worker.name, []).extend(worker.device_ids)
    for machine, ids in machines.items():
        others = [s for s in problem.plan.split.shares if s.device not in ids]
        if used.isdisjoint(ids) or not others:
            continue
        name, less = f"without {machine}", _excluding(problem, ids)
        try:
            yield alternative(name, less, best_split(less, objective))
        except PlanError as error:
            yield Alternative(name=name, head=problem.plan.head, why=error.what)


def _with_fast_links(
    problem: SplitProblem, objective: Objective
) -> Iterator[Alternative]:
    near = {w.name for w in problem.plan.workers if w.peer == problem.plan.head}
    fast_ms = MS_PER_S / FAST_LINK_MB_S

    def faster(link: LinkSpeed) -> LinkSpeed:
        if link.worker in near:
            return link
        return replace(
            link,
            rtt_ms=min(link.rtt_ms, FAST_LINK_RTT_MS),
            rtt_sd_ms=min(link.rtt_sd_ms, FAST_LINK_RTT_MS),
            ms_per_mb=min(link.ms_per_mb, fast_ms),
        )

    links = tuple(map(faster, problem.speeds.links))
    if links != problem.speeds.links:
        there = problem._replace(speeds=replace(problem.speeds, links=links))
        with contextlib.suppress(PlanError):
            found = alternative(FAST_LINK, there, best_split(there, objective))
            yield replace(found, imagined=True)


def _one_more(problem: SplitProblem, objective: Objective) -> Iterator[Alternative]:
    by_id = {device.id: device for device in problem.devices}
    head = problem.plan.head
    others = [one for one in problem.plan.workers if one.peer != head]
    quick = problem._replace(beam=min(problem.beam, _TWINS_BEAM))
    if len(shares := problem.plan.split.shares) > DEVICES_MAX + 1:
        # Of very many devices only those that have layers make room for it.
        kept = {s.device for s in shares if s.layers or is_head_cpu(s.device, head)}
        pins = problem.pins
        kept |= {pins.output, *pins.least, *pins.most, *pins.budget}
        few = tuple(share for share in shares if share.device in kept)
        quick = quick.with_split(Split(n_layer=problem.model.n_layer, shares=few))
    kinds: set[tuple[object, ...]] = set()
    for like in (_of_head(problem), *others):
        if like.device_ids[0] not in by_id:
            continue
        there = with_twin(quick, like)
        kind, link = _kind_of_last(there)
        # Without a link its network would cost nothing.
        if link is None or (kind, link) in kinds:
            continue
        kinds.add((kind, link))
        name = f"with one more like {like.place or like.name}"
        with contextlib.suppress(PlanError):
            found = alternative(name, there, best_split(there, objective))
            yield replace(found, imagined=True)


def _kind_of_last(
    problem: SplitProblem,
) -> tuple[tuple[object, ...], LinkSpeed | None]:
    """The speeds and memory of the last worker, and its link."""
    worker, known = problem.plan.workers[-1], problem.speeds.of_device
    by_id = {device.id: device for device in problem.devices}
    kind = [
        (by_id[one].total_bytes, known[one].ms if one in known else ())
        for one in worker.device_ids
        if one in by_id
    ]
    links = [one for one in problem.speeds.links if one.worker == worker.name]
    return tuple(kind), replace(links[0], worker="") if links else None


def _of_head(problem: SplitProblem) -> WorkerSpec:
    head = problem.plan.head
    own = [d for d in problem.devices if d.id.startswith(f"{head}/")]
    own = [d for d in own if d.id not in problem.plan.worker_of]
    names = [d.name for d in own if not is_head_cpu(d.id, head)] or ["CPU"]
    return WorkerSpec(name=head, peer=head, devices=tuple(names))


def with_twin(problem: SplitProblem, like: WorkerSpec) -> SplitProblem:
    """The problem with a second worker of the same devices, on a machine of its own.

    One like the head is reached as the nearest of the others is.
    """
    name = f"{like.place or like.name}-twin"
    twin = replace(like, name=name, place="", peer=name)
    ids = dict(zip(like.device_ids, twin.device_ids, strict=True))
    pools = dict(ids)
    devices = [
        replace(d, id=ids[d.id], memory_pool=pools.get(d.memory_pool, ids[d.id]))
        for d in problem.devices
        if d.id in ids
    ]
    speeds = [
        replace(s, device=ids[s.device])
        for s in problem.speeds.devices
        if s.device in ids
    ]
    elsewhere = {w.name for w in problem.plan.workers if w.peer != problem.plan.head}
    links = [one for one in problem.speeds.links if one.worker == like.name]
    if like.peer == problem.plan.head:
        links = [one for one in problem.speeds.links if one.worker in elsewhere]
        links.sort(key=lambda link: link.rtt_ms)
    split = problem.plan.split
    shares = (*split.shares, *(Share(device=new, layers=0) for new in ids.values()))
    return problem._replace(
        plan=replace(
            problem.plan,
            workers=(*problem.plan.workers, twin),
            split=Split(n_layer=split.n_layer, shares=shares),
        ),
        devices=(*problem.devices, *devices),
        speeds=replace(
            problem.speeds,
            devices=(*problem.speeds.devices, *speeds),
            links=(
                *problem.speeds.links,
                *(replace(link, worker=name) for link in links[:1]),
            ),
        ),
    )


def why_best(chosen: Forecast, baseline: Forecast) -> str:
    """Sentences: where the time of a token goes, and the gain over another split."""
    text = time_text(chosen)
    if baseline.tok_per_s <= 0 or baseline.parts == chosen.parts:
        return text
    gain = format_difference(chosen.tok_per_s / baseline.tok_per_s - 1)
    return f"{text} Speed against layers by memory: {gain}."
