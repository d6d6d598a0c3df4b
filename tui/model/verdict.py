"""The line under the split: what stands between what is shown and what runs."""

from __future__ import annotations

from typing import Literal, NamedTuple

from backends.split.layout import counts
from backends.state import ClusterSnapshot, Plan
from backends.units import format_bytes
from tui.model.edit import Edit, runs_now, same_plan
from tui.model.launch_settings import differences

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
        devices = [load.device for load in edit.loads if load.device in edit.misfits]
        holds = "hold" if len(devices) > 1 else "holds"
        text = f"does not fit: {', '.join(devices)} {holds} over the memory limit"
        return Verdict(text, "bad")
    running = runs_now(snapshot)
    if running is None or snapshot is None:
        why = f"predicted ({edit.note})" if edit.note else "predicted"
        memory = "estimated by the engine" if edit.is_settled else why
        return Verdict(f"not running yet: {LAUNCHES} · memory {memory}", "warn")
    if running.model != plan.model:
        return Verdict(f"another model runs now: {LAUNCHES} this one instead", "warn")
    if running.split != edit.split:
        now = " | ".join(map(str, counts(running.split)))
        return Verdict(f"changed: {LAUNCHES} it, {UNDOES} · runs now {now}", "warn")
    if not same_plan(running, plan):
        what = differences(plan, running) or "other machines"
        relaunch = f"changed: {{cluster.launch}} relaunches, {UNDOES} · {what}"
        return Verdict(relaunch, "warn")
    return _measured(edit, snapshot)


def _measured(edit: Edit, snapshot: ClusterSnapshot) -> Verdict:
    """The report of llama-server's own log on the running split."""
    if snapshot.measured is None:
        return Verdict("launching: the split is checked after the load", "dim")
    if snapshot.measured.mismatches:
        return Verdict("✗ " + "; ".join(snapshot.measured.mismatches), "bad")
    if not edit.is_settled:
        return Verdict("✓ layers as planned · memory as measured", "ok")
    gaps = [
        gap
        for told, measured in zip(edit.settled, edit.loads, strict=True)
        if (gap := abs(told.total_bytes - measured.total_bytes))
        > max(NEAR_BYTES, measured.total_bytes // 100)
    ]
    if gaps:
        off = f"memory is {format_bytes(max(gaps))} off the engine's estimate"
        return Verdict(f"✓ layers as planned · {off}", "warn")
    return Verdict("✓ layers and memory as planned", "ok")
