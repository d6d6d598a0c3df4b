"""The one owner of the draft: plan, split, order, letters, header, and their history.

Whoever changes the draft asks here, and whoever shows it reads it here; nobody keeps
a split of their own but the drag of a boundary that is not let go yet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from backends.split.layout import boundaries, move_boundary, reorder
from tui.model.draft import marks_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from backends.state import ModelInfo, Plan, Split
    from tui.model.drag import Drag

T = TypeVar("T")

DEPTH_MAX = 1000
"""Steps that can be taken back."""


@dataclass(frozen=True)
class History(Generic[T]):
    """The present value, the past (oldest first) and the undone (nearest first)."""

    present: T
    past: tuple[T, ...] = ()
    future: tuple[T, ...] = ()

    @property
    def can_undo(self) -> bool:
        return bool(self.past)

    @property
    def can_redo(self) -> bool:
        return bool(self.future)

    def push(self, present: T) -> History[T]:
        """Make something the present one; the same again is no step."""
        if present == self.present:
            return self
        return History(present, (*self.past, self.present)[-DEPTH_MAX:])

    def undo(self) -> History[T]:
        """One step back, or the same history at its beginning."""
        if not self.past:
            return self
        *past, present = self.past
        return History(present, tuple(past), (self.present, *self.future))

    def redo(self) -> History[T]:
        """One undone step forward again, or the same history."""
        if not self.future:
            return self
        present, *future = self.future
        return History(present, (*self.past, self.present), tuple(future))

    def mapped(self, change: Callable[[T], T]) -> History[T]:
        """Every step changed alike: something was learned about all of them."""
        return History(
            change(self.present),
            tuple(map(change, self.past)),
            tuple(map(change, self.future)),
        )


@dataclass(frozen=True)
class Edition:
    """One state of the draft: what belongs together, so that nothing can get mixed."""

    plan: Plan
    model: ModelInfo | None
    """The header of the plan's own model; None while it is not read."""
    marks: tuple[str, ...]
    """Device ids in the order of their letters."""

    def with_split(self, split: Split) -> Edition:
        """The same with other layers, or the same devices in another order."""
        plan = msgspec.structs.replace(self.plan, split=split)
        return replace(self, plan=plan, marks=marks_for(self.marks, split))

    def with_header(self, path: str, model: ModelInfo) -> Edition:
        """The same with the header of a file, if that is the one it lacks."""
        lacks = self.model is None and self.plan.model == path
        return replace(self, model=model) if lacks and fits(model, self.plan) else self


class Editing:
    """The draft of one cluster; every change of it is one step of undo."""

    def __init__(self) -> None:
        self._history: History[Edition] | None = None

    # --- what is edited ------------------------------------------------------------

    @property
    def edition(self) -> Edition | None:
        """The draft as it is now."""
        return self._history.present if self._history else None

    @property
    def plan(self) -> Plan | None:
        """The plan as it would be launched."""
        return self.edition.plan if self.edition else None

    @property
    def split(self) -> Split | None:
        """Its split."""
        return self.plan.split if self.plan else None

    @property
    def model(self) -> ModelInfo | None:
        """The header of its model; None where there is none yet."""
        return self.edition.model if self.edition else None

    @property
    def marks(self) -> tuple[str, ...]:
        """Device ids in the order of their letters."""
        return self.edition.marks if self.edition else ()

    @property
    def can_undo(self) -> bool:
        return self._history is not None and self._history.can_undo

    @property
    def can_redo(self) -> bool:
        return self._history is not None and self._history.can_redo

    # --- other plans ---------------------------------------------------------------

    def put(self, plan: Plan, model: ModelInfo | None = None) -> None:
        """Work on another plan; the one before can be brought back.

        Without its header, one already read for the same file is taken. A plan that
        does the same as the draft takes its place without being a step.
        """
        if model is None or not fits(model, plan):
            model = self._header_of(plan)
        edition = Edition(plan, model, marks_for(self.marks, plan.split))
        if self._history is None:
            self._history = History(edition)
        elif same_plan(plan, self._history.present.plan):
            self._history = replace(self._history, present=edition)
        else:
            self._history = self._history.push(edition)

    def learn(self, path: str, model: ModelInfo) -> None:
        """A header was read: whatever waits for it has it from here on."""
        if self._history is not None:
            self._history = self._history.mapped(
                lambda edition: edition.with_header(path, model)
            )

    def _header_of(self, plan: Plan) -> ModelInfo | None:
        """The header read already for the same file; of another's layers it is none."""
        history = self._history
        if history is None:
            return None
        editions = (history.present, *reversed(history.past), *history.future)
        known = (
            edition.model for edition in editions if edition.plan.model == plan.model
        )
        return next((m for m in known if m is not None and fits(m, plan)), None)

    # --- layers and order ------------------------------------------------------------

    def edit(self, split: Split) -> bool:
        """Another split of the same plan; False where it is the same."""
        if self._history is None or split == self.split:
            return False
        edition = self._history.present.with_split(split)
        self._history = self._history.push(edition)
        return True

    def move(self, boundary: int, by: int) -> bool:
        """Move a boundary by some layers, as far as its neighbours let it."""
        at = self._position(boundary)
        return at is not None and self._place(boundary, at + by)

    def give(self, boundary: int, layers: int) -> bool:
        """Give the device left of a boundary so many layers, as far as there are."""
        at = self._position(boundary)
        if at is None or self.split is None:
            return False
        first = at - self.split.shares[boundary].layers
        return self._place(boundary, first + layers)

    def exchange(self, index: int, by: int) -> bool:
        """Exchange a device with a neighbour; False where that cannot be."""
        if self.plan is None:
            return False
        return self.edit(reorder(self.plan.split, index, by, head=self.plan.head))

    def drop(self, drag: Drag) -> bool:
        """A drag was let go; False where nothing moved, or what moved is gone."""
        return drag.start == self.split and self.edit(drag.split)

    def undo(self) -> bool:
        """Take the last change back; False where there is none."""
        return self._go(self._history and self._history.undo())

    def redo(self) -> bool:
        """Make the undone change again; False where there is none."""
        return self._go(self._history and self._history.redo())

    def _go(self, history: History[Edition] | None) -> bool:
        moved = history is not self._history
        self._history = history
        return moved

    def _position(self, boundary: int) -> int | None:
        positions = boundaries(self.split) if self.split else ()
        return positions[boundary] if 0 <= boundary < len(positions) else None

    def _place(self, boundary: int, position: int) -> bool:
        split = self.split
        return split is not None and self.edit(move_boundary(split, boundary, position))


def same_plan(one: Plan, other: Plan) -> bool:
    """True if two plans do the same.

    What they were made from, the port and the prompts kept may differ: all three are
    filled in on the way to what runs.
    """
    return one == msgspec.structs.replace(
        other,
        api_port=one.api_port,
        asked=one.asked,
        prompt_cache_mib=one.prompt_cache_mib,
    )


def fits(model: ModelInfo, plan: Plan) -> bool:
    """True if the header may belong to the plan's model: it has as many layers."""
    return model.n_layer == plan.split.n_layer


SENT_MAX = 8


class Goals:
    """The plan known to run, and the plans sent but not yet answered."""

    def __init__(self) -> None:
        self._seen: Plan | None = None
        self._sent: list[Plan] = []

    def send(self, plan: Plan) -> None:
        """Note a plan sent: to meet it in a snapshot is no news."""
        self._sent = [*self._sent[-SENT_MAX + 1 :], plan]

    def answered(self, plan: Plan) -> None:
        """Drop a sent plan that the controller accepted or refused."""
        if plan in self._sent:
            self._sent.remove(plan)

    def meet(self, plan: Plan) -> bool:
        """Take a plan from a snapshot; true if another console brought it about."""
        if self._seen is not None and same_plan(plan, self._seen):
            return False
        self._seen = plan
        return not any(same_plan(plan, sent) for sent in self._sent)
