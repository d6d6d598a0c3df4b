"""The editor's bookkeeping: history, headers, whose news, and one draft per cluster."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from backends.split.layout import counts, with_counts
from backends.state import ClusterSnapshot
from tests.tui import scenes
from tui.model.edit import is_header_of, same_plan
from tui.model.editor import DEPTH_MAX, History, PlanEditor

# --- history ----------------------------------------------------------------


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
    editor = PlanEditor()
    editor.put(scenes.HOMELAB_PLAN)
    editor.put(scenes.DEMO_PLAN)
    editor.learn(scenes.DEMO.path, scenes.DEMO)
    assert editor.model == scenes.DEMO
    assert editor.undo()
    assert editor.model is None
    editor.learn(scenes.GLM.path, scenes.DEMO)
    assert editor.model is None, "it has not as many layers as the plan splits"


def test_a_header_read_once_serves_later_plans_of_the_file() -> None:
    editor = PlanEditor()
    editor.put(scenes.HOMELAB_PLAN, scenes.GLM)
    editor.put(scenes.DEMO_PLAN, scenes.DEMO)
    editor.put(replace(scenes.HOMELAB_PLAN, ctx_size=512))
    assert editor.model == scenes.GLM


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
    header = replace(scenes.GLM, files=parts)
    plan = replace(scenes.HOMELAB_PLAN, model=model)
    assert is_header_of(header, plan) is is_its


# --- changes ------------------------------------------------------------------


def test_what_cannot_be_done_changes_nothing() -> None:
    editor = PlanEditor()
    split = scenes.DEMO_PLAN.split
    assert not editor.set_split(split)
    assert not editor.move(0, 1)
    assert not editor.give(0, 3)
    assert not editor.exchange(0, 1)
    assert not editor.undo()
    assert not editor.redo()
    editor.put(scenes.DEMO_PLAN)
    assert not editor.move(7, 1)
    assert not editor.exchange(0, 1), "the head's CPU stays first"
    editor.grab(1)
    assert not editor.drop()
    assert not editor.can_undo


def test_a_drag_of_what_is_gone_changes_nothing() -> None:
    editor = PlanEditor()
    editor.put(scenes.DEMO_PLAN)
    editor.grab(1)
    editor.drag_to(3)
    assert editor.move(1, 1)
    assert not editor.dragging
    assert not editor.drop()
    assert editor.undo()
    editor.grab(1)
    editor.drag_to(3)
    assert editor.drop()
    assert editor.split is not None
    assert counts(editor.split) == (0, 3, 10)


def test_a_drag_shows_at_once_and_counts_once_let_go() -> None:
    editor = PlanEditor()
    editor.put(scenes.DEMO_PLAN, scenes.DEMO)
    heard: list[tuple[int, ...]] = []
    editor.changed = lambda: heard.append(editor.edit.counts if editor.edit else ())
    editor.grab(1)
    for position in (3, 3, 4, None):
        editor.drag_to(position)
    assert editor.split == scenes.DEMO_PLAN.split
    assert editor.unsettled is None
    editor.drag_to(5)
    assert editor.drop()
    start = counts(scenes.DEMO_PLAN.split)
    assert heard == [(0, 3, 10), (0, 4, 9), start, (0, 5, 8), (0, 5, 8)]
    assert editor.undo()
    assert editor.plan == scenes.DEMO_PLAN


def test_port_and_origin_make_no_other_plan() -> None:
    plan = scenes.DEMO_PLAN
    assert same_plan(plan, replace(plan, api_port=1))
    assert not same_plan(plan, replace(plan, extra_args=("-fa",)))


# --- snapshots ----------------------------------------------------------------


def test_a_new_controller_counts_from_the_beginning() -> None:
    editor = PlanEditor()
    assert editor.take(ClusterSnapshot(seq=90, controller_pid=1))
    assert not editor.take(ClusterSnapshot(seq=89, controller_pid=1))
    assert editor.take(ClusterSnapshot(seq=1, controller_pid=2))
    assert not editor.take(ClusterSnapshot(seq=0, controller_pid=2))


def test_each_cluster_keeps_its_draft() -> None:
    editor = PlanEditor("default")
    editor.take(scenes.demo_serving())
    editor.move(1, 2)
    edited = editor.plan
    editor.go_to("second")
    assert editor.plan is None
    assert editor.snapshot is None
    editor.take(scenes.homelab_serving())
    editor.go_to("default")
    editor.take(scenes.demo_serving())
    assert editor.plan == edited
    assert editor.model == scenes.DEMO


def test_what_runs_again_after_a_restart_takes_nothing_back() -> None:
    """A new controller is idle for a moment before it takes up what runs."""
    editor = PlanEditor()
    editor.take(scenes.demo_serving())
    editor.move(1, 2)
    edited = editor.plan
    editor.take(replace(scenes.idle(), controller_pid=2))
    again = replace(scenes.demo_serving(), controller_pid=2)
    editor.take(again)
    assert editor.plan == edited


def test_a_refused_launch_leaves_the_same_plan_news_from_others() -> None:
    editor = PlanEditor()
    editor.take(scenes.idle())
    editor.put(scenes.DEMO_PLAN, scenes.DEMO)
    editor.send(scenes.DEMO_PLAN)
    editor.answered(scenes.DEMO_PLAN)
    split = with_counts(scenes.DEMO_PLAN.split, (0, 1, 12))
    editor.set_split(split)
    editor.take(scenes.demo_serving())
    assert editor.plan == scenes.DEMO_PLAN
    assert editor.undo()
    assert editor.split == split
