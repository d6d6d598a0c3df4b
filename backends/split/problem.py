"""A best split's question: the plan, its devices and speeds, and a person's pins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from backends.errors import PlanError, did_you_mean
from backends.split.cost import USUAL, CountedWork, Workload, forecast
from backends.split.device_memory import DeviceLoad, plan_loads
from backends.split.optimiser import BEAM
from backends.state import (
    ClusterSpeeds,
    Device,
    Forecast,
    ModelInfo,
    Plan,
    Split,
    Value,
)
from backends.units import format_count

BUDGET_MAX = 1 << 50


class Pins(Value, frozen=True, kw_only=True):
    """A person's conditions for a best split, by the name of a device."""

    output: str = ""
    """The device that holds the output."""
    least: dict[str, int] = {}
    most: dict[str, int] = {}
    budget: dict[str, int] = {}
    """Bytes it may take."""


class SplitProblem(NamedTuple):
    """Everything that a best split depends on."""

    model: ModelInfo
    plan: Plan
    """Its split names the order to begin with; its layers are not asked for."""
    devices: Sequence[Device]
    """Of the plan, with the memory that is free there for it."""
    speeds: ClusterSpeeds
    pins: Pins = Pins()
    load: Workload = USUAL
    beam: int = BEAM
    """Sets of devices followed at a time if there are too many for all."""
    works: CountedWork | None = None
    """Of the model with the plan's settings, where it is counted once for many."""
    known: Callable[[], Iterable[Split]] = tuple
    """A search in part finds none that is worse than these, or than the plan's own."""

    def with_split(self, split: Split) -> SplitProblem:
        return self._replace(plan=replace(self.plan, split=split))

    def loads(self, plan: Plan, *, all_masks: bool = False) -> tuple[DeviceLoad, ...]:
        """The memory of a plan of the same head."""
        protocol = self.speeds.rpc_protocol
        return plan_loads(self.model, plan, protocol=protocol, all_masks=all_masks)

    def forecast(self) -> Forecast:
        return forecast(self.model, self.plan, self.speeds, self.load, self.works)


class PartsPlan(NamedTuple):
    """The fastest plan with parts of layers elsewhere, or why there is none."""

    plan: Plan | None
    why: str
    forecast: Forecast | None = None
    """Of the plan."""


_PIN = re.compile(r"\s*([^<>=\s]+)\s*(>=|<=|=)\s*(\S.*?)\s*")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])i?B", re.IGNORECASE)
_PIN_HINT = (
    "Write output=DEVICE, DEVICE>=LAYERS, DEVICE<=LAYERS, DEVICE=LAYERS or "
    "DEVICE<=12GiB."
)


def parse_pins(texts: Iterable[str]) -> Pins:
    """The conditions of all ``--pin`` together."""
    output = ""
    least: dict[str, int] = {}
    most: dict[str, int] = {}
    budget: dict[str, int] = {}
    for text in texts:
        found = _PIN.fullmatch(text)
        if found is None:
            raise PlanError(f"The pin {text!r} cannot be read", _PIN_HINT)
        name, sign, value = found.groups()
        size = _SIZE.fullmatch(value)
        if name == "output" and sign == "=":
            if output not in ("", value):
                raise PlanError(f"The pins put the output on {output} and on {value}")
            output = value
        elif size is not None and sign == "<=":
            n_bytes = float(size[1]) * 1024 ** ("KMGT".index(size[2].upper()) + 1)
            budget[name] = round(min(n_bytes, budget.get(name, BUDGET_MAX)))
        elif value.isascii() and value.isdigit() and len(value) < 6:
            if sign != "<=":
                least[name] = max(int(value), least.get(name, 0))
            if sign != ">=":
                most[name] = min(int(value), most.get(name, int(value)))
        else:
            raise PlanError(f"The pin {text!r} cannot be read", _PIN_HINT)
    return Pins(output=output, least=least, most=most, budget=budget)


def check_kept(pins: Pins, split: Split) -> None:
    """See that a split that was not searched keeps to a cluster file's limits."""
    for share in split.shares:
        least = pins.least.get(share.device, 0)
        most = pins.most.get(share.device, share.layers)
        if not least <= share.layers <= most:
            limit = f"at least {least}" if share.layers < least else f"at most {most}"
            raise PlanError(
                f"The split gives {share.device} "
                f"{format_count(share.layers, 'layer')}, and the cluster file wants "
                f"{limit}",
                "Add --best, or change the file.",
            )


def check_pins(pins: Pins, problem: SplitProblem) -> None:
    """See that pins name devices of the plan, and numbers that can be had."""
    known = [share.device for share in problem.plan.split.shares]
    n_layers = problem.model.n_layer + 1
    for name in (pins.output, *pins.least, *pins.most, *pins.budget):
        if name and name not in known:
            raise PlanError(
                f"A pin names {name}, which is no device of the plan",
                f"{did_you_mean(name, known)}It has {', '.join(known)}.",
            )
    for name, least in pins.least.items():
        if least > min(pins.most.get(name, n_layers), n_layers):
            raise PlanError(
                f"The pins want at least {format_count(least, 'layer')} on {name}, "
                "which is more than it may or can have",
                f"The model has {n_layers} with the output.",
            )
    allowed = sum(min(pins.most.get(name, n_layers), n_layers) for name in known)
    if allowed < n_layers:
        raise PlanError(
            f"The pins allow {format_count(allowed, 'layer')} on all devices together, "
            f"and the model has {n_layers} with the output",
            "Allow more (most in a cluster file), or add a peer.",
        )
    if sum(pins.least.values()) > n_layers:
        raise PlanError(
            "The pins want more layers than the model has",
            f"It has {n_layers} with the output.",
        )
