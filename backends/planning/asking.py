"""The numbers of a request for a plan: which of them can be meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.errors import PlanError
from backends.server_settings import check_context, check_threads

if TYPE_CHECKING:
    from backends.state import Ask, ModelInfo

WORKERS_MAX = 16
"""As many devices as llama.cpp takes."""


def check_numbers(asked: Ask, model: ModelInfo) -> None:
    """Refuse numbers that cannot be meant.

    Raises:
        PlanError: one is negative, zero where it may not be, or beyond what makes
            sense; it names the number and what is allowed.
    """
    check_worker_count(asked.workers)
    check_port(asked.api_port)
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


def check_worker_count(count: int | None) -> None:
    """Refuse more workers than llama.cpp takes devices.

    Raises:
        PlanError: it says what is allowed.
    """
    _within(count, 0, WORKERS_MAX, "workers", "cannot be started")


def check_port(port: int | None) -> None:
    """Refuse a port that is none.

    Raises:
        PlanError: it says what is allowed.
    """
    _within(port, 1, 65535, "as port", "is none")


def _within(value: int | None, low: int, high: int, what: str, why: str) -> None:
    if value is not None and not low <= value <= high:
        raise PlanError(f"{value} {what} {why}", f"Give {low} to {high}.")
