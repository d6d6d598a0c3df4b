"""The dialog of the launch settings: fields above, their memory below."""

from __future__ import annotations

import asyncio

from textual import events, on, work
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Button, Input, Label, Static

from backends.errors import DllmError
from backends.split.buffers import CACHE_TYPES
from backends.state import Ask, FlashAttention, MemorySource, Plan
from backends.units import format_bytes
from tui.actions import bindings
from tui.api.services import ClusterService
from tui.dialogs.dialog import Dialog
from tui.model.edit import Edit
from tui.model.editor import PlanEditor
from tui.model.launch_form import FIELDS, OPTIONAL, LaunchForm
from tui.model.launch_settings import (
    LaunchSettings,
    excluded,
    other_machines,
    with_threads_of,
)
from tui.screens.cluster.split_pane import LoadTable
from tui.widgets.form_fields import NumberInput, OptionStrip
from tui.widgets.inputs import LineInput
from tui.widgets.safe_text import safe
from tui.widgets.sources import least_of, told


class LaunchRow(Vertical):
    """A label and a field; what is to know beside it, what is wrong beneath it."""

    DEFAULT_CSS = """
    LaunchRow {
        height: auto;
        & > Horizontal { height: 1; }
        & Label { width: 17; color: $dim; }
        & Input { width: 14; }
        &.-wide Input { width: 1fr; }
        & .launch-hint { width: 1fr; height: 1; padding: 0 0 0 1; color: $dim; }
        &.-wide .launch-hint { display: none; }
        & .launch-wrong { display: none; height: auto; padding: 0 0 0 17; color: $bad; }
        &.-wrong Label { color: $bad; }
        &.-wrong .launch-wrong { display: block; }
    }
    """

    def __init__(self, name: str, label: str, field: Input | OptionStrip) -> None:
        super().__init__(id=f"row-{name}")
        self.key, self.field, self._label = name, field, label
        self._hint = Static(markup=False, classes="launch-hint")
        self._wrong = Static(markup=False, classes="launch-wrong")
        self.set_class(isinstance(field, OptionStrip) or name in EXAMPLES, "-wide")

    def compose(self) -> ComposeResult:
        yield Horizontal(Label(self._label), self.field, self._hint)
        yield self._wrong

    def say(self, hint: str, wrong: str) -> None:
        self._hint.update(hint)
        self._wrong.update(wrong)
        self.set_class(bool(wrong), "-wrong")
        if self.field.has_focus:
            self.on_descendant_focus()

    def on_descendant_focus(self) -> None:
        if self.has_class("-wrong"):
            # What is wrong stands beneath the field, which may be the last row seen.
            self.call_after_refresh(self.scroll_visible, animate=False)


WIDTH = 84
ROWS_AROUND = 4
"""Borders, remark and buttons."""
ASK_AFTER_S = 0.3
"""Time without a change before the controller checks the texts."""
STRIPS = {
    "cache_type_k": tuple(CACHE_TYPES),
    "cache_type_v": tuple(CACHE_TYPES),
    "flash_attention": tuple(choice.value for choice in FlashAttention),
}
EXAMPLES = {
    "draft": "none, ngram, mtp, auto, or the file of a small model",
    "extra_args": "further llama-server arguments: --temp 0.2",
}
WHOSE = {
    MemorySource.PREDICTED: "predicted",
    MemorySource.ENGINE: "as the engine says",
    MemorySource.MEASURED: "as measured",
}
FIT = {True: "fits", False: "does NOT fit"}


class LaunchDialog(Dialog["Plan | None"]):
    """Dismisses with the plan as it is set, or None when it stays as it was."""

    FIGURES = True
    HELP = """\
## Launch settings

How **llama-server** runs the model. They belong to the plan: `{split.undo}` takes them
back, they
are kept with it, and nothing runs with them before you launch.

The **context** is shared by the **slots**. The **KV cache** in a smaller type takes
less memory and is a little less exact; V in a quantised type needs flash attention.
With a **draft** several tokens share one round trip. A small draft model of the same
vocabulary, or `ngram` (earlier text), drafts so many **draft tokens** on the head;
layers of the model itself (`mtp`) do so where its last layers are. `auto` measures
each once when nobody asks, and keeps the fastest.
**Local workers** are CPU workers on this machine, for trying things.

**{launching.up} {launching.down}** go from field to field, **{option.left}
{option.right}** choose, **{launching.apply:or}** applies,
**{launching.cancel}** changes nothing. Memory is predicted while you type (`~`), then
the engine is
asked.
"""
    BINDINGS = bindings("launching")
    TYPING = True
    DEFAULT_CSS = """
    LaunchDialog {
        & .launch-scroll { height: auto; scrollbar-size: 1 1; }
        & #presets { margin: 0 0 0 17; }
        & .launch-memory { height: 1; margin: 1 0 0 0; color: $dim; }
        & .launch-remark {
            height: 1;
            color: $dim;
            &.-wrong { height: auto; max-height: 3; color: $bad; }
        }
    }
    """

    def __init__(
        self, editor: PlanEditor, cluster: ClusterService, form: LaunchForm
    ) -> None:
        super().__init__()
        self._editor = editor
        self._cluster = cluster
        self._form = form
        self._wanted: LaunchSettings | None = None
        self._candidate: Plan | None = form.plan
        """The plan these settings make; None until the controller answers."""
        self._applying = False
        texts = form.texts(LaunchSettings.of(form.plan))
        self._rows = [
            LaunchRow(name, label, _field(name, texts[name]))
            for name, label in FIELDS.items()
        ]
        self._presets = OptionStrip(form.presets(), texts["ctx_size"], id="presets")
        self._table = LoadTable()
        self._table.headed = True
        self._memory = Static("", classes="launch-memory", markup=False)
        self._remark = Static("", classes="launch-remark", markup=False)

    def compose(self) -> ComposeResult:
        keys = ("launching.apply", "applies"), ("launching.cancel", "cancels")
        with self.frame("Launch settings", *keys) as box:
            box.styles.width = WIDTH
            with VerticalScroll(classes="launch-scroll", can_focus=False):
                for row in self._rows:
                    yield row
                    if row.key == "ctx_size":
                        yield self._presets
                yield self._memory
                yield self._table
            yield self._remark
            yield self.buttons()

    def on_mount(self) -> None:
        self._rows[0].field.focus()
        self._read()

    def on_resize(self, event: events.Resize) -> None:
        most = event.size.height * 9 // 10 - ROWS_AROUND
        self.query_one(".launch-scroll").styles.max_height = most

    @on(Input.Changed)
    @on(OptionStrip.Changed)
    def _changed(self, message: Input.Changed | OptionStrip.Changed) -> None:
        message.stop()
        if isinstance(message, OptionStrip.Changed) and message.strip is self._presets:
            self._rows[0].field.value = self._presets.value
        self._read()

    @on(Input.Submitted)
    @on(Button.Pressed, "#apply")
    def action_apply(self) -> None:
        wrong = [row for row in self._rows if row.has_class("-wrong")]
        if wrong:
            wrong[0].field.focus()
            return
        if self._wanted is None:  # Asked in vain before.
            self._read()
        self._applying = True
        if self._candidate is not None:
            self.dismiss(self._candidate)

    @on(Button.Pressed, "#reset")
    def _reset(self) -> None:
        texts = self._form.texts(LaunchSettings.of(self._form.plan).reset())
        for row in self._rows:
            row.field.value = texts[row.key]
        self._read()

    def _read(self) -> None:
        texts = {row.key: row.field.value for row in self._rows}
        self._presets.value = texts["ctx_size"].strip()
        reading, hints = self._form.read(texts), self._form.hints(texts)
        for row in self._rows:
            row.say(hints.get(row.key, ""), reading.wrong.get(row.key, ""))
        if reading.settings != self._wanted or reading.settings is None:
            self._wanted = reading.settings
            self._take_up(reading.settings)

    def _take_up(self, settings: LaunchSettings | None) -> None:
        """Find the plan of new settings; drop the request for the last ones."""
        self._applying = False
        self._table.stale = True
        self._say("")
        self.workers.cancel_group(self, "asking")
        if settings is None:
            self._candidate = None
            self._memory.update("memory: fix the field above first")
        elif settings.needs_proposal(self._form.plan):
            self._candidate = None
            self._memory.update("memory: asking for a split over these workers…")
            self._propose(settings)
        else:
            self._show(settings.applied(self._form.plan))

    @work(group="asking", exclusive=True, exit_on_error=False)
    async def _propose(self, settings: LaunchSettings) -> None:
        """Other workers: only the controller can tell which, and their layers."""
        await asyncio.sleep(ASK_AFTER_S)
        plan = self._form.plan
        try:
            proposed = await self._cluster.propose(
                Ask(
                    model=plan.model,
                    workers=settings.workers,
                    peers=other_machines(plan),
                    head=plan.head,
                    exclude=excluded(plan),
                    worker_threads=settings.worker_threads,
                    ctx_size=settings.ctx_size,
                    server=settings.server,
                    extra_args=settings.extra_args,
                )
            )
        except DllmError as error:
            self._applying, self._wanted = False, None
            self._memory.update("memory: unknown")
            self._say(str(error), wrong=True)
            return
        self._show(with_threads_of(proposed, settings.applied(plan)))

    def _show(self, plan: Plan) -> None:
        self._candidate = plan
        if self._applying:
            self.dismiss(plan)
            return
        edit = self._editor.drawn(plan)
        self._draw(edit)
        if edit is not None and not edit.is_settled:
            self._ask(plan)

    @work(group="asking", exclusive=True, exit_on_error=False)
    async def _ask(self, plan: Plan) -> None:
        # Not by a timer: a stopped timer's callback may still come.
        await asyncio.sleep(ASK_AFTER_S)
        try:
            memory = await self._cluster.memory(plan)
        except DllmError as error:
            note = str(error)
        else:
            note = memory.note
            if not note:
                self._editor.settle(plan, memory)
        self._draw(self._editor.drawn(plan))
        self._say(note)

    def _draw(self, edit: Edit | None) -> None:
        self._table.edit, self._table.stale = edit, False
        self._memory.update(_memory_text(edit))

    def _say(self, text: str, *, wrong: bool = False) -> None:
        self._remark.update(safe(text))
        self._remark.set_class(wrong, "-wrong")


def _field(name: str, text: str) -> Input | OptionStrip:
    if name in STRIPS:
        return OptionStrip(STRIPS[name], text, id=name)
    if name in EXAMPLES:
        return LineInput(text, placeholder=EXAMPLES[name], id=name)
    placeholder = "automatic" if name in OPTIONAL else ""
    return NumberInput(text, placeholder=placeholder, id=name)


def _memory_text(edit: Edit | None) -> str:
    if edit is None:
        return "memory: unknown"
    least, fits = least_of(edit.loads), FIT[not edit.misfits]
    kv = told(format_bytes(sum(load.kv_bytes for load in edit.loads)), least)
    total = told(format_bytes(sum(load.total_bytes for load in edit.loads)), least)
    return f"memory {WHOSE[least]}: {total}, KV cache {kv} of it · {fits}"
