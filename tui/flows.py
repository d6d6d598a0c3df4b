"""What takes several steps: choosing a model, launching, stopping, leaving."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from backends.errors import DllmError
from backends.split.memory import balance
from backends.state import to_json
from tui.messages import Notice, Trouble
from tui.widgets.status_line import model_name
from tui.widgets.verdict import runs_now

if TYPE_CHECKING:
    from backends.state import ClusterSnapshot, Plan
    from tui.app import DllmApp
    from tui.cluster import Cluster
    from tui.desk import Desk

LEAVE_TIMEOUT_S = 2.0


class Flows:
    """Coroutines the app runs in workers; errors of the cluster come out of them."""

    def __init__(self, app: DllmApp, cluster: Cluster, desk: Desk) -> None:
        """Work on an app's desk."""
        self._app = app
        self._cluster = cluster
        self._desk = desk

    async def choose(self, path: str) -> None:
        """Put a model on the desk, split by memory.

        The controller has a working directory of its own, so the path is made whole;
        ``peer:/path`` is a model that a peer holds.
        """
        path = _whole_path(path)
        model = await self._cluster.inspect(path)
        plan = await self._cluster.propose(path)
        self._desk.put(plan, model)
        self._app.show_desk()

    async def recall(self, plan: Plan) -> None:
        """Put a remembered plan on the desk, if its model is still what it was."""
        try:
            model = await self._cluster.inspect(plan.model)
        except DllmError as error:
            self._app.post_message(Trouble(error.failure(), "warning"))
            return
        if model.n_layer != plan.split.n_layer:
            await self.choose(plan.model)
        elif self._desk.plan is None:
            self._desk.put(plan, model)
            self._app.show_desk()

    async def read_header(self, plan: Plan) -> None:
        """Read the header of a model that runs, to draw its split."""
        model = await self._cluster.inspect(plan.model)
        if self._desk.plan is not None and self._desk.plan.model == plan.model:
            self._desk.model = model
            self._app.show_desk()

    async def pick_model(self) -> None:
        """Ask for a model."""
        # Imported when needed: most starts of the console pick no model.
        from tui.widgets.model_picker import ModelPicker

        current = self._desk.plan.model if self._desk.plan else ""
        picker = ModelPicker(self._cluster, current=current)
        if path := await self._app.push_screen_wait(picker):
            await self.choose(path)

    async def launch(self) -> None:
        """Run the plan on the desk, asking where that costs something."""
        plan = self._desk.plan
        if plan is None:
            self._app.post_message(Notice("Pick a model first: m", "warning"))
        elif self._desk.unchanged:
            self._app.post_message(Notice("This very split runs already"))
        elif await self._may_launch():
            self._desk.launched(plan)
            await self._cluster.launch(plan)

    async def stop(self) -> None:
        """Stop what runs, after asking."""
        snapshot = self._desk.snapshot
        if snapshot is None or not self._desk.alive:
            self._app.post_message(Notice("Nothing runs"))
        elif await self._agrees("Stop?", _what_ends(snapshot), "Stop it", "y"):
            await self._cluster.stop()

    async def export_trace(self) -> None:
        """Write the latest tokens as a Chrome trace, and say where."""
        # Imported when needed: most sessions export nothing.
        from backends.link.trace import chrome_trace

        passes = await self._cluster.passes()
        if not any(passes.values()):
            self._app.post_message(Notice("No token has been measured yet", "warning"))
            return
        stamp = time.strftime("%Y%m%d-%H%M%S")
        file = Path.cwd() / f"dllm-trace-{stamp}.json"
        try:
            file.write_text(to_json(chrome_trace(passes)))
        except OSError as error:
            raise DllmError(f"Cannot write {file} ({error.strerror})") from error
        self._app.post_message(Notice(f"Wrote {file}: open it in Perfetto"))

    def balance(self) -> None:
        """Deal the layers out by memory."""
        draft = self._desk.draft
        if draft is None or not draft.devices:
            self._app.post_message(Notice("There is no split to balance yet"))
            return
        head_cpu = self._desk.head_cpu
        split = balance(draft.model, draft.devices, draft.ctx_size, head_cpu=head_cpu)
        self._desk.edit(split)
        self._app.show_desk()

    async def leave(self) -> None:
        """Leave the console; what runs goes on unless the user says otherwise."""
        snapshot = self._desk.snapshot
        if snapshot is None or not self._desk.alive:
            await self._let_go()
            self._app.exit()
            return
        answer = await self._ask_leaving(snapshot)
        if answer == "stop":
            await self._cluster.shutdown()
        if answer in {"stop", "leave"}:
            self._app.exit()

    async def _let_go(self) -> None:
        """Nothing runs: the controller need not stay either."""
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self._cluster.shutdown(only_if_idle=True)
        except (DllmError, TimeoutError):
            # It is gone already, or busy: leaving must not depend on it.
            return

    async def _ask_leaving(self, snapshot: ClusterSnapshot) -> str | None:
        from tui.screens.dialog_choice import ChoiceDialog
        from tui.widgets.choice_list import Choice

        choices = (
            Choice("leave", "Leave it running", "l", "dllm-tui shows it again"),
            Choice("stop", "Stop it", "s", "and free its memory"),
            Choice("cancel", "Cancel", "c"),
        )
        dialog = ChoiceDialog("Quit", _what_ends(snapshot), choices)
        return await self._app.push_screen_wait(dialog)

    async def _may_launch(self) -> bool:
        """Ask before memory is overcommitted or somebody's answer is cut off."""
        draft, snapshot = self._desk.draft, self._desk.snapshot
        if draft is not None and draft.misfits:
            names = ", ".join(sorted(draft.misfits))
            text = f"The split puts more on {names} than fits. It will probably fail."
            if not await self._agrees("Launch anyway?", text, "Launch it", "y"):
                return False
        if runs_now(snapshot) is None or snapshot is None:
            return True
        if not snapshot.speed.requests_active:
            return True
        text = f"{_what_ends(snapshot)}\n\nLaunching the new split cuts that off."
        return await self._agrees("Launch?", text, "Launch it", "y")

    async def _agrees(self, title: str, text: str, verb: str, key: str) -> bool:
        from tui.screens.dialog_choice import confirm

        return (
            await self._app.push_screen_wait(confirm(title, text, verb, key)) == "yes"
        )


def _whole_path(path: str) -> str:
    # Imported when needed: most starts of the console choose no model.
    from backends.controller.places import at_peer

    if at_peer(path):
        return path
    return os.path.abspath(os.path.expanduser(path))


def _what_ends(snapshot: ClusterSnapshot) -> str:
    """What runs, so that one sees what would end."""
    name = model_name(snapshot.plan.model) if snapshot.plan else "The cluster"
    where = f" at {snapshot.api_url}" if snapshot.api_url else ""
    active = snapshot.speed.requests_active
    busy = (
        f"\n{active} request{'s are' if active > 1 else ' is'} being answered."
        if active
        else ""
    )
    processes = (
        f"{len(snapshot.processes)} processes"
        if snapshot.processes
        else "No process yet"
    )
    return f"{name} is {snapshot.state}{where}.\n{processes}.{busy}"
