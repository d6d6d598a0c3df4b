"""Limits of a request's numbers, and checks of any plan."""

from __future__ import annotations

from backends.errors import PlanError
from backends.planning.holes import check_holes
from backends.server_settings import (
    check_context,
    check_server,
    check_threads,
    checked_arguments,
    settings_apart,
)
from backends.split.experts import check_experts
from backends.split.layout import counts, devices, make_split
from backends.state import Ask, ModelInfo, Plan

WORKERS_MAX = 16
"""As many devices as llama.cpp takes."""


def check_numbers(asked: Ask, model: ModelInfo) -> None:
    check_worker_count(asked.workers)
    _check_port(asked.api_port)
    check_threads(asked.worker_threads)
    if asked.ctx_size is not None:
        check_context(asked.ctx_size, model)
    for count in (*(asked.counts or ()), *(asked.split or {}).values()):
        if count < 0:
            raise PlanError(
                f"The split has a negative share ({count})",
                "Use whole layers, 0 or more.",
            )
    if asked.counts is not None and asked.split is not None:
        raise PlanError(
            "The split is given twice, by order and by name", "Give one of them."
        )


def check_plan(plan: Plan, model: ModelInfo) -> None:
    _check_port(plan.api_port)
    check_worker_count(len(plan.workers))
    for worker in plan.workers:
        check_threads(worker.threads)
    check_context(plan.ctx_size, model)
    check_server(plan.server, plan.ctx_size, model)
    _check_arguments(plan)
    _check_split(plan, model)
    check_experts(plan, model)
    check_holes(plan, model)


def _check_arguments(plan: Plan) -> None:
    _, rest = settings_apart(plan.extra_args, plan.server)
    if len(rest) < len(plan.extra_args):
        raise PlanError(
            f"The further arguments {' '.join(plan.extra_args)} hold a setting that a "
            "plan has a place for",
            "Set it in the plan (server), or let the plan be proposed.",
        )
    checked_arguments(plan.extra_args, head=plan.head, directory="")


def _check_split(plan: Plan, model: ModelInfo) -> None:
    names = devices(plan.split)
    if plan.split.n_layer != model.n_layer:
        raise PlanError(
            f"The split is of {plan.split.n_layer} layers, and the model has "
            f"{model.n_layer}",
            "Plan it anew: the file may have changed.",
        )
    make_split(model.n_layer, names, counts(plan.split))
    known = plan.worker_of
    for name in names:
        if name not in known and not name.startswith(f"{plan.head}/"):
            raise PlanError(
                f"The plan has no device {name}",
                f"It has {', '.join((*sorted(known), f'{plan.head}/…'))}.",
            )


def check_worker_count(count: int | None) -> None:
    _within(count, 0, WORKERS_MAX, "workers", "cannot be started")


def _check_port(port: int | None) -> None:
    _within(port, 1, 65535, "as port", "is none")


def _within(value: int | None, low: int, high: int, what: str, why: str) -> None:
    if value is not None and not low <= value <= high:
        raise PlanError(f"{value} {what} {why}", f"Give {low} to {high}.")
