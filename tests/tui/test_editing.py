"""The desk's bookkeeping: history, headers, whose news, and one draft per cluster."""

from __future__ import annotations

import msgspec
import pytest

from backends.split.layout import counts, with_counts
from backends.state import ClusterSnapshot
from tests.tui import scenes
from tui.model.desk import Desk, is_header_of
from tui.model.drag import Drag
from tui.model.editing import DEPTH_MAX, Editing, History, same_plan

# --- history ----------------------------------------------------------------


def test_undo_and_redo() -> None:
    history = History("a").push("b").push("b")
    assert history.past == ("a",)
    undone = history.undo()
    assert undone.present == "a"
    assert undone.can_redo
    assert undone.redo() == history
    assert not undone.can_undo
    assert undone.undo() is undone
    assert history.redo() is history


def test_a_new_step_forgets_the_undone_ones() -> None:
    history = History("a").push("b").undo().push("c")
    assert not history.can_redo
    assert history.undo().present == "a"


def test_history_is_bounded() -> None:
    history = History(0)
    for step in range(DEPTH_MAX + 300):
        history = history.push(step + 1)
    assert len(history.past) == DEPTH_MAX
    assert history.past[-1] == history.present - 1


def test_what_is_learned_reaches_every_step() -> None:
    history = History(1).push(2).push(3).undo().mapped(lambda step: step * 10)
    assert (history.past, history.present, history.future) == ((10,), 20, (30,))


# --- headers ----------------------------------------------------------------


def test_a_header_is_learned_by_the_plans_of_its_file_alone() -> None:
    editing = Editing()
    editing.put(scenes.HOMELAB_PLAN)
    editing.put(scenes.DEMO_PLAN)
    editing.learn(scenes.DEMO.path, scenes.DEMO)
    assert editing.model == scenes.DEMO
    assert editing.undo()
    assert editing.model is None
    editing.learn(scenes.GLM.path, scenes.DEMO)
    assert editing.model is None, "it has not as many layers as the plan splits"


def test_a_header_read_once_serves_later_plans_of_the_file() -> None:
    editing = Editing()
    editing.put(scenes.HOMELAB_PLAN, scenes.GLM)
    editing.put(scenes.DEMO_PLAN, scenes.DEMO)
    editing.put(msgspec.structs.replace(scenes.HOMELAB_PLAN, ctx_size=512))
    assert editing.model == scenes.GLM


@pytest.mark.parametrize(
    ("model", "is_its"),
    [
        (scenes.GLM.path, True),
        (f"studio:{scenes.GLM.path}", True),
        ("/models/part-2.gguf", True),
        ("/models/other.gguf", False),
        ("studio:/models/other.gguf", False),
    ],
)
def test_whose_header_it_is(model: str, is_its: bool) -> None:
    parts = (scenes.GLM.path, "/models/part-2.gguf")
    header = msgspec.structs.replace(scenes.GLM, files=parts)
    plan = msgspec.structs.replace(scenes.HOMELAB_PLAN, model=model)
    assert is_header_of(header, plan) is is_its


# --- changes ------------------------------------------------------------------


def test_what_cannot_be_done_changes_nothing() -> None:
    editing = Editing()
    split = scenes.DEMO_PLAN.split
    assert not editing.edit(split)
    assert not editing.move(0, 1)
    assert not editing.give(0, 3)
    assert not editing.exchange(0, 1)
    assert not editing.undo()
    assert not editing.redo()
    editing.put(scenes.DEMO_PLAN)
    assert not editing.move(7, 1)
    assert not editing.exchange(0, 1), "the head's CPU stays first"
    assert not editing.drop(Drag.of(split, 1))
    assert not editing.can_undo


def test_a_drag_of_what_is_gone_changes_nothing() -> None:
    editing = Editing()
    editing.put(scenes.DEMO_PLAN)
    drag = Drag.of(scenes.DEMO_PLAN.split, 1).to(3)
    assert editing.move(1, 1)
    assert not editing.drop(drag)
    assert editing.undo()
    assert editing.drop(drag)
    assert editing.split is not None
    assert counts(editing.split) == (0, 3, 10)


def test_port_and_origin_make_no_other_plan() -> None:
    plan = scenes.DEMO_PLAN
    assert same_plan(plan, msgspec.structs.replace(plan, api_port=1))
    assert not same_plan(plan, msgspec.structs.replace(plan, extra_args=("-fa",)))


# --- snapshots ----------------------------------------------------------------


def test_a_new_controller_counts_from_the_beginning() -> None:
    desk = Desk()
    assert desk.take(ClusterSnapshot(seq=90, controller_pid=1))
    assert not desk.take(ClusterSnapshot(seq=89, controller_pid=1))
    assert desk.take(ClusterSnapshot(seq=1, controller_pid=2))
    assert not desk.take(ClusterSnapshot(seq=0, controller_pid=2))


def test_each_cluster_keeps_its_draft() -> None:
    desk = Desk("default")
    desk.take(scenes.demo_serving())
    desk.editing.move(1, 2)
    edited = desk.plan
    desk.go_to("second")
    assert desk.plan is None
    assert desk.snapshot is None
    desk.take(scenes.homelab_serving())
    desk.go_to("default")
    desk.take(scenes.demo_serving())
    assert desk.plan == edited
    assert desk.model == scenes.DEMO


def test_what_runs_again_after_a_restart_takes_nothing_back() -> None:
    """A new controller is idle for a moment before it takes up what runs."""
    desk = Desk()
    desk.take(scenes.demo_serving())
    desk.editing.move(1, 2)
    edited = desk.plan
    desk.take(msgspec.structs.replace(scenes.idle(), controller_pid=2))
    again = msgspec.structs.replace(scenes.demo_serving(), controller_pid=2)
    desk.take(again)
    assert desk.plan == edited


def test_a_refused_launch_leaves_the_same_plan_news_from_others() -> None:
    desk = Desk()
    desk.take(scenes.idle())
    desk.put(scenes.DEMO_PLAN, scenes.DEMO)
    desk.goals.send(scenes.DEMO_PLAN)
    desk.goals.answered(scenes.DEMO_PLAN)
    split = with_counts(scenes.DEMO_PLAN.split, (0, 1, 12))
    desk.editing.edit(split)
    desk.take(scenes.demo_serving())
    assert desk.plan == scenes.DEMO_PLAN
    assert desk.editing.undo()
    assert desk.editing.split == split
