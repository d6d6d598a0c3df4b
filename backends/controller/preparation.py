"""Prepare a launch: its plan, the checks of it and its facts, each found once.

A preparation is kept for a minute under a token. A launch with the token only looks at
ports and free memory again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace

import msgspec

from backends.config import Config
from backends.controller.best_plans import (
    BestPlan,
    Option,
    best_plan,
    best_plans,
    heads_of,
    in_layers,
    longest_fit,
    require_kept,
    require_open,
    told_of,
)
from backends.controller.bottleneck import explain, with_draft_of
from backends.controller.calibration_store import ground_of
from backends.controller.cluster import Cluster
from backends.controller.clusters import Clusters
from backends.controller.drafting import Drafting, draft_models
from backends.controller.launch_facts import check_whole, site_of
from backends.controller.memory_usage import (
    held_by,
    machines_now,
    memory_of,
    with_memory,
)
from backends.controller.steps import Steps
from backends.errors import ControllerError, DllmError, PlanError, did_you_mean
from backends.gateway.listen_settings import api_settings
from backends.machine_names import LOCAL
from backends.machines.local_inventory import LocalInventory
from backends.machines.machine import Machines
from backends.machines.peers import REACH_TIMEOUT_S
from backends.planning.blueprint import Facts, commands, gateway_command, machines_of
from backends.planning.checking import check_plan, remarks
from backends.planning.cluster_file import (
    machines_of_file,
    pins_of_file,
    speeds_of_file,
)
from backends.planning.memory_fit import require_room, room_for, with_prompt_cache
from backends.planning.proposal import plan_devices, propose
from backends.speculation.memory import with_draft
from backends.split.cost import forecast, with_labs, workload
from backends.split.device_memory import plan_loads, pool_rooms
from backends.split.layout import ranges
from backends.state import (
    DEFAULT_CLUSTER,
    NGRAM_DRAFT,
    NO_DRAFT,
    Alternative,
    Ask,
    Bottleneck,
    ClusterSpeeds,
    Device,
    DeviceMemory,
    Fit,
    Forecast,
    GivenCluster,
    Lab,
    ModelFile,
    ModelInfo,
    Objective,
    Peer,
    PeerState,
    Plan,
    PlanMemory,
    Preview,
)

LASTS_S = 60.0
PROBE_POLL_S = 0.05
PROBING_S = 5.0
"""A machine that nobody named, and that is not reached by then, is not waited for."""
WEIGHT_AGE_S = 2.0
DRAFTS_MAX = 2
"""Measured drafts that a plan without one is compared with, beside ``ngram``."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """All machines at one moment, ours first."""

    machines: Sequence[Peer]
    """As they told."""
    peers: Sequence[Peer]
    """With what is free there for the plan of one cluster."""
    rpc_protocol: str
    """Of the head's engine: that which the plan names, if one is known."""

    def require_room(
        self, plan: Plan, model: ModelInfo, told: Sequence[DeviceMemory] = ()
    ) -> None:
        require_room(plan, model, self.devices(plan), told, protocol=self.rpc_protocol)

    def devices(self, plan: Plan) -> tuple[Device, ...]:
        by_name = {peer.name: peer for peer in self.peers}
        return plan_devices(plan.head, plan.workers, by_name)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A plan that a launch can follow, and all that was found out for it."""

    plan: Plan
    model: ModelInfo
    survey: Survey
    facts: Facts
    probed: dict[str, float]
    """When each peer of the plan was probed last."""
    until: float = 0.0
    """The end of its token, set when that is given."""


class Preparations:
    """Prepares launches of all clusters; ``models`` gives the models found here."""

    def __init__(
        self,
        clusters: Clusters,
        machines: Machines,
        inventory: LocalInventory,
        models: Callable[[], Awaitable[Sequence[ModelFile]]],
    ) -> None:
        self._clusters = clusters
        self._machines = machines
        self._inventory = inventory
        self.drafting = Drafting(inventory, machines, clusters.memory, models)
        self._models = models
        self._kept: dict[tuple[str, str], Prepared] = {}
        self._searches: dict[str, asyncio.Task[tuple[Alternative, ...]]] = {}
        """The last search of each cluster."""

    async def propose(self, cluster: Cluster, ask: Ask) -> Plan:
        """A plan for a model, as an edit: no machine is asked if it can run it."""
        return (await self._proposed(ask, await self._survey(cluster), cluster)).plan

    async def prepare(
        self, cluster: Cluster, asked: Ask | Plan, *, explain: bool = False
    ) -> Preview:
        """The effects of a launch, with the token for it; starts nothing."""
        if isinstance(asked, Ask):
            await self._peers_settled(asked)
        survey = await self._survey(cluster, asked)
        if isinstance(asked, Ask):
            best = await self._proposed(asked, survey, cluster)
        else:
            best = BestPlan(await self.drafting.require(asked, survey.peers))
        await self._machines.reached(machines_of(best.plan))
        prepared = await self._prepared(cluster, best.plan, survey)
        if explain and not best.heads:
            elsewhere = await self._elsewhere(best.plan, survey, cluster)
            aim = best.plan.asked.objective if best.plan.asked else None
            best = best._replace(heads=await heads_of(elsewhere, aim))
        preview = await self._preview(cluster, prepared, best, explain=explain)
        now, token = time.monotonic(), secrets.token_hex(8)
        self._kept = {key: one for key, one in self._kept.items() if one.until > now}
        self._kept[cluster.name, token] = replace(prepared, until=now + LASTS_S)
        return msgspec.structs.replace(preview, token=token)

    async def _peers_settled(self, asked: Ask) -> None:
        """Wait for machines that are being reached, each from when that began.

        Those that are named get as long as it takes; others a moment.
        """
        patience_s = dict.fromkeys((*(asked.peers or ()), asked.head), REACH_TIMEOUT_S)
        others_s = PROBING_S if asked.peers is None and asked.workers is None else 0.0
        for _ in range(round(REACH_TIMEOUT_S / PROBE_POLL_S)):
            now = time.time()
            if not any(
                peer.state is PeerState.PROBING
                and 0 <= now - (peer.since or 0.0) < patience_s.get(peer.name, others_s)
                for peer in self._machines.values()
            ):
                return
            await asyncio.sleep(PROBE_POLL_S)

    async def rooms(self, cluster: Cluster) -> int:
        survey = await self._survey(cluster)
        devices = [device for peer in survey.peers for device in peer.devices]
        return sum(pool_rooms(devices, {}).values())

    async def fit(self, cluster: Cluster, ask: Ask) -> Fit:
        survey = await self._survey(cluster)
        model = await self._inventory.model(ask.model)
        config, cores = self._inventory.config(), os.cpu_count() or 1

        def made(ctx_size: int) -> Plan:
            asked = msgspec.structs.replace(ask, ctx_size=ctx_size)
            plan = propose(asked, model, config, survey.peers, cores)
            survey.require_room(plan, model)
            return plan

        most = ask.ctx_size or model.n_ctx_train or config.ctx_size
        fit = await longest_fit(
            made,
            most,
            model,
            survey.devices,
            self._clusters.memory.of,
            protocol=survey.rpc_protocol,
        )
        if not fit.ctx_size:
            return fit
        plan = await asyncio.to_thread(made, fit.ctx_size)
        option = await self._option(cluster, plan, model, survey)
        told = await asyncio.to_thread(
            forecast, model, plan, option.speeds, workload(plan)
        )
        return msgspec.structs.replace(
            fit, tok_per_s=told.tok_per_s, low=told.low, high=told.high
        )

    async def speeds(self, cluster: Cluster, plan: Plan) -> ClusterSpeeds:
        survey = await self._survey(cluster, plan)
        model = await self._inventory.model(plan.model)
        return (await self._option(cluster, plan, model, survey)).speeds

    async def forecasts(
        self,
        cluster: Cluster,
        plan: Plan,
        networks: Sequence[Mapping[str, Lab | None]],
        depth: int,
    ) -> list[Forecast]:
        """Predict a plan's speed over networks, given by the labs on their links.

        ``depth`` is the context amid an answer, where nothing is drafted.
        """
        survey = await self._survey(cluster, plan)
        model = await self._inventory.model(plan.model)
        option = await self._option(cluster, plan, model, survey)
        load = workload(plan)._replace(depth=depth)
        found = []
        for labs in networks:
            speeds = with_labs(option.speeds, labs.get)
            if plan.server.draft == NO_DRAFT:
                told = await asyncio.to_thread(forecast, model, plan, speeds, load)
                found.append(told)
            else:
                drafted = await told_of(replace(option, speeds=speeds), None)
                found.append(drafted.forecast)
        return found

    async def best(
        self, cluster: Cluster, plan: Plan, pins: tuple[str, ...] = ()
    ) -> tuple[Alternative, ...]:
        """A plan as it is, the best ones of its devices for all aims, and others."""
        survey = await self._survey(cluster, plan)
        model = await self._inventory.model(plan.model)
        args = in_layers(plan).extra_args
        ask = Ask(model=plan.model, objective=Objective.DECODE, extra_args=args)
        require_open(ask, model)
        check_plan(plan, model)
        option = await self._option(cluster, plan, model, survey)
        elsewhere = await self._elsewhere(plan, survey, cluster)
        searched = replace(option, pins=pins)
        found = await self._searched(cluster, lambda: best_plans(searched))
        aim = Objective.DECODE
        others = await self._searched(cluster, lambda: heads_of(elsewhere, aim))
        return (*found, *others)

    async def _searched(
        self,
        cluster: Cluster,
        search: Callable[[], Coroutine[None, None, tuple[Alternative, ...]]],
    ) -> tuple[Alternative, ...]:
        # One after the other, and a thread cannot be cancelled: who gives up leaves it
        # to the next one's wait.
        while (before := self._searches.get(cluster.name)) and not before.done():
            await asyncio.wait((before,))
        self._searches[cluster.name] = task = asyncio.create_task(search())
        return await asyncio.shield(task)

    async def why(self, cluster: Cluster) -> Bottleneck:
        """Tell what a token waits for, and the change of what runs that gains most."""
        snapshot = cluster.store.snapshot
        plan = snapshot.plan
        if plan is None:
            raise ControllerError("Nothing runs", "Launch a plan: dllm-tui up MODEL.")
        survey = await self._survey(cluster, plan)
        model = await self._inventory.model(plan.model)
        option = await self._option(cluster, plan, model, survey)
        labs = {link.worker: link.lab for link in snapshot.links}
        option = replace(option, speeds=with_labs(option.speeds, labs.get))
        drafted: list[Plan] = []
        if plan.server.draft == NO_DRAFT:
            known = dict.fromkeys((NGRAM_DRAFT, *(one.draft for one in option.trials)))
            for draft in [one for one in known if one != NO_DRAFT][: DRAFTS_MAX + 1]:
                with contextlib.suppress(DllmError):
                    wanted = with_draft_of(plan, draft)
                    drafted.append(await self.drafting.settled(wanted, survey.peers))
        return await asyncio.to_thread(explain, option, snapshot, drafted)

    async def launchable(
        self, cluster: Cluster, asked: Plan | str
    ) -> tuple[Plan, Facts | None]:
        """The plan of a token, or a plan sent whole, as it can be launched now."""
        if isinstance(asked, str):
            prepared = await self._taken(cluster, asked)
            names = machines_of(prepared.plan)
            there = [one for one in self._machines.all() if one.name in names]
            now = with_memory(prepared.survey.machines, await memory_of(there))
            survey = await self._survey(cluster, prepared.plan, now)
            told = await self._clusters.memory.of(prepared.plan)
            survey.require_room(prepared.plan, prepared.model, told.devices)
            return prepared.plan, prepared.facts
        survey = await self._survey(cluster, asked)
        plan = await self.drafting.require(asked, survey.peers)
        try:
            model = await self._inventory.model(plan.model)
        except DllmError:
            return plan, None
        plan = await _checked(plan, model, survey)
        told = await self._clusters.memory.of(plan)
        survey.require_room(plan, model, told.devices)
        return plan, None

    async def _survey(
        self,
        cluster: Cluster,
        asked: Ask | Plan | None = None,
        machines: Sequence[Peer] | None = None,
    ) -> Survey:
        await self._clusters.book.weigh(WEIGHT_AGE_S)
        if machines is None:
            machines = await machines_now(self._machines, self._inventory)
        mine = await held_by(cluster.pursued, cluster.store.snapshot, self._inventory)
        others = await self._clusters.held_by_others(cluster)
        plan = asked if isinstance(asked, Plan) else None
        return Survey(
            machines=machines,
            peers=room_for(machines, mine, others),
            rpc_protocol=await self._inventory.rpc_protocol(plan),
        )

    async def _proposed(self, ask: Ask, survey: Survey, cluster: Cluster) -> BestPlan:
        model = await self._inventory.model(ask.model)
        require_open(ask, model)
        plan = await self._by_memory(ask, model, survey)
        if ask.objective is None:
            return BestPlan(plan)
        option = await self._option(cluster, plan, model, survey)
        others = await self._with_other_heads(ask, plan, survey, cluster)
        return await best_plan([option, *others], ask.objective)

    async def _elsewhere(
        self, plan: Plan, survey: Survey, cluster: Cluster
    ) -> list[Option]:
        """The machines of a plan with other heads, layers by memory."""
        ask = msgspec.structs.replace(
            plan.asked or Ask(model=plan.model),
            peers=tuple(machines_of(plan)),
            counts=None,
            split=None,
            experts=(),
            ctx_size=plan.ctx_size,
            server=plan.server,
        )
        return await self._with_other_heads(ask, plan, survey, cluster)

    async def _with_other_heads(
        self, ask: Ask, plan: Plan, survey: Survey, cluster: Cluster
    ) -> list[Option]:
        model, options = await self._inventory.model(ask.model), []
        for head in await self._other_heads(ask, plan, survey):
            # A head that cannot be is no choice.
            with contextlib.suppress(DllmError):
                asked = msgspec.structs.replace(ask, head=head)
                there = await self._by_memory(asked, model, survey)
                options.append(await self._option(cluster, there, model, survey))
        return options

    async def _by_memory(self, ask: Ask, model: ModelInfo, survey: Survey) -> Plan:
        cores = os.cpu_count() or 1
        plan = propose(ask, model, self._inventory.config(), survey.peers, cores)
        return await self.drafting.settled(plan, survey.peers)

    async def _other_heads(self, ask: Ask, plan: Plan, survey: Survey) -> list[str]:
        if ask.head is not None:
            return []
        own = {worker.peer for worker in plan.workers if not worker.endpoint}
        others = own & {peer.name for peer in survey.peers} - {plan.head}
        if not others:
            return []
        found = await self._models()
        holders = next((m.held_by for m in found if m.path == ask.model), ())
        return sorted(others.intersection(holders))

    async def _option(
        self, cluster: Cluster, plan: Plan, model: ModelInfo, survey: Survey
    ) -> Option:
        wanted = plan.engine if plan.head == LOCAL else None
        engine = None if wanted else cluster.store.snapshot.engine
        if engine is None:
            with contextlib.suppress(DllmError):
                engine = (await self._inventory.engine(wanted)).info
        ground = ground_of(plan, model, survey.machines, engine)
        calibrations, links = self._clusters.calibrations, cluster.store.snapshot.links
        return Option(
            plan=plan,
            model=model,
            devices=survey.devices(plan),
            speeds=await asyncio.to_thread(calibrations.speeds, ground, links),
            pins=plan.asked.pins if plan.asked else (),
            draft_models=await draft_models(plan, self._inventory),
            trials=self._clusters.trials.found_for(model),
        )

    async def _prepared(self, cluster: Cluster, plan: Plan, survey: Survey) -> Prepared:
        model = await self._inventory.model(plan.model)
        plan = await _checked(plan, model, survey)
        return Prepared(
            plan=plan,
            model=model,
            survey=survey,
            facts=await site_of(
                cluster.name, plan, self._machines, self._inventory, Steps()
            ),
            probed=self._probed(plan),
        )

    async def _taken(self, cluster: Cluster, token: str) -> Prepared:
        """The preparation of a token, made anew if its model or a peer changed."""
        prepared = self._kept.pop((cluster.name, token), None)
        if prepared is None or prepared.until < time.monotonic():
            raise ControllerError(
                "This launch was prepared too long ago", "Prepare it again."
            )
        plan = prepared.plan
        model = await self._inventory.model(plan.model)
        if prepared.model == model and prepared.probed == self._probed(plan):
            return prepared
        survey = await self._survey(cluster, plan)
        plan = await self.drafting.require(plan, survey.peers)
        await self._machines.reached(machines_of(plan))
        return await self._prepared(cluster, plan, survey)

    def _probed(self, plan: Plan) -> dict[str, float]:
        peers = self._machines.values()
        names = machines_of(plan)
        return {p.name: p.facts.at for p in peers if p.facts and p.name in names}

    async def _preview(
        self, cluster: Cluster, prepared: Prepared, best: BestPlan, *, explain: bool
    ) -> Preview:
        plan, model, survey = prepared.plan, prepared.model, prepared.survey
        objective = plan.asked.objective if plan.asked else None
        access = api_settings(self._inventory.config(), self._inventory.paths).access
        peers = {peer.name: peer for peer in survey.peers}
        asked = await self._clusters.memory.of(plan)
        option = await self._option(cluster, plan, model, survey)
        preview = await _previewed(
            *(option, prepared.facts, asked, objective, best), explain=explain
        )
        gateway = gateway_command(cluster.name, plan, access)
        return msgspec.structs.replace(
            preview,
            commands=(*preview.commands, gateway),
            notes=remarks(
                *(plan, model, option.devices, peers), protocol=survey.rpc_protocol
            ),
        )

    async def imagine(
        self, given: GivenCluster, ask: Ask, *, explain: bool = False
    ) -> Preview:
        """The plan for machines that need not be there, with its memory."""
        model = await self._inventory.model(ask.model)
        require_open(ask, model)
        engine = await self._inventory.engine()
        protocol = engine.info.rpc_protocol
        options = await self._drafted_options(given, ask, model, protocol)
        option = options[0]
        if ask.objective is not None:
            best = await best_plan(options, ask.objective)
            option = next(one for one in options if one.plan.head == best.plan.head)
            option = replace(option, plan=best.plan)
        else:
            require_kept(option)
            best = BestPlan(option.plan)
            if explain:
                best = best._replace(
                    heads=await self._imagined_heads(given, ask, option, protocol)
                )
        plan = option.plan
        check_plan(plan, model)
        asked = await self._clusters.memory.of(plan)
        facts = Facts(
            cluster=DEFAULT_CLUSTER,
            engines={machine.name: engine for machine in given.machines},
            model=model,
            model_path=model.path,
            draft_path=plan.speculation.model if plan.speculation else "",
        )
        preview = await _previewed(
            *(option, facts, asked, ask.objective, best), explain=explain
        )
        notes = (asked.note,) if asked.note else ()
        return msgspec.structs.replace(preview, notes=notes)

    async def _imagined_heads(
        self, given: GivenCluster, ask: Ask, option: Option, protocol: str
    ) -> tuple[Alternative, ...]:
        """The machines of an option with other heads, layers by memory."""
        aim = msgspec.structs.replace(
            ask, objective=Objective.DECODE, split=None, counts=None, experts=()
        )
        with contextlib.suppress(DllmError):
            found = await self._drafted_options(given, aim, option.model, protocol)
            others = [one for one in found if one.plan.head != option.plan.head]
            return await heads_of(others, None)
        return ()

    async def _drafted_options(
        self, given: GivenCluster, ask: Ask, model: ModelInfo, protocol: str
    ) -> list[Option]:
        options = imagined_options(given, ask, model, protocol)
        return _possible([await self._drafted(given, one) for one in options])

    async def _drafted(self, given: GivenCluster, option: Option) -> Option | DllmError:
        """The same with its draft: by our engine, in place of its head's."""
        if option.plan.server.draft == NO_DRAFT:
            return option
        machines = machines_of_file(given, option.plan.head)
        try:
            plan = await self.drafting.settled(option.plan, machines, LOCAL)
            drafts = await draft_models(plan, self._inventory)
        except DllmError as error:
            return error
        trials = self._clusters.trials.found_for(option.model)
        return replace(option, plan=plan, draft_models=drafts, trials=trials)


async def _previewed(
    option: Option,
    facts: Facts,
    asked: PlanMemory,
    objective: Objective | None,
    best: BestPlan,
    *,
    explain: bool,
) -> Preview:
    plan, model, devices = option.plan, option.model, option.devices
    by_device = {one.device: one for one in asked.devices}
    protocol = option.speeds.rpc_protocol
    told = await told_of(option, objective, best, explain=explain)
    try:
        require_room(plan, model, devices, asked.devices, protocol=protocol)
        refusal = None
    except PlanError as error:
        refusal = error.failure()
    return Preview(
        plan=plan,
        layers=ranges(plan.split),
        memory=tuple(
            with_draft(by_device.get(load.device, load.memory), plan.speculation)
            for load in plan_loads(model, plan, protocol=protocol)
        ),
        available_bytes={device.id: device.usable_bytes for device in devices},
        commands=commands(plan, facts),
        refusal=refusal,
        forecast=told.forecast,
        undrafted=told.undrafted,
        speeds=option.speeds,
        why=told.why,
        is_exact=best.exact,
        alternatives=told.alternatives,
    )


async def _checked(plan: Plan, model: ModelInfo, survey: Survey) -> Plan:
    check_plan(plan, model)
    await check_whole(plan)
    return with_prompt_cache(
        plan, model, survey.devices(plan), protocol=survey.rpc_protocol
    )


def imagined_options(
    given: GivenCluster, ask: Ask, model: ModelInfo, rpc_protocol: str = ""
) -> list[Option]:
    """The plans for machines of a file, one for each head that can be."""
    heads = _heads(given, ask)
    return _possible([_imagined(given, ask, model, h, rpc_protocol) for h in heads])


def _possible(options: Sequence[Option | DllmError]) -> list[Option]:
    found = [one for one in options if isinstance(one, Option)]
    refused = [one for one in options if isinstance(one, DllmError)]
    if not found:
        raise refused[0]
    # A head that cannot be is no choice.
    return found


def _heads(given: GivenCluster, ask: Ask) -> list[str]:
    wanted = ask.head or given.head
    names = [machine.name for machine in given.machines]
    for one in (wanted, *(ask.peers or ())):
        if one and one not in names:
            raise PlanError(
                f"The cluster file has no machine {one}",
                f"{did_you_mean(one, names)}It has {', '.join(names)}.",
            )
    if wanted:
        return [wanted]
    return names if ask.objective is not None else names[:1]


def _imagined(
    given: GivenCluster, ask: Ask, model: ModelInfo, head: str, rpc_protocol: str
) -> Option | PlanError:
    machines = machines_of_file(given, head)
    names = tuple(machine.name for machine in machines if machine.name != head)
    wish = msgspec.structs.replace(
        ask, head=head, peers=ask.peers or names, relay=False
    )
    try:
        plan = propose(wish, model, Config(), machines, cores=1)
        return Option(
            plan=plan,
            model=model,
            devices=plan_devices(head, plan.workers, {m.name: m for m in machines}),
            speeds=speeds_of_file(given, plan, rpc_protocol),
            pins=(*pins_of_file(given, plan), *ask.pins),
        )
    except PlanError as error:
        return error
