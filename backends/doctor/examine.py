"""All checks of the doctor, each as it is done; none of them raises."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path

from backends.client.client import ControllerClient
from backends.client.http import ASKING
from backends.config import load_config
from backends.doctor.check import (
    TOGETHER,
    WITH_AGENT,
    Check,
    Finding,
    Verdict,
    check_of,
)
from backends.doctor.golden import GoldenRun, golden_runs, known_model, operator_runs
from backends.doctor.installation import CHECKS, engine_here
from backends.doctor.model_checks import differing_weights, other_files, tensors
from backends.doctor.peer_checks import (
    builds,
    health_checks,
    network_checks,
    protocols,
    reached,
    several_engines,
    spoken,
)
from backends.errors import DllmError
from backends.machine_names import LOCAL, at_peer
from backends.machines.health import read_health
from backends.machines.local import local_agent_for_now
from backends.models.download import DEMO_SOURCE
from backends.models.truncated_model import write_truncated
from backends.paths import Paths
from backends.state import ClusterSnapshot, ClusterState, ModelCatalogue, Peer, Value
from backends.units import format_bytes

PEERS = "peers"
SEARCH_S = 10.0
POLL_S = 0.1
TRUNCATED_BYTES_MAX = 512 << 20
"""More would cross the network for too long."""


class Wish(Value, frozen=True, kw_only=True):
    quick: bool = False
    """Leave out the golden output and the reading of whole models."""
    model: str = ""
    """A model to compare on all machines, tensor by tensor; empty: none."""


def untold(machine: str, done_bytes: int, size_bytes: int) -> None:
    """Tell nobody how far the reading of a model is."""


async def examine(
    paths: Paths, wish: Wish, told: Callable[[str, int, int], None] = untold
) -> AsyncGenerator[Check, None]:
    """All checks, one after the other as they are done."""
    client = ControllerClient(paths)
    ran = await client.running()
    first = wrong = ""

    def is_known(found: Check) -> bool:
        # What is wrong with the settings fails every check that reads them.
        return bool(wrong) and found.detail == wrong

    for name, check in CHECKS.items():
        for found in await _tried(name, check(paths)):
            if is_known(found):
                continue
            if name == "settings" and found.verdict is Verdict.FAIL:
                first, wrong = "mend the settings first", found.detail
            elif name == "engine" and found.verdict is Verdict.FAIL:
                first = first or "get an engine first"
            elif name == "orphans" and found.repairs:
                first = first or "end the orphans first"
            yield found
    doctor = _Doctor(paths, wish, told, first=first)
    try:
        for name, part in doctor.parts.items():
            for found in await _tried(name, part()):
                if not is_known(found):
                    yield found
    finally:
        if not ran and await client.running():
            with contextlib.suppress(DllmError):
                await client.shutdown(only_if_idle=True)


async def _tried(name: str, work: Awaitable[Check | list[Check]]) -> list[Check]:
    try:
        found = await work
    except DllmError as error:
        # Without peers this machine can still do everything.
        verdict = Verdict.WARN if name == PEERS else Verdict.FAIL
        return [Check(name=name, verdict=verdict, detail=error.what, fix=error.hint)]
    except OSError as error:
        return [Check(name=name, verdict=Verdict.FAIL, detail=str(error))]
    return found if isinstance(found, list) else [found]


class _Doctor:
    """Examines other machines, and this one beside them, through the controller."""

    def __init__(
        self,
        paths: Paths,
        wish: Wish,
        told: Callable[[str, int, int], None],
        *,
        first: str,
    ) -> None:
        self._paths = paths
        self._first = first
        """To be done before anything can be launched; empty: nothing."""
        self._wish = wish
        self._told = told
        self._client = ControllerClient(paths)
        self._peers: tuple[Peer, ...] = ()
        self._snapshots: tuple[ClusterSnapshot, ...] = ()
        self.parts: dict[str, Callable[[], Awaitable[list[Check]]]] = {
            PEERS: self._reached,
            "engines": self._engines,
            "health": self._health,
            "network": self._network,
            "model files": self._models,
            "golden": self._golden,
            "operators": self._operators,
        }

    async def _reached(self) -> list[Check]:
        configured = load_config(self._paths).peers
        if not configured and not await self._client.running():
            return []
        known = await self._client.settled_peers()
        # A peer may have gone since it was heard last.
        await asyncio.gather(*(self._probed(peer.name) for peer in known))
        self._peers = await self._client.settled_peers()
        now = await self._client.snapshot()
        names = [brief.name for brief in now.clusters] or [now.cluster]
        self._snapshots = tuple([await self._of(name) for name in names])
        return [reached(peer) for peer in self._peers]

    async def _probed(self, name: str) -> None:
        with contextlib.suppress(DllmError):
            await self._client.probe_peer(name)

    async def _of(self, cluster: str) -> ClusterSnapshot:
        return await ControllerClient(self._paths, cluster=cluster).snapshot()

    @property
    def _serving(self) -> list[str]:
        plans = [s.plan for s in self._snapshots if s.plan and s.wanted_generation]
        return [name for p in plans for name in (p.head, *(w.peer for w in p.workers))]

    async def _engines(self) -> list[Check]:
        if not self._peers:
            return []
        here = await engine_here(load_config(self._paths).engine, self._paths)
        engines = spoken(here, self._peers)
        if len(engines) < 2:
            return []
        return [protocols(engines), builds(engines), several_engines(self._peers)]

    async def _health(self) -> list[Check]:
        keep_awake = load_config(self._paths).keep_awake
        if self._peers or await self._client.running():
            found = await self._client.health()
        else:
            async with local_agent_for_now(self._paths.run_dir) as agent:
                found = (await read_health(agent),)
        return health_checks(found, self._serving, keep_awake=keep_awake)

    async def _network(self) -> list[Check]:
        if not self._peers:
            return []
        ways = await self._client.ways() if self._ssh_peers else ()
        return network_checks(ways, self._peers)

    @property
    def _ssh_peers(self) -> list[Peer]:
        return [peer for peer in self._peers if peer.transport in WITH_AGENT]

    async def _models(self) -> list[Check]:
        found = differing_weights(self._snapshots)
        checks = [found] if found else []
        if self._ssh_peers:
            checks.append(other_files((await self._catalogue()).models))
        if self._wish.model and not self._wish.quick and not self._is_away:
            model = await self._client.inspect(self._wish.model)
            checks.append(await tensors(self._client, model, self._peers, self._told))
        return checks

    async def _catalogue(self) -> ModelCatalogue:
        found = await self._client.catalogue(refresh=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SEARCH_S):
                while found.scanning:
                    await asyncio.sleep(POLL_S)
                    found = await self._client.catalogue()
        return found

    async def _operators(self) -> list[Check]:
        """Try the operators of the model on every machine, by a truncated one."""
        if not self._wish.model or self._wish.quick or ASKING.get().readonly:
            return []
        if self._is_away:
            detail = "not tried: name a copy of the model on this machine"
            return [Check(name="operators", verdict=Verdict.WARN, detail=detail)]
        if self._first:
            return [Check(name="operators", detail=f"left out: {self._first}")]
        model = Path(self._wish.model)
        folder = self._paths.state_dir / "doctor"
        truncated = folder / f"{model.stem}-truncated.gguf"
        try:
            made = await asyncio.to_thread(write_truncated, model, truncated)
            if made.layer_bytes > TRUNCATED_BYTES_MAX:
                size = format_bytes(made.layer_bytes)
                what = f"not tried: {made.n_layer} of its layers, {size}, would be sent"
                return [Check(name="operators", detail=what)]
            runs = await operator_runs(self._paths, self._peers, str(truncated))
        finally:
            truncated.unlink(missing_ok=True)
        return [operator_check(runs, model.name)]

    @property
    def _is_away(self) -> bool:
        return at_peer(self._wish.model) is not None

    async def _golden(self) -> list[Check]:
        if self._wish.quick:
            return []
        if ASKING.get().readonly:
            return [Check(name="golden", detail="left out: read-only starts nothing")]
        if self._first:
            return [Check(name="golden", detail=f"left out: {self._first}")]
        found = known_model(load_config(self._paths).model_dirs)
        if found is None:
            return [
                Check(
                    name="golden",
                    verdict=Verdict.WARN,
                    detail="not computed: no model with a known answer is here",
                    fix=f"Get the demo's: dllm-tui models get {DEMO_SOURCE}.",
                )
            ]
        runs = await golden_runs(self._paths, self._peers, self._order, *found)
        return [golden_check(runs, beside=self._serving)]

    @property
    def _order(self) -> Sequence[str]:
        serving = [s for s in self._snapshots if s.state is ClusterState.SERVING]
        for snapshot in (*serving, *self._snapshots):
            if snapshot.plan and snapshot.plan.workers:
                return [worker.peer for worker in snapshot.plan.workers]
        return [peer.name for peer in self._peers]


def golden_check(runs: Sequence[GoldenRun], *, beside: Sequence[str]) -> Check:
    """Name the machines that computed another answer, or none."""
    fix = (
        "Its driver or build has no such operator: install another build there "
        "(dllm-tui peers setup NAME), or leave the device out (--exclude)."
        if any(run.operator for run in runs)
        else "A wrong driver, bad memory or another build: install this machine's "
        "engine there (dllm-tui peers setup NAME), and leave the machine out until "
        "this is right."
    )
    note = ", on workers of its own beside what serves" if beside else ""
    return _judged("golden", "the known answer", runs, fix, note)


def operator_check(runs: Sequence[GoldenRun], model: str) -> Check:
    """Name the machines that cannot compute the layers of a model."""
    fix = (
        f"A launch of {model} would fail there: install another build "
        "(dllm-tui peers setup NAME), or leave the device out (--exclude)."
    )
    return _judged("operators", f"all that {model} needs", runs, fix)


def _judged(
    name: str, fine: str, runs: Sequence[GoldenRun], fix: str, note: str = ""
) -> Check:
    findings = [
        Finding(
            machine=run.culprit or _named(run.machines),
            what=f"{_together(run)}{run.wrong}",
            verdict=Verdict.FAIL,
        )
        for run in runs
        if run.wrong
    ]
    unread = "\n".join(
        f"{_named(run.machines)} is not known: {run.skipped}"
        for run in runs
        if run.skipped
    )
    right = [_named(run.machines) for run in runs if not (run.wrong or run.skipped)]
    if not right and not findings:
        return Check(name=name, verdict=Verdict.WARN, detail=unread)
    found = f"{fine}: {', '.join(right)}{note}"
    return check_of(name, found, findings, fix=fix, unread=unread)


def _named(machines: Sequence[str]) -> str:
    return TOGETHER.join(machines) if machines else LOCAL


def _together(run: GoldenRun) -> str:
    return "" if len(run.machines) < 2 or run.culprit else "only together: "
