"""The line under the split: what stands between what is shown and what runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from backends.split.layout import counts
from backends.units import format_bytes
from tui.model.edit import runs_now, same_plan
from tui.model.launch_settings import differences

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot, Plan
    from tui.model.edit import Edit

Tone = Literal["ok", "warn", "bad", "dim"]

NEAR_BYTES = 16 << 20
"""Memory as near as this to what the engine said is as it said."""


class Verdict(NamedTuple):
    """One sentence and how it is meant."""

    text: str
    tone: Tone


LAUNCHES = "{cluster.launch} launches"
UNDOES = "{split.undo} undoes"


def verdict(
    edit: Edit | None, plan: Plan | None, snapshot: ClusterSnapshot | None
) -> Verdict:
    """The line under the split that is shown now."""
    if edit is None or plan is None:
        return Verdict("No model yet: {cluster.model} picks one", "dim")
    if edit.misfits:
        return _misfit(edit)
    running = runs_now(snapshot)
    if running is None or snapshot is None:
        return Verdict(f"not running yet: {LAUNCHES}{_said(edit)}", "warn")
    if running.model != plan.model:
        return Verdict(f"another model runs now: {LAUNCHES} this one instead", "warn")
    if running.split != edit.split:
        now = " | ".join(map(str, counts(running.split)))
        return Verdict(f"changed: {LAUNCHES} it, {UNDOES} · runs now {now}", "warn")
    if not same_plan(running, plan):
        what = differences(plan, running) or "other machines"
        return Verdict(
            f"changed: {{cluster.launch}} relaunches, {UNDOES} · {what}", "warn"
        )
    return _measured(edit, snapshot)


def _said(edit: Edit) -> str:
    if edit.is_settled:
        return " · memory estimated by the engine"
    why = f" ({edit.note})" if edit.note else ""
    return f" · memory predicted{why}"


def _misfit(edit: Edit) -> Verdict:
    names = ", ".join(load.device for load in edit.loads if load.device in edit.misfits)
    holds = "hold" if len(edit.misfits) > 1 else "holds"
    return Verdict(f"does not fit: {names} {holds} over the memory limit", "bad")


def _measured(edit: Edit, snapshot: ClusterSnapshot) -> Verdict:
    """The report of llama-server's own log on the running split."""
    if snapshot.measured is None:
        return Verdict("launching: the split is checked after the load", "dim")
    if snapshot.measured.mismatches:
        return Verdict("✗ " + "; ".join(snapshot.measured.mismatches), "bad")
    if not edit.is_settled:
        return Verdict("✓ layers as planned · memory as measured", "ok")
    if off := _off_bytes(edit):
        by = format_bytes(off)
        text = f"✓ layers as planned · memory is {by} off the engine's estimate"
        return Verdict(text, "warn")
    return Verdict("✓ layers and memory as planned", "ok")


def _off_bytes(edit: Edit) -> int:
    pairs = zip(edit.settled, edit.loads, strict=True)
    gaps = (
        (abs(told.total_bytes - measured.total_bytes), measured.total_bytes)
        for told, measured in pairs
    )
    return max(
        (gap for gap, whole in gaps if gap > max(NEAR_BYTES, whole // 100)), default=0
    )
