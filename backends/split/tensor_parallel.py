"""Plans with a part of each tensor on every device (``-sm tensor``), where they win.

All devices compute at once, so that the largest part counts and not the sum. But the
head fetches and adds what they have twice a layer. Only a very fast link bears that.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from backends.server_settings import BY_TENSOR
from backends.split.buffers import is_unfused
from backends.split.cost import Work, Workload, layer_work, mean_ms
from backends.split.device_memory import overcommitted, proportional
from backends.split.flags import DEVICES_MAX
from backends.split.layout import devices, is_head_cpu, make_split, with_idle
from backends.split.problem import PartsPlan, SplitProblem
from backends.split.rpc_traffic import TensorStage, tensor_bytes
from backends.state import Forecast, Plan
from backends.units import format_bytes, format_count, format_speed

NAME = "a part of each tensor (-sm tensor)"
GAIN_MIN = 1.1
"""Times as fast as by layers, for it to be proposed: less is within the error."""


_WEIGHTS = Work(weight_gb=0.6, gvalues=1)
"""By whose time devices get their parts: as many weights for all."""


def by_tensor(problem: SplitProblem, by_layers: Forecast) -> PartsPlan:
    """The fastest such plan if it beats a split by layers, else why it does not."""
    if why := _refused(problem):
        return PartsPlan(None, why)
    told = [(problem._replace(plan=plan).forecast(), plan) for plan in _plans(problem)]
    if not told:
        return PartsPlan(None, "the devices that could do it have no room")
    best, plan = max(told, key=lambda pair: pair[0].tok_per_s)
    used = [share for share in plan.split.shares if share.layers]
    stage = TensorStage(len(used), *_stage(problem.load))
    n_bytes = sum(tensor_bytes(problem.model, stage, problem.speeds.rpc_protocol))
    costs = (
        f"{format_count(round(best.trips_per_token), 'trip')} a token, and "
        f"{format_bytes(n_bytes)} a token for each of {len(used)} devices"
    )
    if best.tok_per_s < GAIN_MIN * by_layers.tok_per_s:
        speeds = f"{format_speed(best.tok_per_s)}, by layers "
        speeds += format_speed(by_layers.tok_per_s)
        return PartsPlan(None, f"not worth it: {speeds}; {costs}")
    whole = with_idle(plan.split, devices(problem.plan.split))
    return PartsPlan(replace(plan, split=whole), costs, best)


def _stage(load: Workload) -> tuple[int, int, int]:
    return load.depth, load.batch, load.batch


def _refused(problem: SplitProblem) -> str:
    plan = problem.plan
    if is_unfused(plan.server):
        return "it needs flash attention"
    if plan.speculation is not None:
        return "with a draft it is not planned"
    if problem.pins != type(problem.pins)():
        return "pins are about whole layers"
    if len(_candidates(problem)) < 2:
        return "it needs two devices beside the head's CPU"
    return ""


def _candidates(problem: SplitProblem) -> list[str]:
    speeds = problem.speeds.of_device
    depth, batch, _ = _stage(problem.load)
    works = layer_work(problem.model, problem.plan, depth, batch, rows=1)
    whole = sum(works, start=Work(passes=1))
    names = [
        share.device
        for share in problem.plan.split.shares
        if not is_head_cpu(share.device, problem.plan.head) and share.device in speeds
    ]
    return sorted(names, key=lambda name: mean_ms(speeds[name], whole))


def _plans(problem: SplitProblem) -> Iterator[Plan]:
    """The fastest two, four, … devices, with parts alike or by their speed."""
    plan, names = problem.plan, _candidates(problem)
    speeds = problem.speeds.of_device
    n_layers = plan.split.n_layer + 1
    lead = [name for name in devices(plan.split) if is_head_cpu(name, plan.head)]
    for count in range(2, min(len(names), DEVICES_MAX) + 1):
        chosen = names[:count]
        rates = [1 / max(mean_ms(speeds[n], _WEIGHTS), 1e-9) for n in chosen]
        for parts in ([1] * count, [round(1e6 * rate) for rate in rates]):
            held = dict(zip(chosen, proportional([1] * n_layers, parts), strict=True))
            order = [*lead, *chosen]
            split = make_split(
                plan.split.n_layer, order, [held.get(name, 0) for name in order]
            )
            extra = (*plan.extra_args, *BY_TENSOR)
            found = replace(plan, split=split, extra_args=extra)
            if not overcommitted(problem.loads(found), problem.devices):
                yield found
