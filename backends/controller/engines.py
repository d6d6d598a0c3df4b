"""Find the engines and the draft file of a plan, for a launch or a preview."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from backends.engine.versions import require_same_protocol
from backends.errors import ModelError, about_worker
from backends.places import LOCAL
from backends.planning.blueprint import own_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from backends.engine.ask import Engine
    from backends.machines.machine import Machines
    from backends.machines.readers import Readers
    from backends.state import Plan

OTHER_DRAFT = "Take another draft (dllm-tui models drafts), or none (--draft none)."


async def engines_of(plan: Plan, machines: Machines) -> dict[str, Engine]:
    """The engine of every machine that takes part, the head's first, by machine.

    Raises:
        EngineError: one has none, or one that speaks another protocol than the head's.
    """
    first = await machines.get(plan.head).engine(plan.engine)
    protocol = first.info.rpc_protocol
    engines = {plan.head: first}
    for worker in own_workers(plan):
        if worker.peer in engines:
            continue
        wanted = plan.engine if worker.peer == LOCAL else None
        with about_worker(worker.name):
            there = await machines.get(worker.peer).engine(wanted, protocol)
            require_same_protocol(protocol, there.info.rpc_protocol, worker.peer)
        engines[worker.peer] = there
    return engines


async def draft_path(plan: Plan, machines: Machines, readers: Readers) -> str:
    """Return the path of the draft model on the head; empty without a draft."""
    if plan.speculation is None or not plan.speculation.model:
        return ""
    with blaming_draft():
        draft = await readers.model(plan.speculation.model)
        return await machines.get(plan.head).model_path(draft)


@contextmanager
def blaming_draft() -> Iterator[None]:
    """Have what is wrong with a model's file told of the draft.

    Raises:
        ModelError: the same, with a way out.
    """
    try:
        yield
    except ModelError as error:
        raise ModelError(
            f"The draft model cannot be used: {error.what}", OTHER_DRAFT
        ) from error
