"""The speed of a plan, predicted: what one pass costs on each device and each link.

Stock RPC is a star. A pass visits the devices one after another, and the head stands
between any two of them::

    T = head + Σ devices (work · speed) + Σ workers (trips · RTT + bytes / rate)

The work of a device is counted in six kinds, so that its time is a sum of products:
calibration is linear least squares, and a prefix sum over layers gives any split.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import exp, hypot, pi, sqrt
from operator import mul
from statistics import NormalDist
from typing import NamedTuple

from msgspec.structs import replace

from backends.server_settings import is_by_tensor, pipelines
from backends.split import buffers
from backends.split.experts import moved_layers
from backends.split.flags import used_workers
from backends.split.layout import is_head_cpu
from backends.split.rpc_traffic import (
    NOTHING_HANDED,
    Handed,
    TensorStage,
    graph_bytes,
    handed_over,
    stage_bytes,
    tensor_bytes,
    tensor_trips,
)
from backends.state import (
    ClusterSpeeds,
    DeviceSpeed,
    Fit,
    Forecast,
    ForecastPart,
    Lab,
    Layer,
    LinkSpeed,
    ModelInfo,
    Objective,
    Plan,
    SpeedSource,
)
from backends.units import (
    MS_PER_S,
    format_count,
    format_ms,
    format_rate,
    format_seconds,
    format_speed,
)

GB = 1e9
MB = 1e6
BYTES_PER_MS_PER_MB_S = 1000.0
BAND_SD = 1.645
"""Standard deviations on each side that hold nine of ten."""
PROMPT_TOKENS = 512
"""Of the prompt that a first token is predicted for."""
DEPTH_TOKENS = 512
"""Of the context that decoding is predicted at."""

_HANDLING_MS_PER_MB = 2.0
"""To send and read a graph at either end, on two cores of a busy machine."""
# Of a type that is not in the table; scales and minima take half a bit a value.
_KIND_BITS = re.compile(r"\D+(\d+)")
_SCALE_BITS = 0.5


class _Quant(NamedTuple):
    bits: float
    """Of a value, its part of scales and minima included."""
    multiplying: float
    """The time of a value beside that of its bytes; 1 is that of Q4_K."""


ZEROS_NAME = "zeros, "
"""The names of models of zeros begin with it: a CPU multiplies those faster."""
_ZEROS_MULTIPLYING = 0.72
"""The time of a value of zeros beside one of its type otherwise."""
# One thread of a CPU, as ``make bench-quants`` measures it. Outputs mostly are of those
# that come first.
_QUANTS = {
    "Q4_K": _Quant(4.5, 1.0),
    "Q6_K": _Quant(6.5625, 0.9),
    "Q8_0": _Quant(8.5, 2.2),
    "F16": _Quant(16, 0.1),
    "Q2_K": _Quant(2.625, 1.3),
    "Q3_K": _Quant(3.4375, 1.4),
    "Q5_K": _Quant(5.5, 1.3),
    "Q4_0": _Quant(4.5, 2.7),
    "Q4_1": _Quant(5, 3.0),
    "Q5_0": _Quant(5.5, 3.0),
    "Q5_1": _Quant(6, 3.1),
    "IQ1_S": _Quant(1.5625, 3.2),
    "IQ1_M": _Quant(1.75, 2.8),
    "IQ2_XXS": _Quant(2.0625, 2.6),
    "IQ2_XS": _Quant(2.3125, 2.8),
    "IQ2_S": _Quant(2.5625, 2.6),
    "IQ3_XXS": _Quant(3.0625, 3.4),
    "IQ3_S": _Quant(3.4375, 3.6),
    "IQ4_NL": _Quant(4.5, 2.8),
    "IQ4_XS": _Quant(4.25, 1.4),
    "TQ1_0": _Quant(1.6875, 1.5),
    "TQ2_0": _Quant(2.0625, 0.8),
    "MXFP4": _Quant(4.25, 1.4),
    "BF16": _Quant(16, 0.7),
    "F32": _Quant(32, 0.5),
}
_WHOLE = _QUANTS["F16"]
# The least certain first.
_CERTAINTY = tuple(SpeedSource)


class Work(NamedTuple):
    """The work of a device in one pass, in the order of ``DeviceSpeed.ms``."""

    weight_gb: float = 0.0
    """Weights read, once a pass."""
    gvalues: float = 0.0
    """10⁹ weights multiplied, once a pass. One of a type that takes a CPU longer to
    unpack than Q4_K does counts for more."""
    kv_gb: float = 0.0
    """KV cache read by all tokens of the pass."""
    gops: float = 0.0
    """10⁹ operations for the tokens of a pass beyond the first one."""
    layers: float = 0.0
    """Of the head itself: visits of workers' devices."""
    passes: float = 0.0
    """1 if it takes part."""

    def __add__(self, other: object) -> Work:
        assert isinstance(other, Work)
        return Work(*(a + b for a, b in zip(self, other, strict=True)))


KINDS = len(Work._fields)
NO_WORK = Work()


class Workload(NamedTuple):
    """The use that is predicted; by default one client amid an answer."""

    depth: int = DEPTH_TOKENS
    """Tokens of each slot's context."""
    slots: int = 1
    """Slots that decode together in one pass."""
    prompt_tokens: int = PROMPT_TOKENS
    tokens_per_pass: float = 1.0
    """Tokens that a slot gets from a pass; with a draft more than 1."""
    tokens_sd: float = 0.0
    drafted: int = 0
    """Tokens that each slot's pass checks beside its own."""
    draft_ms: float = 0.0
    """Time to draft those of all slots."""
    draft_sd_ms: float = 0.0

    @property
    def batch(self) -> int:
        return self.slots * (1 + self.drafted)


USUAL = Workload()


def workload(plan: Plan, objective: Objective | None = None) -> Workload:
    """One client amid an answer, or for throughput as many as there are slots."""
    half = max(plan.ctx_size // 2, 1)
    asked = plan.asked.depth if plan.asked else None
    slots = plan.server.slots if objective is Objective.THROUGHPUT else 1
    return Workload(
        depth=min(asked, plan.ctx_size) if asked else min(DEPTH_TOKENS, half),
        slots=slots,
        prompt_tokens=min(PROMPT_TOKENS, half),
    )


# --- work ----------------------------------------------------------------------------


def active_bytes(layer: Layer, model: ModelInfo, batch: int) -> float:
    """Bytes of weights that a pass of so many tokens reads of a layer.

    Each token uses some of the experts; tokens together use more of them.
    """
    if not model.n_expert or not layer.groups.experts:
        return layer.bytes
    unused = 1 - model.n_expert_used / model.n_expert
    return layer.bytes - layer.groups.experts * min(max(unused, 0.0) ** batch, 1.0)


def expert_work(layer: Layer, model: ModelInfo, batch: int) -> Work:
    rest = layer.bytes - layer.groups.experts
    token = active_bytes(layer, model, 1) - rest
    read = active_bytes(layer, model, batch) - rest
    return Work(
        weight_gb=read / GB,
        gvalues=_multiplied(read, layer, model) / GB,
        gops=(batch - 1) * 2 * _values(token, layer.quants) / GB,
    )


def token_ops(layer: Layer, model: ModelInfo) -> float:
    """Operations of one token in a layer, without attention."""
    return 2 * _values(active_bytes(layer, model, 1), layer.quants)


def _values(n_bytes: float, quants: dict[str, int]) -> float:
    return _by_bytes(n_bytes, quants, lambda quant: 1)


def _multiplied(n_bytes: float, layer: Layer, model: ModelInfo) -> float:
    values = _by_bytes(n_bytes, layer.quants, lambda quant: quant.multiplying)
    return values * (_ZEROS_MULTIPLYING if model.name.startswith(ZEROS_NAME) else 1)


def _by_bytes(
    n_bytes: float, quants: dict[str, int], of_value: Callable[[_Quant], float]
) -> float:
    found = [(_quant(kind), size) for kind, size in quants.items()] or [(_WHOLE, 1)]
    total = sum(size for _, size in found) or 1
    return sum(n_bytes * s / total * 8 / q.bits * of_value(q) for q, s in found)


@cache
def _quant(kind: str) -> _Quant:
    if kind in _QUANTS:
        return _QUANTS[kind]
    found = _KIND_BITS.match(kind)
    bits = float(found[1]) + _SCALE_BITS if found else _WHOLE.bits
    return _Quant(bits, _nearest(bits).multiplying)


@cache
def _nearest(bits: float) -> _Quant:
    return min(_QUANTS.values(), key=lambda quant: abs(quant.bits - bits))


def kv_read_bytes(layer: Layer, depth: int, plan: Plan) -> float:
    """Bytes of KV cache that one token reads in a layer."""
    cells = min(depth, layer.kv_window) if layer.kv_window else depth
    k_values = layer.k_bytes_per_token // buffers.F16_BYTES
    v_values = layer.kv_bytes_per_token // buffers.F16_BYTES - k_values
    server = plan.server
    stored = buffers.stored_bytes(k_values, server.cache_type_k)
    return cells * (stored + buffers.stored_bytes(v_values, server.cache_type_v))


def layer_work(
    model: ModelInfo, plan: Plan, depth: int, batch: int, *, rows: int, slots: int = 1
) -> tuple[Work, ...]:
    """The work of each layer, the output last, for a pass of ``batch`` tokens.

    ``rows`` are the tokens whose next one is wanted: a prompt needs its last alone.
    """
    shared_heads = model.n_head / model.n_head_kv if model.n_head_kv else 1.0

    def of(layer: Layer) -> Work:
        kv = kv_read_bytes(layer, depth, plan)
        values = kv / buffers.F16_BYTES
        ops = token_ops(layer, model) + 2 * values * shared_heads
        weights = active_bytes(layer, model, batch)
        return Work(
            weight_gb=weights / GB,
            gvalues=_multiplied(weights, layer, model) / GB,
            # Tokens of one slot read its cache together.
            kv_gb=slots * kv / GB,
            gops=(batch - 1) * ops / GB,
            layers=1,
        )

    values = model.n_embd * model.n_vocab
    quant = _nearest(8 * model.output_bytes / values if values else 0)
    output = Work(
        weight_gb=model.output_bytes / GB,
        gvalues=values * quant.multiplying / GB,
        gops=(rows - 1) * 2 * values / GB,
        layers=1,
    )
    return (*map(of, model.layers), output)


CountedWork = Callable[[int, int, int, int], tuple[Work, ...]]
"""The work of each layer by depth, batch, rows and slots."""


def counted_work(model: ModelInfo, plan: Plan) -> CountedWork:
    @cache
    def of(depth: int, batch: int, rows: int, slots: int) -> tuple[Work, ...]:
        return layer_work(model, plan, depth, batch, rows=rows, slots=slots)

    return of


def device_work(plan: Plan, works: Sequence[Work]) -> dict[str, Work]:
    """The work of each device that holds layers, in the order of the split."""
    found: dict[str, Work] = {}
    first = 0
    for share in plan.split.shares:
        end = first + share.layers
        if share.layers:
            sums = map(sum, zip(*works[first:end], strict=True))
            found[share.device] = Work(*sums)._replace(passes=1)
        first = end
    return found


def with_moved_experts(
    work: dict[str, Work], model: ModelInfo, plan: Plan, batch: int, rpc_protocol: str
) -> tuple[dict[str, Work], dict[str, Handed]]:
    """The same with experts where the plan has them, and what each device hands over.

    Both devices of such a layer compute in one part more.
    """
    found, handed = dict(work), dict[str, Handed]()
    for layer, home, device in moved_layers(plan.split, plan.experts):
        part = expert_work(model.layers[layer], model, batch)
        less = Work(*(-one for one in part))._replace(passes=1)
        found[home] += less
        found[device] = found.get(device, NO_WORK) + part._replace(passes=1)
        pair = home, device
        first, second = handed_over(model, plan, *pair, batch, rpc_protocol)
        handed[home] = handed.get(home, NOTHING_HANDED) + first
        handed[device] = handed.get(device, NOTHING_HANDED) + second
    return found, handed


def head_work(visits: float) -> Work:
    """The work of the head itself in a pass that visits workers' devices so often."""
    return Work(layers=visits, passes=1)


# --- links ---------------------------------------------------------------------------


def mean_delay_ms(lab: Lab) -> float:
    """The mean of the added one-way latency.

    The relay draws it from a normal distribution and cuts it at 0. So jitter greater
    than the latency adds to the mean.
    """
    mean, deviation = lab.latency_ms, lab.jitter_ms
    if deviation <= 0:
        return mean
    ratio = mean / deviation
    density = exp(-ratio * ratio / 2) / sqrt(2 * pi)
    return mean * NormalDist().cdf(ratio) + deviation * density


def lab_ms(lab: Lab | None, trips: float, n_bytes: float) -> float:
    """The time that a lab adds: each trip goes there and back.

    ``trips · 2 · latency + bytes / rate``
    """
    if lab is None:
        return 0.0
    rate = lab.rate_mb_s * BYTES_PER_MS_PER_MB_S
    return trips * 2 * mean_delay_ms(lab) + (n_bytes / rate if rate else 0.0)


def with_lab(link: LinkSpeed, lab: Lab | None) -> LinkSpeed:
    if lab is None:
        return link
    trips = link.trips_per_pass or 1.0
    jitter = lab.jitter_ms * sqrt(2)
    return LinkSpeed(
        worker=link.worker,
        rtt_ms=link.rtt_ms + lab_ms(lab, 1, 0),
        rtt_sd_ms=sqrt(link.rtt_sd_ms**2 + jitter**2 / trips),
        ms_per_mb=link.ms_per_mb + lab_ms(lab, 0, MB),
        ms_per_mb_sd=link.ms_per_mb_sd,
        pass_ms=link.pass_ms,
        pass_sd_ms=link.pass_sd_ms,
        trips_per_pass=link.trips_per_pass,
        source=link.source,
    )


def with_labs(
    speeds: ClusterSpeeds, lab_of: Callable[[str], Lab | None]
) -> ClusterSpeeds:
    links = tuple(with_lab(link, lab_of(link.worker)) for link in speeds.links)
    return replace(speeds, links=links)


def link_ms(link: LinkSpeed, stages: int, n_bytes: float) -> tuple[float, float]:
    """The time on a link for a pass through so many devices, and its variance."""
    megabytes, trips = n_bytes / MB, stages * link.trips_per_pass
    mean = trips * link.rtt_ms + megabytes * link.ms_per_mb + stages * link.pass_ms
    deviations = (
        trips * link.rtt_sd_ms,
        megabytes * link.ms_per_mb_sd,
        stages * link.pass_sd_ms,
    )
    return mean, sum(one * one for one in deviations)


# --- prediction ----------------------------------------------------------------------


def mean_ms(speed: DeviceSpeed, work: Work) -> float:
    ms: float = sum(map(mul, speed.ms, work))
    return ms


def work_ms(speed: DeviceSpeed, work: Work) -> tuple[float, float]:
    """The same, and its variance."""
    mean, variance = mean_ms(speed, work), 0.0
    for row, one in enumerate(work):
        if one:
            of_row = speed.covariance[row * KINDS : (row + 1) * KINDS]
            variance += one * sum(map(mul, of_row, work))
    return mean, max(variance, 0.0)


class PassCost(NamedTuple):
    """One pass: its time, and every machine's part of it."""

    ms: float
    variance: float
    parts: tuple[ForecastPart, ...]

    @property
    def bottleneck_ms(self) -> float:
        return max(part.compute_ms + part.network_ms for part in self.parts)


def pass_cost(
    model: ModelInfo,
    plan: Plan,
    speeds: ClusterSpeeds,
    *,
    depth: int,
    batch: int,
    rows: int,
    slots: int = 1,
    works: CountedWork | None = None,
) -> PassCost:
    """The cost of one pass; devices without a known speed cost nothing.

    ``rows`` as in ``layer_work``; ``works`` are those of ``counted_work``.
    """
    counted = works or counted_work(model, plan)
    layers = counted(depth, batch, rows, slots)
    if is_by_tensor(plan.extra_args):
        return _tensor_pass(model, plan, speeds, layers, (depth, batch, rows))
    work = device_work(plan, layers)
    work, handed = with_moved_experts(work, model, plan, batch, speeds.rpc_protocol)
    known = speeds.of_device
    last = next((s.device for s in reversed(plan.split.shares) if s.layers), "")
    stages = {
        worker.name: [device for device in worker.device_ids if device in work]
        for worker in used_workers(plan)
    }
    remote = {device for ids in stages.values() for device in ids}
    visits = sum(work[device].passes for device in remote)
    mean, variance = work_ms(speeds.head, head_work(visits))
    own = [device for device in work if device not in remote]
    sources = [speeds.head.source]
    for device in own:
        if device in known:
            ms, spread = work_ms(known[device], work[device])
            mean, variance = mean + ms, variance + spread
            sources.append(known[device].source)
    parts = [
        ForecastPart(
            name=plan.head,
            compute_ms=mean,
            sd_ms=sqrt(variance),
            source=_least_certain(sources),
        )
    ]

    def crossing(device: str) -> tuple[float, float]:
        is_last = device == last
        up, down = stage_bytes(model, depth, batch, rows=rows, has_output=is_last)
        each = graph_bytes(
            *(model, speeds.rpc_protocol),
            resized=rows != batch,
            in_parts=device in handed,
        )
        return up + each * work[device].layers, down

    for worker, ids in stages.items():
        parts.append(
            _worker_part(
                worker,
                [(known.get(device), work[device]) for device in ids],
                speeds.link_to(worker),
                [crossing(device) for device in ids],
                sum((handed.get(one, NOTHING_HANDED) for one in ids), NOTHING_HANDED),
            )
        )
    total = sum(part.compute_ms + part.network_ms for part in parts)
    return PassCost(total, sum(part.sd_ms**2 for part in parts), tuple(parts))


def _tensor_pass(
    model: ModelInfo,
    plan: Plan,
    speeds: ClusterSpeeds,
    works: Sequence[Work],
    stage: tuple[int, int, int],
) -> PassCost:
    """The cost of a pass with a part of each tensor on every device of the split.

    All compute at once, and the slowest counts. Then the head fetches and adds what
    each of them has, one after another.
    """
    used = [share for share in plan.split.shares if share.layers]
    whole = sum(works, start=NO_WORK)
    known = speeds.of_device
    total = sum(share.layers for share in used)
    costs = [
        work_ms(known[share.device], _part(whole, share.layers / total))
        if share.device in known
        else (0.0, 0.0)
        for share in used
    ]
    slowest = max(costs, default=(0.0, 0.0))
    as_one = slowest[0] / (sum(ms for ms, _ in costs) or 1.0)
    remote = sum(share.device in plan.worker_of for share in used)
    head_ms, variance = work_ms(speeds.head, head_work(remote))
    parts = {plan.head: ForecastPart(name=plan.head, compute_ms=head_ms)}
    trips = tensor_trips(model, len(used))
    crossing = TensorStage(len(used), *stage)
    up, down = tensor_bytes(model, crossing, speeds.rpc_protocol)
    for share, (ms, _) in zip(used, costs, strict=True):
        worker = plan.worker_of.get(share.device)
        name = worker.name if worker else plan.head
        part = parts.get(name, ForecastPart(name=name, compute_ms=0.0))
        part = replace(part, compute_ms=part.compute_ms + ms * as_one)
        if worker:
            link = speeds.link_to(name)
            handling = max(link.ms_per_mb, _HANDLING_MS_PER_MB)
            slower = replace(link, ms_per_mb=handling, trips_per_pass=1.0)
            network, spread = link_ms(slower, trips, up + down)
            variance += spread
            part = replace(
                part,
                network_ms=part.network_ms + network,
                trips=part.trips + trips,
                bytes_up=part.bytes_up + up,
                bytes_down=part.bytes_down + down,
            )
        parts[name] = part
    sources = [known[s.device].source for s in used if s.device in known]
    source = _least_certain([speeds.head.source, *sources])
    return PassCost(
        sum(part.compute_ms + part.network_ms for part in parts.values()),
        variance + slowest[1],
        tuple(replace(part, source=source) for part in parts.values()),
    )


def _part(whole: Work, part: float) -> Work:
    return Work(
        weight_gb=whole.weight_gb * part,
        gvalues=whole.gvalues * part,
        kv_gb=whole.kv_gb * part,
        gops=whole.gops * part,
        layers=whole.layers,
        passes=1,
    )


def handed_ms(
    model: ModelInfo,
    plan: Plan,
    speeds: ClusterSpeeds,
    home: str,
    device: str,
    batch: int,
) -> float:
    """The time of that, with the further part that each of them computes in."""
    known, ms = speeds.of_device, 0.0
    pair = home, device
    handed = handed_over(model, plan, *pair, batch, speeds.rpc_protocol)
    for name, one in zip(pair, handed, strict=True):
        ms += mean_ms(known[name], Work(passes=1)) if name in known else 0.0
        if worker := plan.worker_of.get(name):
            ms += _handed_ms(speeds.link_to(worker.name), one)[0]
            ms += mean_ms(speeds.head, Work(layers=1))
    return ms


def _handed_ms(link: LinkSpeed, handed: Handed) -> tuple[float, float]:
    each = replace(link, trips_per_pass=1.0)
    return link_ms(each, handed.trips, handed.up + handed.down)


def _worker_part(
    worker: str,
    devices: Sequence[tuple[DeviceSpeed | None, Work]],
    link: LinkSpeed,
    crossing: Sequence[tuple[float, float]],
    handed: Handed,
) -> ForecastPart:
    trips = link.trips_per_pass * len(crossing) + handed.trips
    up, down = (sum(one) for one in zip(*crossing, strict=True))
    network, variance = link_ms(link, len(crossing), up + down)
    more_ms, more_variance = _handed_ms(link, handed)
    network, variance = network + more_ms, variance + more_variance
    compute, sources = 0.0, [link.source]
    for speed, work in devices:
        if speed is not None:
            ms, spread = work_ms(speed, work)
            compute, variance = compute + ms, variance + spread
            sources.append(speed.source)
    return ForecastPart(
        name=worker,
        compute_ms=compute,
        network_ms=network,
        trips=trips,
        bytes_up=up + handed.up,
        bytes_down=down + handed.down,
        sd_ms=sqrt(variance),
        source=_least_certain(sources),
    )


def _least_certain(sources: Iterable[SpeedSource]) -> SpeedSource:
    return min(sources, key=_CERTAINTY.index, default=SpeedSource.PRIOR)


def prompt_batches(tokens: int) -> list[int]:
    """The passes in which llama-server reads a prompt."""
    whole, rest = divmod(tokens, buffers.UBATCH_TOKENS)
    return [*(buffers.UBATCH_TOKENS for _ in range(whole)), *([rest] if rest else [])]


def is_pipelined(plan: Plan) -> bool:
    """True if several devices read a long prompt at once: all layers are on devices."""
    used = [share.device for share in plan.split.shares if share.layers]
    if plan.experts or not pipelines(plan.extra_args):
        return False
    return len(used) > 1 and not any(is_head_cpu(device, plan.head) for device in used)


def prompt_ms(
    model: ModelInfo,
    plan: Plan,
    speeds: ClusterSpeeds,
    tokens: int,
    works: CountedWork | None = None,
) -> tuple[float, float]:
    """The time to read a prompt and bring out one token, and its variance.

    Passes follow one another. If the plan is pipelined, all but the first cost as much
    as the slowest machine's part.
    """
    mean = variance = 0.0
    depth = 0
    pipelined = is_pipelined(plan)
    for number, batch in enumerate(prompt_batches(tokens)):
        # Half of the batch is before a token, on the average.
        middle = depth + batch // 2
        cost = pass_cost(
            model, plan, speeds, depth=middle, batch=batch, rows=1, works=works
        )
        share = cost.bottleneck_ms / cost.ms if number and pipelined else 1.0
        mean += cost.ms * share
        variance += cost.variance * share * share
        depth += batch
    return mean, variance


def forecast(
    model: ModelInfo,
    plan: Plan,
    speeds: ClusterSpeeds,
    load: Workload = USUAL,
    works: CountedWork | None = None,
) -> Forecast:
    """The predicted speed of a plan, with its error band.

    ``works`` of ``counted_work`` spare counting again for each split of the plan.
    """
    works = works or counted_work(model, plan)
    cost = pass_cost(
        *(model, plan, speeds),
        depth=load.depth,
        batch=load.batch,
        rows=load.batch,
        slots=load.slots,
        works=works,
    )
    pass_ms = cost.ms + load.draft_ms
    by_draft = hypot(load.draft_sd_ms, pass_ms * load.tokens_sd / load.tokens_per_pass)
    spread = sqrt(cost.variance + (speeds.noise * pass_ms) ** 2 + by_draft**2)
    tokens = load.slots * load.tokens_per_pass
    first, first_variance = prompt_ms(model, plan, speeds, load.prompt_tokens, works)
    first_spread = sqrt(first_variance + (speeds.prompt_noise * first) ** 2)
    low_ms, high_ms = band(pass_ms, spread)
    low_first, high_first = band(first, first_spread)
    return Forecast(
        tok_per_s=tokens * MS_PER_S / pass_ms,
        low=tokens * MS_PER_S / high_ms,
        high=tokens * MS_PER_S / low_ms,
        first_token_s=first / MS_PER_S,
        first_token_low_s=low_first / MS_PER_S,
        first_token_high_s=high_first / MS_PER_S,
        bytes_per_token=sum(p.bytes_up + p.bytes_down for p in cost.parts) / tokens,
        trips_per_token=sum(part.trips for part in cost.parts) / tokens,
        pass_ms=pass_ms,
        parts=cost.parts,
        source=_least_certain(part.source for part in cost.parts),
        depth=load.depth,
        prompt_tokens=load.prompt_tokens,
    )


def band(mean: float, deviation: float) -> tuple[float, float]:
    """The ends of a band around a positive figure; log-normal, so that none is < 0."""
    if mean <= 0:
        return 0.0, 0.0
    factor = exp(BAND_SD * deviation / mean) if deviation < mean * 3 else exp(3)
    return mean / factor, mean * factor


def band_text(told: Forecast | Fit) -> str:
    """``~14.2 tok/s (13.1 to 15.3)``; nine of ten runs are within."""
    low, high = (format_rate(one).strip() for one in (told.low, told.high))
    return f"~{format_speed(told.tok_per_s or 0.0)} ({low} to {high})"


def first_token_text(told: Forecast, *, short: bool = False) -> str:
    """``first token ~0.88 s (0.71 s to 1.1 s) after 512 tokens``."""
    text = f"first token ~{format_seconds(told.first_token_s)}"
    if short:
        return text
    low, high = map(format_seconds, (told.first_token_low_s, told.first_token_high_s))
    prompt = format_count(told.prompt_tokens, "token")
    return f"{text} ({low} to {high}) after {prompt}"


def time_text(told: Forecast) -> str:
    """A sentence: where the time of a token goes."""
    if not told.parts:
        return ""
    most = max(told.parts, key=lambda part: part.compute_ms + part.network_ms)
    at, whole = format_ms(most.compute_ms + most.network_ms), format_ms(told.pass_ms)
    network_ms = sum(part.network_ms for part in told.parts)
    if not network_ms:
        return f"A pass takes {whole}, without a network."
    return (
        f"A pass takes {whole}: {at} at {most.name}, and {format_ms(network_ms)} of it "
        "all is network."
    )
