"""Why there is nothing to see of the links of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.split.flags import used_workers
from backends.state import ClusterState

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot


def why_no_link(snapshot: ClusterSnapshot) -> str:
    """One sentence without its full stop; empty where there are links."""
    plan, state = snapshot.plan, snapshot.state
    if plan is None or state in (ClusterState.IDLE, ClusterState.FAILED):
        # What is left of links in it is how they were at last.
        return "There is no link: nothing runs"
    if snapshot.links:
        return ""
    if not used_workers(plan):
        return f"There is no link: {plan.head}, the head, runs alone, without workers"
    if not plan.relay:
        return "The links are not measured: the plan was launched with --relay off"
    return f"The links are not there yet: the cluster is {state.value}"
