"""Flows of several steps: choosing a model, launching, stopping, leaving."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import msgspec

from backends.errors import DllmError, disk_errors
from backends.machine_names import at_peer
from backends.paths import user_paths
from backends.split.device_memory import balance
from backends.split.experts import dropped_text
from backends.state import Ask, ClusterSnapshot, ModelInfo, Plan, ProcessState, to_json
from backends.units import format_gain, format_rate
from tui.app.console import Flow
from tui.model.edit import Edit, runs_now
from tui.model.names import model_name, whole_path

if TYPE_CHECKING:
    from backends.plan_files import PlanFile

LEAVE_TIMEOUT_S = 2.0
LAUNCH_OR_UNDO = "{cluster.launch} launches it, {split.undo} takes it back."
PICK_FIRST = "Pick a model first: {cluster.model}"


class PlanFlows(Flow):
    async def choose(self, path: str) -> None:
        """Put a model in the editor, split by memory.

        The controller has a working directory of its own, so the path is made whole;
        ``peer:/path`` is a model that a peer holds.
        """
        cluster, path = self._cluster.cluster, _place_of(path)
        model = await self._cluster.inspect(path)
        plan = await self._cluster.propose(Ask(model=path))
        if self._cluster.cluster == cluster:
            self._editor.put(plan, model)

    async def begin_with(self, path: str) -> None:
        """Put the model of the command line in the editor; say so if another runs."""
        if self._editor.plan and self._editor.plan.model == _place_of(path):
            return
        await self.choose(path)
        if (running := runs_now(self._editor.snapshot)) is not None:
            there, here = model_name(running.model), model_name(path)
            self._app.tell(
                f"{there} runs already: {{cluster.launch}} launches {here} instead"
            )

    def take_up(self, snapshot: ClusterSnapshot, plan: Plan | None) -> None:
        if plan and snapshot.plan is None and self._editor.plan is None:
            self._app.attempt(self.recall(plan), group="model")

    async def recall(self, plan: Plan) -> None:
        cluster = self._cluster.cluster
        try:
            model = await self._cluster.inspect(plan.model)
        except DllmError as error:
            self._app.report(error.failure(), "warning")
            return
        if self._cluster.cluster != cluster:  # Gone on to another one meanwhile.
            return
        if model.n_layer != plan.split.n_layer:
            await self.choose(plan.model)
        elif self._editor.plan is None:
            self._editor.put(plan, model)

    async def pick_model(self) -> None:
        # Imported when needed: most starts of the console pick no model.
        from tui.screens.models.picker import ModelPicker

        current = self._editor.plan.model if self._editor.plan else ""
        picker = ModelPicker(self._cluster, current=current)
        if path := await self._app.push_screen_wait(picker):
            await self.choose(path)

    async def set_launch(self) -> None:
        from tui.model.launch_form import LaunchForm
        from tui.screens.cluster.launch_dialog import LaunchDialog

        plan, model = self._editor.plan, self._editor.model
        if plan is None or model is None:
            self._app.tell(PICK_FIRST, "warning")
            return
        form = LaunchForm(plan, model, os.getcwd())
        dialog = LaunchDialog(self._editor, self._cluster, form)
        chosen = await self._app.push_screen_wait(dialog)
        if chosen is not None:
            self._editor.put(chosen, model)
            if text := dropped_text(plan, chosen):
                self._app.tell(text, "warning")

    async def choose_best(self) -> None:
        """Take one of the best plans; each is shown on the bar, and none is a step."""
        from tui.screens.cluster.best_dialog import BestDialog

        edit = self._editor.edit
        if edit is None:
            self._app.tell(PICK_FIRST, "warning")
            return
        dialog = BestDialog(self._editor, self._cluster, edit)
        try:
            chosen = await self._app.push_screen_wait(dialog)
        finally:
            self._editor.preview(None)
        if chosen is not None:
            self._editor.put(chosen, edit.model)

    async def take_change(self) -> None:
        """Put the change that helps most into the edit; it is one undo away."""
        snapshot, found = self._editor.snapshot, self._editor.bottleneck
        change = found.change if found else None
        if change is None:
            self._app.tell(found.text if found else "Nothing is measured yet")
            return
        self._editor.put(change.plan, snapshot.model if snapshot else None)
        await self._app.go_to("cluster", "split")
        gain = f"{format_gain(change.gain)} tok/s (predicted)"
        if found and found.tok_per_s:
            # The planner's own speed of it stands in the Split pane.
            gain += f" on the measured {format_rate(found.tok_per_s).strip()}"
        self._app.tell(f"{change.text}: {gain}. {LAUNCH_OR_UNDO}")

    async def take_kept(self) -> None:
        # Imported when needed, like all dialogs.
        from backends.plan_files import PlanFile, kept_plans
        from tui.dialogs.pick import PlansDialog

        paths, plan = user_paths(), self._editor.plan
        saved, launched = await asyncio.to_thread(
            lambda: [list(kept_plans(f)) for f in (paths.plans_dir, paths.launches_dir)]
        )
        present = PlanFile.of(plan) if plan else None
        dialog = PlansDialog(saved, launched, present, self._app.clock())
        kept = await self._app.push_screen_wait(dialog)
        if kept is not None:
            chosen, model = await self._with_model(kept.plan)
            self._editor.put(await self._cluster.propose(chosen.ask()), model)

    async def _with_model(self, plan: PlanFile) -> tuple[PlanFile, ModelInfo]:
        """A plan with its model here: a shared one names the file of elsewhere."""
        try:
            return plan, await self._cluster.inspect(plan.model)
        except DllmError:
            found, name = await self._cluster.catalogue(), PurePath(plan.model).name
            same = [one.path for one in found.models if PurePath(one.path).name == name]
            if len(same) != 1:
                raise
        here = msgspec.structs.replace(plan, model=same[0])
        return here, await self._cluster.inspect(here.model)

    async def save(self) -> None:
        from backends.plan_files import PlanFile, save_plan
        from tui.dialogs.dialog import LineDialog

        if (plan := self._editor.plan) is None:
            self._app.tell(PICK_FIRST, "warning")
            return
        folder, content = user_paths().plans_dir, PlanFile.of(plan)
        remark = "dllm-tui plans lists, compares and shares them."
        dialog = LineDialog("Save plan", "", "name", remark)
        name = (await self._app.push_screen_wait(dialog) or "").strip()
        if not name:
            return
        try:
            path = await asyncio.to_thread(save_plan, folder, name, content)
        except FileExistsError:
            text = f"There is a plan {name} already."
            if not await self._agrees("Replace it?", text, "Replace it"):
                return
            path = await asyncio.to_thread(
                lambda: save_plan(folder, name, content, replaces=True)
            )
        self._app.tell(f"Saved {path}")

    async def pick_cluster(self) -> None:
        from tui.dialogs.dialog import clusters_dialog

        here = self._cluster.cluster
        briefs = self._editor.snapshot.clusters if self._editor.snapshot else ()
        chosen = await self._app.push_screen_wait(clusters_dialog(briefs, here))
        if chosen is not None and chosen != here:
            self._app.show_cluster(chosen)

    async def launch(self) -> None:
        plan, edit = self._editor.plan, self._editor.edit
        if plan is None:
            self._app.tell(PICK_FIRST, "warning")
        elif self._editor.unchanged:
            self._app.tell("This split is already running")
        elif await self._may_launch(edit):
            await self._send(_forced(plan) if edit and edit.misfits else plan)

    async def _send(self, plan: Plan) -> None:
        """Ask for a plan; the answer is newer than the snapshots still under way."""
        snapshot = self._editor.snapshot
        replaces = snapshot.wanted_generation if snapshot else None
        self._editor.send(plan)
        try:
            self._app.take(await self._cluster.launch(plan, replaces=replaces))
        finally:
            self._editor.answered(plan)

    async def stop(self) -> None:
        snapshot = self._editor.snapshot
        if snapshot is None or not self._editor.alive:
            self._app.tell("Nothing runs")
        elif await self._agrees("Stop?", _what_ends(snapshot), "Stop it"):
            self._app.take(await self._cluster.stop())

    async def race(self) -> None:
        """Choose two plans, and let them answer one prompt."""
        # Imported when needed: most sessions race nothing.
        from backends.state.races import Race
        from tui.model.contestants import best_of, kept_of, offered
        from tui.screens.cluster.race_dialog import RaceDialog, RaceSetup

        running, edited = runs_now(self._editor.snapshot), self._editor.plan
        base = running or edited
        if base is None:
            self._app.tell(PICK_FIRST, "warning")
            return
        kept = await asyncio.to_thread(kept_of, base, user_paths())
        serves = running is not None
        setup = RaceSetup((*offered(base, edited, running), *kept), serves=serves)

        async def add_best() -> None:
            try:
                found = await self._cluster.best(base)
                setup.add((best_of(base, found),))
            except DllmError:
                # There is none beside those in the list.
                return

        self._app.attempt(add_best(), group="race best")
        asked = await self._app.push_screen_wait(setup)
        if asked is not None:
            serves = runs_now(self._editor.snapshot) is not None
            states = self._cluster.race(asked)
            dialog = RaceDialog(Race.of(asked), states, serves=serves)
            await self._app.push_screen_wait(dialog)

    async def share(self) -> None:
        """Copy the card of what serves, and write it beside as a picture."""
        # Imported when needed: most sessions share nothing.
        from backends.writing import write_new
        from tui.model.share_card import card_of, card_svg, card_text

        card = card_of(self._editor.snapshot or ClusterSnapshot())
        file = Path.cwd() / time.strftime("dllm-card-%Y%m%d-%H%M%S.svg")
        self._app.copy("the card", card_text(card))
        with disk_errors("write", file):
            await asyncio.to_thread(lambda: write_new(file, card_svg(card).encode()))
        self._app.tell(f"Wrote the card to {file}")

    async def export_trace(self) -> None:
        # Imported when needed: most sessions export nothing.
        from backends.link.figures import chrome_trace, why_no_link
        from backends.writing import write_new

        snapshot = self._editor.snapshot
        if snapshot is not None and (why := why_no_link(snapshot)):
            self._app.tell(why, "warning")
            return
        passes = await self._cluster.passes()
        if not any(passes.values()):
            self._app.tell("No token has been measured yet", "warning")
            return
        file = Path.cwd() / time.strftime("dllm-trace-%Y%m%d-%H%M%S.json")
        with disk_errors("write", file):
            await asyncio.to_thread(
                lambda: write_new(file, to_json(chrome_trace(passes)).encode())
            )
        self._app.tell(f"Wrote {file}: open it in Perfetto")

    def balance(self) -> None:
        edit = self._editor.edit
        if edit is None or not edit.devices:
            self._app.tell("There is no split to balance yet")
            return
        split = balance(
            edit.model,
            edit.devices,
            edit.plan.ctx_size,
            head_cpu=self._editor.head_cpu,
            ours=dict(edit.ours),
            server=edit.plan.server,
        )
        self._editor.set_split(split)

    async def leave(self) -> None:
        snapshot, answer = self._editor.snapshot, None
        if self._app.readonly:
            # Whoever only watches has nothing to decide.
            answer = "leave"
        elif snapshot is None or not self._editor.alive:
            answer = "leave"
            # It is gone already, or busy: leaving must not depend on it.
            with suppress(DllmError, TimeoutError):
                async with asyncio.timeout(LEAVE_TIMEOUT_S):
                    await self._cluster.shutdown(only_if_idle=True)
        else:
            from tui.dialogs.dialog import ChoiceDialog
            from tui.widgets.row_list import Choice

            choices = (
                Choice("leave", "Leave it running", "l", "dllm-tui shows it again"),
                Choice("stop", "Stop it", "s", "and free its memory"),
                Choice("cancel", "Cancel", "c"),
            )
            dialog = ChoiceDialog("Quit", _what_ends(snapshot), choices)
            answer = await self._app.push_screen_wait(dialog)
            if answer == "leave":
                self._app.left_running = _what_runs(snapshot)
            elif answer == "stop" and snapshot.others_run:
                await self._cluster.stop()
            elif answer == "stop":
                await self._cluster.shutdown()
        if answer in {"stop", "leave"}:
            self._app.exit()

    async def _may_launch(self, edit: Edit | None) -> bool:
        """Ask before a likely failure, or before somebody's answer is interrupted."""
        snapshot = self._editor.snapshot
        caveat = edit.model.caveat if edit else ""
        if caveat and not await self._agrees("Launch anyway?", caveat, "Launch it"):
            return False
        if edit is not None and edit.misfits:
            names = ", ".join(sorted(edit.misfits))
            text = f"The split puts more on {names} than fits. It will probably fail."
            if not await self._agrees("Launch anyway?", text, "Launch it"):
                return False
        if snapshot is None or (running := runs_now(snapshot)) is None:
            return True
        if not snapshot.speed.requests_active:
            return True
        then = (
            "A new split pauses that while it loads; answers resume where they stopped."
        )
        if edit is not None and edit.model.path != running.model:
            then = (
                "Another model waits until that ends, for at most api_drain_s seconds."
            )
        text = f"{_what_ends(snapshot)}\n\n{then}"
        return await self._agrees("Launch?", text, "Launch it")

    async def _agrees(self, title: str, text: str, verb: str) -> bool:
        from tui.dialogs.dialog import confirm

        dialog = confirm(title, text, verb, "y")
        return await self._app.push_screen_wait(dialog) == "yes"


def _place_of(path: str) -> str:
    return path if at_peer(path) else whole_path(path)


def _what_runs(snapshot: ClusterSnapshot) -> str:
    name = model_name(snapshot.plan.model) if snapshot.plan else "The cluster"
    where = f" at {snapshot.api_url}" if snapshot.api_url else ""
    return f"{name} is {snapshot.state}{where}."


def _what_ends(snapshot: ClusterSnapshot) -> str:
    alive = sum(p.state is not ProcessState.EXITED for p in snapshot.processes)
    runs = {0: "No process yet", 1: "1 process"}.get(alive, f"{alive} processes")
    active = snapshot.speed.requests_active
    are = "requests are" if active > 1 else "request is"
    busy = f"\n{active} {are} being answered." if active else ""
    return f"{_what_runs(snapshot)}\n{runs}.{busy}"


def _forced(plan: Plan) -> Plan:
    asked = msgspec.structs.replace(plan.asked or Ask(model=plan.model), force=True)
    return msgspec.structs.replace(plan, asked=asked)
