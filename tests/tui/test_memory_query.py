"""The console asks what memory a plan takes once it rests, and says who told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from backends.errors import EngineError
from backends.split.device_memory import device_loads
from backends.split.layout import with_counts
from backends.state import Ask, DeviceMemory, MemorySource, Plan, PlanMemory
from tests.tui import scenes
from tests.tui.helpers import screen_text, until
from tests.tui.scripted import ScriptedCluster
from tui.app.app import DllmApp
from tui.flows import background_queries
from tui.model.editor import PlanEditor
from tui.model.plan_words import verdict

MIB = 1 << 20


def engine_says(plan: Plan, more_mib: int = 100) -> PlanMemory:
    """Our own arithmetic, and so much more in every compute buffer."""
    loads = device_loads(scenes.DEMO, plan.split, plan.ctx_size, head=plan.head)
    return PlanMemory(
        devices=tuple(
            replace(
                load.memory,
                compute_bytes=load.compute_bytes + more_mib * MIB,
                source=MemorySource.ENGINE,
            )
            for load in loads
        )
    )


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_queries, "SETTLE_S", 0.05)


@pytest.fixture
def editor() -> PlanEditor:
    made = PlanEditor()
    made.take(scenes.idle())
    made.put(scenes.DEMO_PLAN, scenes.DEMO)
    return made


def test_an_answer_settles_its_plan_and_teaches_the_next(editor: PlanEditor) -> None:
    assert editor.unsettled == scenes.DEMO_PLAN
    before = editor.edit
    assert before is not None
    editor.settle(scenes.DEMO_PLAN, engine_says(scenes.DEMO_PLAN))
    assert editor.unsettled is None
    edit = editor.edit
    assert edit is not None
    assert {load.source for load in edit.loads} == {MemorySource.ENGINE}
    split = with_counts(edit.split, (0, 5, 8))
    plan = replace(scenes.DEMO_PLAN, split=split)
    moved = replace(edit, plan=plan)
    assert {load.source for load in moved.loads} == {MemorySource.PREDICTED}
    plain = replace(before, plan=plan)
    for load, alone in zip(moved.loads, plain.loads, strict=True):
        assert load.compute_bytes == alone.compute_bytes + 100 * MIB


def test_answers_for_other_arguments_are_not_used(editor: PlanEditor) -> None:
    editor.settle(scenes.DEMO_PLAN, engine_says(scenes.DEMO_PLAN))
    other = replace(scenes.DEMO_PLAN, extra_args=("-ctk", "q8_0"))
    editor.put(other, scenes.DEMO)
    assert editor.unsettled == other
    assert editor.edit is not None
    assert editor.edit.told == ()


def test_an_engine_that_cannot_answer_is_asked_once(editor: PlanEditor) -> None:
    note = "The engine has no llama-fit-params"
    editor.settle(scenes.DEMO_PLAN, PlanMemory(devices=(), note=note))
    assert editor.unsettled is None
    said = verdict(editor.edit, editor.plan, editor.snapshot).text
    assert f"memory predicted ({note})" in said


@pytest.mark.parametrize(
    ("off_mib", "tone", "part"),
    [
        (0, "ok", "layers and memory as planned"),
        (200, "warn", "off the engine's estimate"),
    ],
)
def test_the_tick_is_for_what_was_checked(off_mib: int, tone: str, part: str) -> None:
    snapshot = scenes.demo_serving()
    assert snapshot.plan is not None
    told = engine_says(snapshot.plan)
    measured = tuple(
        DeviceMemory(
            device=memory.device,
            model_bytes=memory.model_bytes + off_mib * MIB,
            kv_bytes=memory.kv_bytes,
            compute_bytes=memory.compute_bytes,
            source=MemorySource.MEASURED,
        )
        for memory in told.devices
    )
    assert snapshot.measured is not None
    found = replace(snapshot.measured, buffers=measured)
    editor = PlanEditor()
    editor.take(replace(snapshot, measured=found, model=scenes.DEMO))
    assert (
        "memory as measured" in verdict(editor.edit, editor.plan, editor.snapshot).text
    )
    editor.settle(snapshot.plan, told)
    said = verdict(editor.edit, editor.plan, editor.snapshot)
    assert said.tone == tone
    assert part in said.text


@pytest.mark.usefixtures("quick")
async def test_a_plan_at_rest_is_asked_about(make_app: Callable[..., DllmApp]) -> None:
    cluster = ScriptedCluster(scenes.idle())
    cluster.memories = engine_says
    app = make_app(cluster, initial_model=scenes.DEMO.path)
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: "memory estimated by the engine" in screen_text(app))
        assert len(cluster.called("memory")) == 1
        await pilot.press("left")
        await until(pilot, lambda: len(cluster.called("memory")) == 2)
        assert cluster.called("memory")[1].split != cluster.called("memory")[0].split
        cluster.errors["memory"] = EngineError("No tool")
        await pilot.press("left")
        await until(pilot, lambda: "memory predicted (No tool" in screen_text(app))
        await pilot.pause()
        assert len(cluster.called("memory")) == 3
        assert not list(app.event_log), "an error is no toast"


@pytest.mark.usefixtures("quick")
async def test_a_move_ends_the_question_about_the_plan_before(
    make_app: Callable[..., DllmApp], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = ScriptedCluster(scenes.idle())
    asked: list[Plan] = []
    ended: list[Plan] = []

    async def memory(plan: Plan) -> PlanMemory:
        asked.append(plan)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(plan)
        raise AssertionError

    monkeypatch.setattr(cluster, "memory", memory)
    app = make_app(cluster, initial_model=scenes.DEMO.path)
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: len(asked) == 1)
        await pilot.press("left")
        await until(pilot, lambda: len(asked) == 2)
        assert ended == asked[:1]


def test_a_plan_asked_for_by_names_can_be_edited() -> None:
    asked = Ask(model="m.gguf", split={"worker1/CPU": 6, "worker2/CPU": 7})
    plan = replace(scenes.DEMO_PLAN, asked=asked)
    made = PlanEditor()
    made.take(scenes.idle())
    made.put(plan, scenes.DEMO)
    assert made.unsettled == plan
    made.settle(plan, PlanMemory(devices=(), note="Nobody could be asked."))
    assert made.unsettled is None
    assert made.edit is not None
    assert made.edit.note == "Nobody could be asked."
