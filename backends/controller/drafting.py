"""The draft of a plan: settled or refused before a start, and its predicted gain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from backends.controller.calibration_store import ground_of
from backends.controller.context import ClusterContext
from backends.controller.launch_facts import OTHER_DRAFT, blaming_draft
from backends.controller.memory_usage import PlannedMemory, machines_now
from backends.errors import DllmError, PlanError
from backends.machines.local_inventory import LocalInventory
from backends.machines.machine import Machines
from backends.planning.memory_fit import require_room
from backends.planning.proposal import plan_devices
from backends.speculation.drafts import (
    best_first,
    drafts_for,
    head_method,
    head_misfit,
    own_layers_misfit,
    read_vocabulary,
    vocabulary_misfit,
)
from backends.speculation.gain import DraftedRun, DraftGain, draft_use
from backends.speculation.memory import best_place, one_of, own_layers, whole_on
from backends.speculation.methods import check_draft, method_for
from backends.split.cost import with_labs, workload
from backends.state import (
    AUTO_DRAFT,
    MTP_DRAFT,
    NGRAM_DRAFT,
    NO_DRAFT,
    ClusterSpeeds,
    Device,
    Drafts,
    DraftTrial,
    ModelFile,
    ModelInfo,
    Objective,
    Peer,
    Plan,
    Speculation,
)

log = logging.getLogger(__name__)


async def draft_models(plan: Plan, inventory: LocalInventory) -> dict[str, ModelInfo]:
    """The draft models of a plan that can be read, by their files."""
    methods = plan.speculation.methods if plan.speculation else ()
    found = {}
    for path in {method.model for method in methods if method.model}:
        with contextlib.suppress(DllmError):
            found[path] = await inventory.model(path)
    return found


def gains(
    model: ModelInfo,
    plan: Plan,
    speeds: ClusterSpeeds,
    models: Mapping[str, ModelInfo],
    trials: Sequence[DraftTrial],
    objective: Objective | None = None,
) -> dict[str, DraftGain]:
    """By draft; one whose model cannot be read is left out."""
    load = workload(plan, objective)
    return {
        method.draft: DraftedRun(
            model=model,
            plan=plan,
            speeds=speeds,
            load=load,
            method=method,
            use=draft_use(method, plan.server.draft_max, trials),
            draft_model=models.get(method.model),
        ).gain()
        for method in (plan.speculation.methods if plan.speculation else ())
        if not method.model or method.model in models
    }


async def gains_now(context: ClusterContext, plan: Plan) -> dict[str, DraftGain]:
    """The same for a plan that is brought up; none if anything is not known."""
    try:
        model = await context.inventory.model(plan.model)
        models = await draft_models(plan, context.inventory)
        engine = (await context.inventory.engine()).info
        machines = await machines_now(context.machines, context.inventory)
        ground = ground_of(plan, model, machines, engine)
        links, asked = context.store.snapshot.links, context.links.lab_of
        speeds = await asyncio.to_thread(context.calibrations.speeds, ground, links)
        seen = {link.worker: link.lab for link in links}
        speeds = with_labs(speeds, lambda name: seen.get(name, asked(name)))
        trials = context.trials.found_for(model)
        return gains(model, plan, speeds, models, trials)
    except Exception:
        # No prediction is worth stopping a launch.
        log.exception("no draft's gain is predicted")
        return {}


@dataclass(frozen=True, eq=False)
class Drafting:
    _inventory: LocalInventory
    _machines: Machines
    _memory: PlannedMemory
    _models: Callable[[], Awaitable[Sequence[ModelFile]]]

    async def settled(
        self, plan: Plan, peers: Sequence[Peer], engine_of: str = ""
    ) -> Plan:
        """The plan with its speculation; ``peers`` as they are, ours first.

        The engine is that of the head, or of ``engine_of`` if the head is not there.
        """
        if plan.server.draft == NO_DRAFT:
            return replace(plan, speculation=None)
        if plan.server.draft == AUTO_DRAFT:
            method = await self._to_choose_from(plan, peers, engine_of)
        else:
            method = await self._method(plan, plan.server.draft, peers, engine_of)
        plan = replace(plan, speculation=method)
        check_draft(plan)
        return plan

    async def require(self, plan: Plan, peers: Sequence[Peer]) -> Plan:
        """A plan sent whole, with its draft as settled before, if that still holds."""
        anew = await self.settled(plan, peers)
        before, now = plan.speculation, anew.speculation
        if before is None or now is None or not now.model or before.model != now.model:
            return anew
        # The memory of then decided the place; the rest is as it is now.
        kept = replace(before, type=now.type, n_layer=now.n_layer, instead=now.instead)
        plan = replace(plan, speculation=kept)
        check_draft(plan)
        return plan

    async def candidates(self, path: str, found: Iterable[ModelFile]) -> Drafts:
        model = await self._inventory.model(path)
        flags = (await self._inventory.engine()).flags
        return await asyncio.to_thread(
            drafts_for, model, self._header(model), flags, tuple(found)
        )

    def _header(self, model: ModelInfo) -> Path:
        return Path(self._memory.files(model)[0])

    async def _to_choose_from(
        self, plan: Plan, peers: Sequence[Peer], engine_of: str
    ) -> Speculation | None:
        """The methods that ``auto`` compares, a draft model first."""
        model = await self._inventory.model(plan.model)
        devices = _devices(plan, peers)
        protocol = await self._inventory.rpc_protocol(plan)
        listed = await self.candidates(plan.model, await self._models())
        methods: list[Speculation] = []
        for draft in (*best_first(listed), MTP_DRAFT, NGRAM_DRAFT):
            if methods and draft not in (MTP_DRAFT, NGRAM_DRAFT):
                continue
            with contextlib.suppress(DllmError):
                method = await self._method(plan, draft, peers, engine_of)
                together = one_of((*methods, method))
                both = replace(plan, speculation=together)
                require_room(both, model, devices, protocol=protocol)
                methods.append(method)
        return one_of(methods) if methods else None

    async def _method(
        self, plan: Plan, draft: str, peers: Sequence[Peer], engine_of: str
    ) -> Speculation:
        where = engine_of or plan.head
        await self._machines.reached([where])
        head = self._machines.get(where)
        engine = await head.engine(plan.engine)
        flags, protocol = engine.flags, engine.info.rpc_protocol
        if draft == NGRAM_DRAFT:
            return Speculation(type=method_for(flags, draft))
        model = await self._inventory.model(plan.model)
        if draft == MTP_DRAFT:
            if why := own_layers_misfit(model):
                raise PlanError(why, OTHER_DRAFT)
            method = method_for(flags, MTP_DRAFT)
            return own_layers(plan, model, method, protocol)
        with blaming_draft():
            info = await self._inventory.model(draft)
        method = method_for(flags, draft, head_method(info.arch))
        await asyncio.to_thread(self._require_fit, model, info)
        with blaming_draft():
            await head.model_path(info)
        device = best_place(info, plan, model, _devices(plan, peers), protocol)
        memory = await self._memory.of(whole_on(info, device, plan))
        return Speculation(
            type=method,
            model=draft,
            device=device,
            n_layer=info.n_layer,
            memory=memory.devices,
        )

    def _require_fit(self, model: ModelInfo, draft: ModelInfo) -> None:
        """See that a draft model is whole, and made for this model.

        With another vocabulary llama-server serves without a draft, and only logs it.
        With the head of another model it ends in the middle of the load.
        """
        if draft.sparse is not None:
            why = f"{Path(draft.path).name} is not whole: it is sparse"
            raise PlanError(why, OTHER_DRAFT)
        ours, theirs = self._header(model), self._header(draft)
        if head_method(draft.arch):
            why = head_misfit(replace(draft, path=str(theirs)), model)
        else:
            why = vocabulary_misfit(read_vocabulary(ours), read_vocabulary(theirs))
        if why:
            what = f"{theirs.name} cannot draft for {ours.name}: {why}"
            raise PlanError(what, OTHER_DRAFT)


def _devices(plan: Plan, peers: Sequence[Peer]) -> tuple[Device, ...]:
    by_name = {peer.name: peer for peer in peers}
    excluded = plan.asked.exclude if plan.asked else ()
    found = plan_devices(plan.head, plan.workers, by_name)
    return tuple(device for device in found if device.id not in excluded)
