"""Which of the plans that snapshots tell of are news to this console."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui.work.editing import same_plan

if TYPE_CHECKING:
    from backends.state import Plan

SENT_MAX = 8


class Goals:
    """What is known to run, and what was sent off and is not answered yet."""

    def __init__(self) -> None:
        self._seen: Plan | None = None
        self._sent: list[Plan] = []

    def send(self, plan: Plan) -> None:
        """This plan is sent off: meeting it in a snapshot is no news."""
        self._sent = [*self._sent[-SENT_MAX + 1 :], plan]

    def answered(self, plan: Plan) -> None:
        """The plan sent off was met in the answer, or refused."""
        if plan in self._sent:
            self._sent.remove(plan)

    def meet(self, plan: Plan) -> bool:
        """A snapshot has this plan; whether somebody else brought that about."""
        if self._seen is not None and same_plan(plan, self._seen):
            return False
        self._seen = plan
        return not any(same_plan(plan, sent) for sent in self._sent)
