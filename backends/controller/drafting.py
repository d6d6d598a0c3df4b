"""What a draft comes to: found out, and refused, before anything is started."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from backends.controller.engines import OTHER_DRAFT, blaming_draft
from backends.engine.drafting import way_to_guess, ways_known
from backends.errors import DllmError, EngineError, PlanError
from backends.models.drafts import (
    Judge,
    best_first,
    head_misfit,
    head_way,
    own_layers_misfit,
)
from backends.models.vocabulary import read_vocabulary, why_not
from backends.planning.drafting import best_place, check_draft, whole_on
from backends.planning.proposal import plan_devices
from backends.planning.room import require_room
from backends.split.speculation import guessing_with, own_layers
from backends.state import (
    AUTO_DRAFT,
    MTP_DRAFT,
    NGRAM_DRAFT,
    NO_DRAFT,
    Drafts,
    Speculation,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from backends.controller.memory_api import MemoryApi
    from backends.machines.machine import Machines
    from backends.machines.readers import Readers
    from backends.state import Device, DraftFound, ModelFile, ModelInfo, Peer, Plan


class Drafting:
    """Settles the drafts of plans."""

    def __init__(
        self,
        readers: Readers,
        machines: Machines,
        memory: MemoryApi,
        models: Callable[[], Awaitable[Sequence[ModelFile]]],
    ) -> None:
        """``memory`` tells what a model takes, ``models`` which there are."""
        self._models = models
        self._readers = readers
        self._machines = machines
        self._memory = memory

    async def settled(self, plan: Plan, peers: Sequence[Peer]) -> Plan:
        """The plan with what its draft comes to; ``peers`` as they are, ours first.

        Raises:
            DllmError: the draft cannot guess for this model, or not on this head.
        """
        if plan.server.draft == NO_DRAFT:
            return replace(plan, speculation=None)
        if plan.server.draft == AUTO_DRAFT:
            guess = await self._to_choose_from(plan, peers)
        else:
            guess = await self._found(plan, plan.server.draft, peers)
        plan = replace(plan, speculation=guess)
        check_draft(plan)
        return plan

    async def require(self, plan: Plan, peers: Sequence[Peer]) -> Plan:
        """A plan sent whole: its draft as it was settled, if that still holds.

        Raises:
            DllmError: it does not.
        """
        anew = await self.settled(plan, peers)
        if plan.speculation is None or anew.speculation is None:
            return anew
        if (
            not anew.speculation.model
            or plan.speculation.model != anew.speculation.model
        ):
            # No model, or what ``auto`` would choose from now is another one.
            return anew
        # Where it goes was settled by the memory of then; the rest is as it is now.
        kept = replace(
            plan.speculation,
            type=anew.speculation.type,
            n_layer=anew.speculation.n_layer,
            instead=anew.speculation.instead,
        )
        plan = replace(plan, speculation=kept)
        check_draft(plan)
        return plan

    async def _to_choose_from(
        self, plan: Plan, peers: Sequence[Peer]
    ) -> Speculation | None:
        """What ``auto`` may choose from, a draft model first; None without any."""
        model = await self._readers.model(plan.model)
        devices = _devices(plan, peers)
        listed = await self.candidates(plan.model, await self._models())
        guesses: list[Speculation] = []
        for draft in (*best_first(listed), MTP_DRAFT, NGRAM_DRAFT):
            if guesses and draft not in (MTP_DRAFT, NGRAM_DRAFT):
                continue
            with contextlib.suppress(DllmError):
                guess = await self._found(plan, draft, peers)
                together = guessing_with((*guesses, guess))
                require_room(replace(plan, speculation=together), model, devices)
                guesses.append(guess)
        return guessing_with(guesses) if guesses else None

    async def _found(
        self, plan: Plan, draft: str, peers: Sequence[Peer]
    ) -> Speculation:
        await self._machines.reached([plan.head])
        head = self._machines.get(plan.head)
        engine = await head.engine(plan.engine)
        if draft == NGRAM_DRAFT:
            return Speculation(type=way_to_guess(engine.flags, draft))
        model = await self._readers.model(plan.model)
        if draft == MTP_DRAFT:
            return self._with_own_layers(plan, model, engine.flags)
        with blaming_draft():
            info = await self._readers.model(draft)
        head_for = head_way(info.arch)
        way = way_to_guess(engine.flags, draft, head_for)
        if info.thin is not None:
            raise PlanError(f"{Path(draft).name} is not whole: it is thin", OTHER_DRAFT)
        fits = self._require_its_head if head_for else self._require_same_words
        await asyncio.to_thread(fits, model, info)
        with blaming_draft():
            await head.model_path(info)
        device = best_place(info, plan, model, _devices(plan, peers))
        memory = await self._memory.of(whole_on(info, device, plan))
        return Speculation(
            type=way,
            model=draft,
            device=device,
            n_layer=info.n_layer,
            memory=memory.devices,
        )

    async def candidates(self, path: str, found: Iterable[ModelFile]) -> Drafts:
        """What of these could guess ahead for a model.

        Raises:
            DllmError: the model cannot be read, or there is no engine.
        """
        model = await self._readers.model(path)
        flags = (await self._readers.engine()).flags
        judge = await asyncio.to_thread(
            Judge, model, self._memory.files(model)[0], ways_known(flags)
        )
        judged = [
            await asyncio.to_thread(judge.candidate, file)
            for file in found
            if file.path not in (model.path, *model.files) and not file.problem
        ]
        heads, why_not_own = _own_ways(model, flags)
        return Drafts(
            model=model.path,
            size_bytes=model.size_bytes,
            heads=heads,
            head_why_not=why_not_own,
            candidates=tuple(
                sorted(judged, key=lambda one: (bool(one.why_not), one.size_bytes))
            ),
        )

    def _with_own_layers(
        self, plan: Plan, model: ModelInfo, flags: Collection[str]
    ) -> Speculation:
        """Layers of the model itself.

        Raises:
            PlanError: it has none, or none that llama.cpp runs.
            EngineError: the engine guesses with none.
        """
        if why := own_layers_misfit(model):
            raise PlanError(why, OTHER_DRAFT)
        return own_layers(plan, model, way_to_guess(flags, MTP_DRAFT))

    def _require_its_head(self, model: ModelInfo, head: ModelInfo) -> None:
        """llama-server would end in the middle of the load.

        Raises:
            PlanError: it says what differs.
            ModelError: it cannot be read.
        """
        ours = replace(head, path=self._memory.files(head)[0])
        if why := head_misfit(ours, model):
            name = Path(head.path).name
            raise PlanError(f"{name} cannot guess for this model: {why}", OTHER_DRAFT)

    def _require_same_words(self, model: ModelInfo, draft: ModelInfo) -> None:
        """llama-server would only log that they differ, and serve without draft.

        Raises:
            PlanError: it says what differs.
            ModelError: one of them cannot be read.
        """
        files = [Path(self._memory.files(one)[0]) for one in (model, draft)]
        if why := why_not(*map(read_vocabulary, files)):
            raise PlanError(
                f"{files[1].name} cannot guess for {files[0].name}: {why}", OTHER_DRAFT
            )


def with_found(drafts: Drafts, found: Sequence[DraftFound]) -> Drafts:
    """The ways to guess with what was found of each."""

    def of(draft: str) -> tuple[DraftFound, ...]:
        return tuple(one for one in found if one.draft == draft)

    candidates = (replace(one, found=of(one.path)) for one in drafts.candidates)
    return replace(
        drafts,
        head_found=of(MTP_DRAFT),
        candidates=tuple(candidates),
        ngram=of(NGRAM_DRAFT),
    )


def _own_ways(model: ModelInfo, flags: Collection[str]) -> tuple[tuple[str, ...], str]:
    """The ways that layers of the model itself can guess in, or why there are none."""
    if not model.n_layer_nextn:
        return (), ""
    if why := own_layers_misfit(model):
        return (), why
    try:
        return (way_to_guess(flags, MTP_DRAFT),), ""
    except EngineError as error:
        return (), error.what


def _devices(plan: Plan, peers: Sequence[Peer]) -> tuple[Device, ...]:
    """Those of the plan and of the head, but for those that are to take no part."""
    by_name = {peer.name: peer for peer in peers}
    excluded = plan.asked.exclude if plan.asked else ()
    found = plan_devices(plan.head, plan.workers, by_name)
    return tuple(device for device in found if device.id not in excluded)
