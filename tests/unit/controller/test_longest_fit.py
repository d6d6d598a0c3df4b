"""The longest context that fits: first predicted, then asked of llama.cpp."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from backends.controller.best_plans import ASKS_MAX, longest_fit
from backends.errors import PlanError
from backends.models.layers import read_model
from backends.split.device_memory import plan_loads
from backends.split.layout import make_split
from backends.state import (
    Device,
    DeviceKind,
    Fit,
    MemorySource,
    ModelInfo,
    Plan,
    PlanMemory,
)
from tests.unit.models.ggufs import LLAMA, llama_tensors, write_gguf

GIB = 1 << 30
TRAINED = 32768


class Machine:
    """One device with some room, and an engine that needs more than is predicted."""

    def __init__(self, model: ModelInfo, *, allows: int, more_bytes: int = 0) -> None:
        self.model = model
        self.allows = allows
        """The longest context that is predicted to fit."""
        self.more_bytes = more_bytes
        self.asked: list[int] = []
        self.note = ""

    def made(self, ctx_size: int) -> Plan:
        if ctx_size > self.allows:
            raise PlanError("local/CPU is too small for its share")
        split = make_split(self.model.n_layer, ["local/CPU"], [self.model.n_layer + 1])
        return Plan(model=self.model.path, split=split, ctx_size=ctx_size)

    def devices(self, _: Plan) -> list[Device]:
        (load,) = plan_loads(self.model, self.made(self.allows))
        room = load.total_bytes + GIB
        return [
            Device(
                id="local/CPU",
                name="CPU",
                kind=DeviceKind.CPU,
                total_bytes=room,
                free_bytes=room,
            )
        ]

    async def memory(self, plan: Plan) -> PlanMemory:
        self.asked.append(plan.ctx_size)
        (load,) = plan_loads(self.model, plan)
        more = self.more_bytes * plan.ctx_size // TRAINED
        told = replace(
            load.memory, kv_bytes=load.kv_bytes + more, source=MemorySource.ENGINE
        )
        return PlanMemory(devices=(told,), note=self.note)

    async def fit(self) -> Fit:
        return await longest_fit(
            self.made, TRAINED, self.model, self.devices, self.memory
        )


def model_of(tmp_path: Path) -> ModelInfo:
    params = LLAMA | {"context_length": TRAINED}
    return read_model(write_gguf(tmp_path / "m.gguf", params, llama_tensors()))


async def test_all_of_the_context_fits(tmp_path: Path) -> None:
    machine = Machine(model_of(tmp_path), allows=TRAINED)
    fit = await machine.fit()
    assert (fit.ctx_size, fit.source) == (TRAINED, MemorySource.ENGINE)
    assert machine.asked == [TRAINED]
    assert [tuple(each.device for each in fit.layers)] == [("local/CPU",)]


async def test_a_shorter_one_is_predicted_and_asked_for(tmp_path: Path) -> None:
    machine = Machine(model_of(tmp_path), allows=10_000)
    assert (await machine.fit()).ctx_size == 9984
    assert machine.asked == [9984]


async def test_the_engine_has_the_last_word(tmp_path: Path) -> None:
    machine = Machine(model_of(tmp_path), allows=TRAINED, more_bytes=2 * GIB)
    fit = await machine.fit()
    assert TRAINED // 4 < fit.ctx_size < TRAINED
    assert fit.source is MemorySource.ENGINE
    assert len(machine.asked) == ASKS_MAX
    assert fit.ctx_size in machine.asked


async def test_what_the_engine_does_not_tell_is_by_its_protocol(tmp_path: Path) -> None:
    """Since 8.0.0 there are the vectors of tokens, too."""
    machine = Machine(model_of(tmp_path), allows=TRAINED)

    def tight(plan: Plan) -> list[Device]:
        (load,) = plan_loads(machine.model, plan, protocol="7.0.0")
        return [
            replace(one, free_bytes=load.total_bytes) for one in machine.devices(plan)
        ]

    async def nothing_told(plan: Plan) -> PlanMemory:
        return PlanMemory(devices=())

    for protocol, ctx_size in ("7.0.0", TRAINED), ("8.0.0", 0):
        fit = await longest_fit(
            *(machine.made, TRAINED, machine.model, tight, nothing_told),
            protocol=protocol,
        )
        assert fit.ctx_size == ctx_size


async def test_without_an_engine_it_is_a_prediction(tmp_path: Path) -> None:
    machine = Machine(model_of(tmp_path), allows=TRAINED)
    machine.note = "The engine has no llama-fit-params."
    fit = await machine.fit()
    assert (fit.source, fit.note) == (MemorySource.PREDICTED, machine.note)


async def test_what_does_not_fit_says_why(tmp_path: Path) -> None:
    fit = await Machine(model_of(tmp_path), allows=8).fit()
    assert (fit.ctx_size, fit.why) == (0, "local/CPU is too small for its share")
