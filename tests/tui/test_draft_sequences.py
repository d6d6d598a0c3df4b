"""The edit through random sequences of keys, drags, snapshots and launches.

A second bookkeeping, as plain as can be, says what the editor must hold after each
step: a list of plans and a place in it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backends.split.layout import counts, move_boundary, with_counts
from backends.state import ClusterSnapshot, ClusterState, ModelInfo, Plan, Split
from tests.tui import scenes
from tui.model.edit import same_plan
from tui.model.editor import PlanEditor

STEPS_MIN, STEPS_MAX = 20, 40
TWIN = replace(scenes.GLM, path="/models/twin.gguf")
"""Another model of as many layers."""
TWIN_PLAN = replace(scenes.HOMELAB_PLAN, model=TWIN.path)
PLANS = (scenes.HOMELAB_PLAN, scenes.DEMO_PLAN, TWIN_PLAN)
MODELS = {model.path: model for model in (scenes.GLM, scenes.DEMO, TWIN)}


class Book:
    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self.at = -1

    @property
    def present(self) -> Plan | None:
        return self.plans[self.at] if self.plans else None

    def step(self, plan: Plan) -> None:
        if self.present is not None and same_plan(plan, self.present):
            self.plans[self.at] = plan
        else:
            self.plans[self.at + 1 :] = [plan]
            self.at += 1

    def split(self, layers: list[int]) -> None:
        assert self.present is not None
        split = with_counts(self.present.split, layers)
        if split != self.present.split:
            self.step(replace(self.present, split=split))


class World:
    """A controller that says things, at times late, and a user who edits a plan."""

    def __init__(self) -> None:
        self.editor, self.book = PlanEditor(), Book()
        self.said = [ClusterSnapshot(seq=0, peers=scenes.homelab_peers())]
        self.seen: Plan | None = None
        self.sent: list[tuple[Plan, ClusterSnapshot | None]] = []
        self.drag: tuple[int, Split, Split] | None = None
        """Boundary, split at the start, and split if it were let go now."""
        self.contexts = count(100)

    # --- what the controller does ----------------------------------------------

    def says(self, **changes: object) -> ClusterSnapshot:
        now = self.said[-1]
        self.said.append(replace(now, seq=now.seq + 1, **changes))
        return self.said[-1]

    def runs(self, plan: Plan) -> ClusterSnapshot:
        plan = replace(plan, api_port=8123)
        return self.says(plan=plan, state=ClusterState.STARTING, generation=1)

    def arrives(self, snapshot: ClusterSnapshot) -> None:
        newest = self.editor.snapshot
        late = newest is not None and snapshot.seq < newest.seq
        assert self.editor.take(snapshot) is not late
        if late or snapshot.plan is None:
            return
        if self.seen is None or not same_plan(self.seen, snapshot.plan):
            self.seen = snapshot.plan
            if not any(same_plan(plan, snapshot.plan) for plan, _ in self.sent):
                self.book.step(snapshot.plan)

    # --- the steps of a sequence: two numbers each -----------------------------------

    def header_comes(self, a: int, b: int) -> None:
        plan = self.said[-1].plan
        self.says(model=MODELS[plan.model] if plan else None)

    def another_launches(self, a: int, b: int) -> None:
        plan = replace(PLANS[a % 3], ctx_size=next(self.contexts))
        self.runs(self.editor.plan or plan if b % 3 == 0 else plan)

    def the_cluster_ends(self, a: int, b: int) -> None:
        self.says(plan=None, state=ClusterState.IDLE)

    def newest_arrives(self, a: int, b: int) -> None:
        self.arrives(self.said[-1])

    def some_arrives(self, a: int, b: int) -> None:
        self.arrives(self.said[b % len(self.said)])

    def a_model_is_chosen(self, a: int, b: int) -> None:
        plan = PLANS[a % 3]
        self.editor.put(plan, MODELS[plan.model] if b % 2 else None)
        self.book.step(plan)

    def a_header_is_read(self, a: int, b: int) -> None:
        path = PLANS[a % 3].model
        self.editor.learn(path, MODELS[path])

    def launch(self, a: int, b: int) -> None:
        plan = self.editor.plan
        if plan is not None:
            self.editor.send(plan)
            self.sent.append((plan, self.runs(plan) if b % 4 else None))

    def answer(self, a: int, b: int) -> None:
        if self.sent:
            plan, answer = self.sent[0]
            if answer is not None:
                self.arrives(answer)
            self.editor.answered(plan)
            del self.sent[0]

    def move(self, a: int, b: int) -> None:
        """By key: what the neighbours let it."""
        if self.book.present is not None and self.drag is None:
            at, layers = a % 2, list(counts(self.book.present.split))
            by = min(max(b % 9 - 4, -layers[at]), layers[at + 1])
            layers[at : at + 2] = [layers[at] + by, layers[at + 1] - by]
            self.book.split(layers)
        if self.drag is None:
            self.editor.move(a % 2, b % 9 - 4)

    def give(self, a: int, b: int) -> None:
        """By a number typed."""
        if self.book.present is not None and self.drag is None:
            at, layers = a % 2, list(counts(self.book.present.split))
            both = layers[at] + layers[at + 1]
            given = min(max(b, 0), both)
            layers[at : at + 2] = [given, both - given]
            self.book.split(layers)
        if self.drag is None:
            self.editor.give(a % 2, b)

    def exchange(self, a: int, b: int) -> None:
        plan = self.book.present
        if plan is None or self.drag is not None:
            return
        shares = list(plan.split.shares)
        cpu = f"{plan.head}/CPU"
        if a % 2 or cpu not in {shares[0].device, shares[1].device}:
            i = a % 2
            shares[i : i + 2] = [shares[i + 1], shares[i]]
            split = replace(plan.split, shares=tuple(shares))
            self.book.step(replace(plan, split=split))
        self.editor.exchange(a % 2, 1)

    def grab(self, a: int, b: int) -> None:
        split = self.editor.split
        if split is not None:
            self.drag = a % 2, split, split
            self.editor.grab(a % 2)

    def pull(self, a: int, b: int) -> None:
        if self.drag is not None and self.editor.dragging:
            at, start, _ = self.drag
            self.editor.drag_to(b)
            self.drag = at, start, move_boundary(start, at, b)

    def drop(self, a: int, b: int) -> None:
        """It counts, unless what was grabbed has gone in the meantime."""
        plan = self.book.present
        if self.drag is not None and plan is not None:
            _, start, split = self.drag
            self.editor.drop()
            if start == plan.split:
                self.book.split(list(counts(split)))
            self.drag = None

    def escape(self, a: int, b: int) -> None:
        self.editor.cancel_drag()
        self.drag = None

    def undo(self, a: int, b: int) -> None:
        if self.drag is None:
            assert self.editor.undo() is (self.book.at > 0)
            self.book.at = max(self.book.at - 1, min(self.book.at, 0))

    def redo(self, a: int, b: int) -> None:
        if self.drag is None:
            last = len(self.book.plans) - 1
            assert self.editor.redo() is (self.book.at < last)
            self.book.at = min(self.book.at + 1, last)

    # --- what must hold ------------------------------------------------------------

    def check(self) -> None:
        editor = self.editor
        assert editor.plan == self.book.present
        if editor.plan is None or editor.split is None:
            return
        model: ModelInfo | None = self.editor.model
        assert model is None or model.path == editor.plan.model
        assert sum(counts(editor.split)) == editor.split.n_layer + 1
        assert set(editor.marks) == {share.device for share in editor.split.shares}
        edit = self.editor.edit
        assert (edit is None) is (model is None)
        if edit is not None and self.drag is not None and self.editor.dragging:
            assert edit.split == self.drag[2]
        elif edit is not None:
            assert edit.split == editor.split

    def check_history(self) -> None:
        """Undo to the very first, redo to the very last: each as it was."""
        editor, book = self.editor, self.book
        while editor.redo():
            pass
        found = [editor.plan] if editor.plan else []
        while editor.undo():
            assert editor.plan is not None
            found.append(editor.plan)
        assert found[::-1] == book.plans
        for plan in book.plans[1:]:
            assert editor.redo()
            assert editor.plan == plan
        assert not editor.redo()


STEPS: tuple[Callable[[World, int, int], None], ...] = (
    *(World.move, World.move, World.give, World.exchange, World.undo, World.undo),
    *(World.redo, World.grab, World.pull, World.pull, World.drop, World.escape),
    *(World.launch, World.answer, World.another_launches, World.another_launches),
    *(World.header_comes, World.header_comes, World.newest_arrives),
    *(World.newest_arrives, World.the_cluster_ends),
    *(World.some_arrives, World.a_model_is_chosen, World.a_header_is_read),
)
NAMES = {step.__name__: index for index, step in enumerate(STEPS)}
LAUNCHED_TWICE = [
    (NAMES["a_model_is_chosen"], 0, 1),
    (NAMES["launch"], 0, 0),
    (NAMES["launch"], 0, 1),
    (NAMES["answer"], 0, 0),
    (NAMES["move"], 0, 0),
    (NAMES["newest_arrives"], 0, 0),
]
"""The first is refused; what runs then is the second, and ours all the same."""
sequences = st.lists(
    st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 5), st.integers(-3, 60)),
    min_size=STEPS_MIN,
    max_size=STEPS_MAX,
)


def go_through(steps: list[tuple[int, int, int]]) -> None:
    world = World()
    for step, a, b in steps:
        STEPS[step](world, a, b)
        world.check()
    world.check_history()


@given(sequences)
@example(LAUNCHED_TWICE)
def test_nothing_is_lost_and_undo_is_exact(steps: list[tuple[int, int, int]]) -> None:
    go_through(steps)


@pytest.mark.trial
@settings(max_examples=1000)
@given(sequences)
def test_nothing_is_lost_in_many_sequences(steps: list[tuple[int, int, int]]) -> None:
    go_through(steps)
