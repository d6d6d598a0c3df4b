"""``dllm-tui plans``: plans kept as files, and the last launches."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import click
import msgspec

from backends.client.client import ControllerClient
from backends.errors import PlanError, UsageError
from backends.machine_names import at_peer
from backends.paths import user_paths
from backends.plan_files import (
    KeptPlan,
    PlanFile,
    find_plan,
    kept_plans,
    plan_changes,
    save_plan,
)
from backends.split.layout import shares_text
from tui.cli.command import Group, Name, cluster_option, options
from tui.cli.model_argument import resolve
from tui.cli.output import Column, Table, say
from tui.cli.up import serve
from tui.model.names import model_name
from tui.model.peer_words import age_text

EXAMPLES = """
dllm-tui plans list
dllm-tui plans launches              the last twenty launches
dllm-tui plans save evening          the plan that runs, or ran last
dllm-tui plans save evening --from 20261126-114700-1
dllm-tui plans show evening > evening.toml
dllm-tui plans diff evening ./theirs.toml
dllm-tui plans launch evening --detach
dllm-tui plans delete evening
"""


KEPT = Table(
    columns=[
        Column("NAME", lambda kept: kept.name),
        Column("AGE", lambda kept: age_text(time.time() - kept.at)),
        Column("MODEL", lambda kept: model_name(kept.plan.model)),
        Column("CONTEXT", lambda kept: str(kept.plan.context), right=True),
        Column("LAYERS", lambda kept: shares_text(kept.plan.split)),
    ],
    name=lambda kept: kept.name,
    none=lambda _: "No plans.",
)


def _kept_json(found: list[KeptPlan]) -> list[dict[str, Any]]:
    return [
        {"name": kept.name, "file": str(kept.path), "at": kept.at, "plan": kept.plan}
        for kept in found
    ]


@click.group(
    cls=Group,
    default="list",
    examples=EXAMPLES,
    notes="A plan is a small TOML file with the model, the layers of each device and "
    "unusual settings. PLAN is its name, that of a launch, or the path of a file.toml. "
    "dllm-tui config paths shows where they are.",
)
def plans() -> None:
    """Save, list, compare and launch plans."""


def _found(named: str) -> KeptPlan:
    paths = user_paths()
    return find_plan(named, paths.plans_dir, paths.launches_dir)


@plans.command("list", shows=KEPT, as_json=_kept_json, watches=True)
def list_plans() -> list[KeptPlan]:
    """List the saved plans, the newest first."""
    return list(kept_plans(user_paths().plans_dir))


@plans.command("launches", shows=KEPT, as_json=_kept_json, watches=True)
def list_launches() -> list[KeptPlan]:
    """List the last twenty launches, the newest first."""
    return list(kept_plans(user_paths().launches_dir))


plan_argument = click.argument("plan", type=Name("plans"))


@plans.command("show", shows=lambda plan: [plan.text().rstrip()], watches=True)
@plan_argument
def show_plan(plan: str) -> PlanFile:
    """Print a plan as TOML."""
    return _found(plan).plan


@plans.command("save")
@click.argument("name")
@options(
    ("--from source", Name("plans", "PLAN"), "Save this plan instead."),
    ("--force", bool, "Replace a plan of that name."),
)
@cluster_option
async def save(
    client: ControllerClient, name: str, source: str | None, force: bool
) -> dict[str, str]:
    """Save a plan as NAME: the one that runs, or was launched last."""
    plan = _found(source).plan if source else await _present(client)
    try:
        path = save_plan(user_paths().plans_dir, name, plan, replaces=force)
    except FileExistsError:
        raise UsageError(
            f"There is a plan {name}", "Give another name, or --force."
        ) from None
    say(f"Wrote {path}")
    return {"file": str(path)}


async def _present(client: ControllerClient) -> PlanFile:
    running = (await client.snapshot()).plan if await client.running() else None
    if running is not None:
        return PlanFile.of(running)
    for kept in kept_plans(user_paths().launches_dir):
        return kept.plan
    raise PlanError(
        "No plan runs, and none was launched", "Launch one, or give --from."
    )


def _diff_lines(changes: list[tuple[str, str, str]]) -> Iterator[str]:
    if not changes:
        yield "No difference."
    width = max((len(name) for name, _, _ in changes), default=0)
    for name, old, new in changes:
        yield f"{name:<{width}}  {old} → {new}"


@plans.command("diff", shows=_diff_lines, watches=True)
@plan_argument
@click.argument("other", type=Name("plans"))
def diff_plans(plan: str, other: str) -> list[tuple[str, str, str]]:
    """Show what differs between two plans."""
    return plan_changes(_found(plan).plan, _found(other).plan)


@plans.command("launch", quiet=True)
@plan_argument
@options(
    ("--detach", bool, "Return once it is serving, and leave it running."),
    ("--replace", bool, "Replace the running plan; clients wait."),
)
@cluster_option
async def launch_plan(
    client: ControllerClient, plan: str, detach: bool, replace: bool, as_json: bool
) -> None:
    """Launch a plan, as dllm-tui up does.

    Without --detach it stays in the foreground; Ctrl-C stops the cluster.
    """
    ask = (await _with_model(_found(plan).plan)).ask()
    await serve(client, ask, detach=detach, replace=replace, as_json=as_json)


async def _with_model(plan: PlanFile) -> PlanFile:
    """The plan with its model here: the file has the name that it has elsewhere."""
    is_here = await asyncio.to_thread(os.path.exists, plan.model)
    if at_peer(plan.model) or is_here:
        return plan
    found = await resolve(PurePath(plan.model).name)
    say(f"{plan.model} is not here: {found} has its name")
    return msgspec.structs.replace(plan, model=str(found.absolute()))


@plans.command("delete")
@plan_argument
def delete_plan(plan: str) -> dict[str, str]:
    """Delete a saved plan."""
    path = find_plan(plan, user_paths().plans_dir).path
    if path.parent != user_paths().plans_dir:
        raise UsageError(f"{path} is no saved plan", "Delete the file yourself.")
    path.unlink(missing_ok=True)
    say(f"Deleted {path}")
    return {"deleted": str(path)}
