"""A controller on a stage of scripted machines, played line by line in virtual time.

A script is text: each command is the name of a method of ``Scene``, then its words.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
import shlex
import signal
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from backends.controller.cluster import Cluster
from backends.controller.clusters import Clusters
from backends.engine.llama_client import Counts, Health, ServerClient
from backends.errors import ControllerError, DllmError, PeerUnreachable
from backends.gateway.control import GatewayLink
from backends.gateway.control_messages import Target
from backends.speculation import auto
from backends.state import (
    DEFAULT_CLUSTER,
    Actor,
    ClusterState,
    Failure,
    Plan,
    ProcessRole,
    ServerSettings,
    Speculation,
)
from backends.state.snapshots import RequestCounts
from tests.kit.clusters import ScriptedInventory, paths_in
from tests.kit.full_disk import little_room
from tests.kit.machines import Cast
from tests.kit.virtual_time import in_virtual_time
from tests.unit.planning import machines as planned

ANNA = Actor(program="scene", user="anna")
PATIENCE = "3600"
SMALL_DRAFT = "/small.gguf"


class Scene:
    """The stage, and what a script can do and expect on it."""

    def __init__(self, folder: Path) -> None:
        self.paths = paths_in(folder)
        for made in (self.paths.config_dir, self.paths.clusters_dir):
            made.mkdir(parents=True)
        self.cast = Cast("ada", "bob")
        small = planned.model_of()
        self.models = {
            planned.PATH: small,
            "/other.gguf": replace(small, path="/other.gguf"),
            SMALL_DRAFT: replace(small, path=SMALL_DRAFT),
        }
        self.targets: list[Target] = []
        self.counts = RequestCounts()
        self.rates: dict[str, float] = {}
        self.clusters: Clusters
        self.seen_events = 0
        self._is_up = False
        self._has_bare = True
        self._link: Any = None
        self._on = DEFAULT_CLUSTER
        self._wanted: dict[str, Plan | None] = {}
        self._later: list[asyncio.Task[Any]] = []
        self._cleaning = contextlib.ExitStack()
        self._disk_s = 0.0
        self._writes: list[asyncio.TimerHandle] = []

    # --- the controller ----------------------------------------------------------

    async def controller(self, act: str) -> None:
        """``starts``, ``restarts``, ``ends``: with it go processes on its tunnels.

        What a slow disk has not written by then is lost.
        """
        self._is_up, self._disk_s = act != "ends", 0.0
        while self._writes:
            self._writes.pop().cancel()
        if act != "starts":
            await self.clusters.leave()
            for machine in self.cast.machines.values():
                for tunnel in machine.tunnels:
                    tunnel.on_broken = None
                if machine.tunnels:
                    self._hang_up(machine.name)
                machine.tunnels.clear()
            await asyncio.sleep(1.0)
        if act == "ends":
            return
        inventory = ScriptedInventory(self.paths, self.models)
        self.clusters = Clusters(inventory, self.paths)
        await self.clusters.start(self.cast)  # type: ignore[arg-type]
        self.clusters.begin()
        self.clusters.show_peers(self.cast.values())

    def _hang_up(self, machine: str) -> None:
        for record in self.cast.machines[machine].processes.seen:
            if record.alive:
                self.cast.died(record)

    def on(self, cluster: str) -> None:
        self._on = cluster

    @property
    def cluster(self) -> Cluster:
        return self.clusters.get(self._on)

    @property
    def _asked(self) -> Plan | None:
        return self._wanted.get(self._on)

    @_asked.setter
    def _asked(self, plan: Plan | None) -> None:
        self._wanted[self._on] = plan

    @property
    def now(self) -> Any:
        return self.cluster.store.snapshot

    # --- what a person does -------------------------------------------------------

    def _plan(self, *words: str) -> Plan:
        """``ada bob``: on these machines; ``on ada``: with that head."""
        words, head = (words[2:], words[1]) if words[:1] == ("on",) else (words, None)
        names = [name for name in words if name in self.cast.machines]
        known = [
            planned.peer(name, self.cast.machines[name].device)
            for name in ("ada", "bob")
        ]
        here = planned.here(self.cast.machines["local"].device)
        peers = tuple(n for n in names if n != "local")
        plan = planned.plan_for(here, *known, peers=peers, head=head)
        plan = replace(plan, relay="relays" in words)
        if "other" in words:
            plan = replace(plan, model="/other.gguf")
        if "bad-layers" in words:
            plan = replace(plan, split=replace(plan.split, n_layer=11))
        if "auto" in words:
            ngram = Speculation(type="ngram-map-k")
            drafts = Speculation(type="draft-simple", model=SMALL_DRAFT)
            plan = replace(
                plan,
                server=ServerSettings(draft="auto"),
                speculation=replace(drafts, instead=(ngram,)),
            )
        if "drafted" in words:
            plan = replace(
                plan,
                server=ServerSettings(draft=SMALL_DRAFT),
                speculation=Speculation(type="draft-simple", model=SMALL_DRAFT),
            )
        if "bare" in words:
            first, *rest = plan.workers
            bare = replace(first, endpoint="127.0.0.1:50052")
            plan = replace(plan, workers=(bare, *rest))
        return plan

    async def launch(self, *words: str) -> None:
        plan = self._plan(*words)
        await self.cluster.want(plan, by=ANNA)
        self._asked = plan

    async def serves(self, *words: str) -> None:
        await self.launch(*words)
        await self.until("serving")

    async def stop(self) -> None:
        self._asked = None
        await self.cluster.want(None, by=ANNA)

    async def checks(self, *words: str) -> None:
        await self.cluster.require_possible(self._plan(*words))

    async def looks_at_losses(self) -> None:
        await self.cluster.look_at_fallbacks(0.0)

    def losses(self, *names: str) -> None:
        assert [one.lost for one in self.now.fallbacks] == list(names)

    async def refused(self, text: str, verb: str, *words: str) -> None:
        with pytest.raises(DllmError, match=re.escape(text)):
            await self._do(verb, *words)

    async def replaces(self, generation: str, *words: str) -> None:
        plan = self._plan(*words)
        await self.cluster.want(plan, int(generation), by=ANNA)
        self._asked = plan

    async def drain(self) -> None:
        await self.cluster.drain(on=True, by=ANNA)

    async def resume(self) -> None:
        await self.cluster.drain(on=False, by=ANNA)

    def settings(self, *lines: str) -> None:
        self.paths.config_file.write_text("\n".join(lines))

    # --- what happens ---------------------------------------------------------------

    def restarts(self, name: str) -> None:
        """A person has a process started again."""
        self.cluster.restart(name, Actor(program="processes"))

    async def kills(self, machine: str, name: str) -> None:
        """A person kills a process on a machine."""
        await self.cluster.kill(machine, name, Actor(program="processes"))

    def kill(self, *names: str) -> None:
        for name in names:
            agent, record = self.cast.holder(name)
            agent.ends(record.name, exit_signal=signal.SIGKILL)

    def deletes(self, name: str) -> None:
        agent, record = self.cast.holder(name)
        agent.ends(record.name)
        del agent.processes[record.name]
        agent.tell()

    def away(self, name: str, how: str = "") -> None:
        """A machine is cut off; with ``off`` its processes end unseen."""
        machine = self.cast.machines[name]
        machine.there, machine.away_since = False, time.time()
        if how == "off":
            for record in machine.processes.seen:
                if record.alive:
                    machine.processes.listening.discard(record.pid)
                    state = type(record.state)("exited")
                    gone = replace(record, state=state)
                    machine.processes.processes[record.name] = gone
        self._hang_up(name)
        machine.breaks()
        self.clusters.show_peers(self.cast.values())

    def silent(self, name: str, seconds: str) -> None:
        self.away(name)
        self.cast.machines[name].away_since = time.time() - float(seconds)

    def paused(self, name: str) -> None:
        """Its owner has ended what ran there, and says so."""
        self.cast.machines[name].withheld = True
        self.away(name, "off")

    async def back(self, name: str) -> None:
        machine = self.cast.machines[name]
        machine.withheld = False
        machine.there, machine.away_since = True, None
        await self.clusters.settle(machine)  # type: ignore[arg-type]
        self.clusters.show_peers(self.cast.values())

    def faulty(self, how: str, name: str) -> None:
        """``deaf`` processes never listen, ``refused`` ones cannot be started.

        A ``stubborn`` one ends late, an ``immortal`` one not even at SIGKILL. A machine
        that is ``asking`` wants a password, and one ``engineless`` has no llama.cpp.
        """
        getattr(self.cast, how).add(name)

    def mended(self, how: str, name: str) -> None:
        getattr(self.cast, how).remove(name)

    def becomes(self, name: str, state: str) -> None:
        agent, record = self.cast.holder(name)
        agent.put(replace(record, state=type(record.state)(state)))

    def dies(self, name: str, times: str = "1", words: str = "it broke") -> None:
        self.cast.dying[name] = [f"{words}\n"] * int(times)

    def bare(self, state: str) -> None:
        self._has_bare = state == "there"

    def appears(self, machine: str, name: str) -> None:
        self.cast.appears(machine, name, ProcessRole.WORKER)

    def orphan(self, name: str) -> None:
        self.cast.machines["local"].processes.lost.append(f"default/{name}")

    def orphans(self, *names: str) -> None:
        lost = self.cast.machines["local"].processes.lost
        assert [name.removeprefix("default/") for name in lost] == list(names)

    def connected(self, name: str) -> None:
        self.cast.machines[name].there = True

    def revoked(self, machine: str) -> None:
        """It lets us in no more, and has ended what ran there for us."""
        self.cast.machines[machine].revoked = True
        self.clusters.show_peers(self.cast.values())

    def removed(self, machine: str) -> None:
        del self.cast.machines[machine]
        self.clusters.show_peers(self.cast.values())

    def snatched(self, *programs: str) -> None:
        self.cast.snatched.extend(programs)

    def taken(self, port: str, program: str) -> None:
        self.cast.machines["local"].processes.taken[int(port)] = program

    def small(self, *names: str) -> None:
        for name in names:
            self.cast.machines[name].device = planned.device(name, "CPU", 1)

    def roomy(self, name: str) -> None:
        device = planned.device(name, "CPU", 64 * planned.GIB)
        self.cast.machines[name].device = device

    def loads(self, seconds: str) -> None:
        self.cast.load_s = float(seconds)

    def lost(self, model: str) -> None:
        del self.models[model]

    def speeds(self, *told: str) -> None:
        self.rates = {k: float(v) for k, v in (one.split("=") for one in told)}

    def asks(self, in_flight: str, fragile: str = "0") -> None:
        counts = {"in_flight": int(in_flight), "fragile": int(fragile)}
        self.counts = replace(self.counts, **counts)
        self._count()

    def folder(self, state: str) -> None:
        """The folder of the journal is ``gone``, or ``back``."""
        folder, aside = self.paths.clusters_dir, self.paths.state_dir / "aside"
        if state == "gone":
            folder.rename(aside)
            folder.write_text("in the way")
        else:
            folder.unlink()
            aside.rename(folder)

    def disk(self, state: str) -> None:
        if state == "full":
            self._cleaning.enter_context(little_room(0))
        elif state == "slow":
            self._disk_s = 1.0
        else:
            self._cleaning.close()

    def forget(self) -> None:
        self.paths.journal("default").unlink()
        self._asked = None

    def set_aside(self) -> None:
        assert self.paths.journal("default").with_suffix(".unreadable").exists()

    def scribble(self, text: str = "{") -> None:
        self.paths.journal("default").write_text(text)
        self._asked = None

    async def looks_for_silent(self) -> None:
        await self.clusters.look_for_silent()

    async def wait(self, seconds: str) -> None:
        await asyncio.sleep(float(seconds))

    async def repeat(self, times: str, *lines: str) -> None:
        for line in lines * int(times):
            await self._do(*shlex.split(line))

    def later(self, seconds: str, verb: str, *words: str) -> None:
        async def act() -> None:
            await asyncio.sleep(float(seconds))
            await self._do(verb, *words)

        self._later.append(asyncio.ensure_future(act()))

    def break_code(self, what: str, times: str = "1") -> None:
        """A fault of our own: some step raises what nobody thought of."""
        agent = self.cast.machines["local"].processes
        whole, left = getattr(agent, what), iter(range(int(times), 0, -1))

        async def faulty(*_: object) -> None:
            if next(left) == 1:
                setattr(agent, what, whole)
            raise ZeroDivisionError("in the depths")

        setattr(agent, what, faulty)

    # --- what is expected -----------------------------------------------------------

    async def until(self, state: str, within: str = PATIENCE) -> None:
        wanted = ClusterState(state)
        try:
            async with asyncio.timeout(float(within)):
                while self.now.state is not wanted:
                    await self.cluster.store.change()
        except TimeoutError:
            raise AssertionError(f"{state} in vain: {self._shown()}") from None

    async def recovers(self, within: str = PATIENCE) -> None:
        async with asyncio.timeout(float(within)):
            while self.now.state is ClusterState.SERVING:
                await self.cluster.store.change()
            await self.until("serving")

    async def stays(self, state: str, seconds: str) -> None:
        begun = len(self.cast.started)
        await asyncio.sleep(float(seconds))
        assert self.now.state.value == state, self._shown()
        assert len(self.cast.started) == begun, self.cast.started[begun:]

    def runs(self, *names: str) -> None:
        there = [name for name in self.cast.running() if name != "api-gateway"]
        assert there == sorted(names), there

    def gateway(self, mode: str) -> None:
        if mode in ("runs", "gone"):
            assert ("api-gateway" in self.cast.running()) == (mode == "runs")
            return
        told = self.targets[-1]
        assert mode in (told.mode.value, told.drains and "drains"), told

    def started(self, name: str, times: str) -> None:
        found = self.cast.started.count(name)
        assert found == int(times), self.cast.started

    def uses(self, *names: str) -> None:
        plan = self.now.plan
        devices = {s.device.partition("/")[0] for s in plan.split.shares if s.layers}
        assert devices == set(names), plan.split

    def told(self, *texts: str) -> None:
        """Events with these texts came, in this order, since the last look."""
        events = list(self._news())
        for text in texts:
            while events and text not in events[0]:
                events.pop(0)
            assert events, f"{text!r} is not among {self._news()}"
        self.seen_events = self.clusters.event_log.newest

    def untold(self, text: str) -> None:
        assert not any(text in event for event in self._news()), self._news()

    def _news(self) -> list[str]:
        events = self.clusters.event_log.after(self.seen_events)
        return [f"{event.kind.value}: {event.text}" for event in events]

    def fails(self, text: str) -> None:
        failure: Failure = self.now.failure
        assert text in failure.sentence, failure

    def address(self, url: str) -> None:
        assert self.now.api_url == url, self.now.api_url

    def generation(self, number: str) -> None:
        assert self.now.generation == int(number), self.now.generation

    def leftovers(self, *names: str) -> None:
        assert sorted(one.name for one in self.now.leftovers) == sorted(names)

    def journal(self, field: str, value: str) -> None:
        record = self.cluster._journal.load()
        found: Any = record
        for name in field.split("."):
            found = getattr(found, name)
        assert str(found) == value, found

    def drafts(self, draft: str) -> None:
        assert self.now.draft_now.draft == draft, self.now.draft_now

    def busy(self, answer: str) -> None:
        assert self.clusters.busy == (answer == "yes")

    def step(self, step_id: str, state: str) -> None:
        steps = {one.id: one.state.value for one in self.now.steps}
        assert steps[step_id] == state, steps

    def _shown(self) -> str:
        now = self.now
        return f"{now.state.value}, {now.failure}, {now.message}, {self._news()}"

    # --- playing --------------------------------------------------------------------

    async def _do(self, verb: str, *words: str) -> None:
        result = getattr(self, verb.replace("-", "_"))(*words)
        if inspect.isawaitable(result):
            await result

    async def play(self, script: str) -> None:
        """Run a script to its end; a command that fails is named."""
        await self.controller("starts")
        for line in filter(None, map(str.strip, re.split("[;\n]", script))):
            try:
                await self._do(*shlex.split(line))
                self._require_obedience()
            except (Exception, asyncio.CancelledError) as error:
                error.add_note(f"in the command: {line}")
                raise
        for task in self._later:
            await task
        await self.clusters.leave()
        self._cleaning.close()

    def _require_obedience(self) -> None:
        goal = self.cluster.goal
        is_obeyed = goal.plan == self._asked or goal.rolled_back_to
        assert is_obeyed or not self._is_up, goal

    # --- what stands for the real things ------------------------------------------

    def _count(self) -> None:
        if self._link is not None:
            counts = replace(self.counts, drains=self.targets[-1].drains)
            self._link._counted(counts)

    @contextlib.contextmanager
    def staged(self) -> Any:
        """llama-server's HTTP and the gateway's socket, as this scene has them."""
        scene = self

        async def health(client: Any) -> Health:
            server = scene._server(client)
            if server is None:
                return Health.UNREACHABLE
            age_s = asyncio.get_running_loop().time() - server.started_at
            return Health.OK if age_s >= scene.cast.load_s else Health.LOADING

        async def slots(client: Any) -> tuple[()]:
            return ()

        async def counts(client: Any) -> Counts:
            return Counts()

        def tell(link: Any, target: Target) -> None:
            scene.targets.append(target)
            scene._link = link
            asyncio.get_running_loop().call_later(0.05, scene._count)

        async def close(link: Any) -> None:
            scene._link = None

        async def measured(client: Any, slots: int) -> auto.Measured:
            await asyncio.sleep(5.0)
            server = scene._server(client)
            words = " ".join(server.argv) if server else ""
            kinds = {"small": SMALL_DRAFT in words, "ngram": "ngram" in words}
            kind = next((k for k, is_it in kinds.items() if is_it), "none")
            if not scene.rates.get(kind):
                raise ControllerError("no answer")
            return auto.Measured(scene.rates[kind], None)

        async def connects(address: str) -> tuple[str, float]:
            if not scene._has_bare:
                raise PeerUnreachable(f"No rpc-server listens at {address}")
            return address, 1.0

        class Inline:
            def submit(self, work: Any, *args: Any) -> Any:
                from concurrent.futures import Future

                done: Future[Any] = Future()

                def write() -> None:
                    try:
                        done.set_result(work(*args))
                    except Exception as error:
                        done.set_exception(error)

                if scene._disk_s:
                    loop = asyncio.get_running_loop()
                    scene._writes.append(loop.call_later(scene._disk_s, write))
                else:
                    write()
                return done

        with (
            patch.multiple(ServerClient, health=health, slots=slots, counts=counts),
            patch.multiple(GatewayLink, tell=tell, close=close),
            patch("backends.controller.journal._disk", Inline),
            patch.object(auto, "measured", measured),
            patch("backends.controller.launch_facts.connects", connects),
            patch("backends.controller.recovery.connects", connects),
            patch("backends.machines.bare.connects", connects),
        ):
            yield

    def _server(self, client: Any) -> Any:
        return self.cast.server_at(int(client._base.rpartition(":")[2]))


def play(folder: Path, script: str) -> Scene:
    scene = Scene(folder)
    with scene.staged():
        in_virtual_time(lambda: scene.play(script))
    return scene
