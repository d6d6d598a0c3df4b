"""The part of the API that tells what memory a plan takes."""

from __future__ import annotations

import asyncio
import glob
from typing import TYPE_CHECKING

from backends.controller.responses import body, json_response
from backends.engine.fit_params import MemoryAsker, MemoryQuestion
from backends.errors import DllmError, ModelError
from backends.paths import relay_binary
from backends.places import LOCAL, at_peer
from backends.speculation.memory import with_own_weights
from backends.split.flags import compile_split
from backends.split.loads import plan_loads
from backends.state import Plan, PlanMemory, Value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aiohttp import web

    from backends.machines.readers import Readers
    from backends.paths import Paths
    from backends.state import DeviceMemory, ModelInfo


class MemoryRequest(Value, frozen=True, kw_only=True):
    """A plan that need not run."""

    plan: Plan


class MemoryApi:
    """Answers how much memory a plan would take, by asking the engine if possible.

    ``readers`` read the engine and the model. It keeps the answers below the cache
    folder.
    """

    def __init__(self, readers: Readers, paths: Paths) -> None:
        self._readers = readers
        self._headers = paths.cache_dir / "headers"
        self._asker = MemoryAsker(paths.cache_dir / "memory", relay_binary)

    async def memory(self, request: web.Request) -> web.Response:
        """``{"plan": …}`` to a ``PlanMemory``."""
        asked = await body(request, MemoryRequest)
        return json_response(await self.of(asked.plan))

    async def of(self, plan: Plan) -> PlanMemory:
        """The memory of a plan; predicted, with the reason, if no engine answers.

        Raises:
            DllmError: the model cannot be read, or the split makes no sense.
        """
        model = await self._readers.model(plan.model)
        try:
            files = await asyncio.to_thread(self.files, model)
            engine = await self._readers.engine(
                plan.engine if plan.head == LOCAL else None
            )
            devices = await self._asker.ask(
                engine.info, engine.info.rpc_protocol, question_of(plan, files)
            )
        except DllmError as error:
            return PlanMemory(devices=predicted(plan, model), note=str(error))
        return PlanMemory(devices=with_own_weights(devices, plan, model))

    def files(self, model: ModelInfo) -> list[str]:
        """Files of ours that have the model's header, the first part first.

        Raises:
            ModelError: there are none.
        """
        return files_here(model, self._headers)


def predicted(plan: Plan, model: ModelInfo) -> tuple[DeviceMemory, ...]:
    """By our own arithmetic: every device that holds something, the draft apart."""
    loads = plan_loads(model, plan)
    return tuple(load.memory for load in loads if load.total_bytes)


def question_of(plan: Plan, files: Sequence[str]) -> MemoryQuestion:
    """Return the question to the engine for a plan."""
    placement = compile_split(plan, {})
    return MemoryQuestion(
        files=tuple(files),
        head_cpu=f"{plan.head}/CPU",
        device_ids=placement.device_ids,
        tensor_split=placement.tensor_split,
        head_layers=plan.split.n_layer + 1 - placement.n_gpu_layers,
        ctx_size=plan.ctx_size,
        server=plan.server,
        extra_args=plan.extra_args,
    )


def files_here(model: ModelInfo, headers: Path) -> list[str]:
    """Files of ours that have the model's header, the first part first.

    A model on a peer was read through a sparse copy of its beginning, which is kept
    below ``headers`` by peer.

    Raises:
        ModelError: there is no such copy.
    """
    there = at_peer(model.path)
    if there is None:
        return list(model.files or (model.path,))
    peer, path = there
    name = path.rpartition("/")[2]
    copies = [c for c in (headers / peer).glob(f"*/{glob.escape(name)}") if c.is_file()]
    copies = [c for c in copies if c.stat().st_size == model.size_bytes]
    if len(model.files) > 1 or not copies:
        raise ModelError(
            f"Of {model.path} there is no copy of the header that the engine can read",
            "What is shown is predicted.",
        )
    return [str(max(copies, key=lambda c: c.stat().st_mtime))]
