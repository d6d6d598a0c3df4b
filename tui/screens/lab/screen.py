"""Lab: pretend that links are slower than they are, and see what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import chain
from pathlib import Path

from msgspec.structs import replace
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import Static

from backends.bench.sweep_report import X_TITLE
from backends.errors import DllmError
from backends.link.figures import why_no_link
from backends.state import ClusterSnapshot, Forecast, Lab, Link
from backends.state.sweeps import Sweep, SweepRequest
from backends.units import MS_PER_S
from tui.actions import bindings
from tui.api.services import ClusterService
from tui.app.console import console_of
from tui.app.frame import NARROW_BELOW, SHORT_BELOW, ConsoleScreen
from tui.app.messages import Copyable, Raw
from tui.model.facts import device_marks
from tui.model.quantities import acceptance_text
from tui.screens.lab.links import LabWishes, LinkBlock, PresetList, preset_named
from tui.screens.lab.speed import (
    Picture,
    Samples,
    SpeedPane,
    Speeds,
    lab_forecast,
    links_own_ms,
    total_added_ms,
    with_predicted_trips,
)
from tui.screens.lab.sweep import (
    HOW,
    SweepPlot,
    progress_text,
    save_sweep,
    sweep_choices,
)
from tui.widgets.keys import with_keys
from tui.widgets.panes import BALANCED, PaneLayout, PaneRow
from tui.widgets.safe_text import safe_line
from tui.widgets.strips import resubtitle, retitle
from tui.widgets.throttle import Throttle

GAP_S = 0.1
"""Between two changes sent while the user drags a thumb."""
HINT = "A key applies a preset to the link marked ▸; {lab.all} applies it to all."
ADVICE = "Nothing is measured yet: ask something, or {lab.sweep} sweeps a link."
SWEEP_GOES = "{lab.end_sweep} stops"
SWEEP_ENDED = "{lab.export} saves SVG and CSV · {lab.end_sweep} closes"
NEED_LINKS = frozenset(
    {"sweep", "put", "put_on_all", "clear", "clear_all", "focus_slider"}
)
BLOCK_ROWS = 4
BORDER_ROWS = 2
TALL_FROM = 32
LINKS = PaneLayout("links", "links alone")
SIDE_ROWS = 8
"""The presets, what they are put on, and the border."""


class LabScreen(ConsoleScreen):
    """Three sliders per link, and the speed they make."""

    AUTO_FOCUS = "Slider"

    HELP = """\
## Lab

Makes links **worse than they are**, live, in the relay: latency and jitter each way,
and a bandwidth limit. The cluster goes on; clearing makes it as it was. Links stay
slow whatever is launched next, until they are cleared or the cluster is stopped. What
`dllm-tui links slow` sets shows here as well.

Drag a thumb, use the arrows, or press **{slider.set:or}**, type a
number and press it again (0 MB/s: no limit).

**{lab.sweep}** sweeps a link: from 0 to 50 ms each way, while the model answers, over
the predicted curve with its band. **{lab.export}** then saves it as SVG and CSV.

**measured** is the speed now, or of the last answer, once it is of the time since the
last change alone. **predicted** is the speed measured with the least delay, and what
the delays set now add to each token; before any answer, the Split pane's prediction.
A token pays a link's latency twice per round trip; where several share one, as
with a draft, each pays its part. The frame of the links has acceptance and speed, and
the speed without a draft under the same lab, once both were measured.
"""

    BINDINGS = bindings("lab")
    LAYOUTS = (BALANCED, LINKS)

    DEFAULT_CSS = """
    LabScreen {
        & #lab-body { height: 1fr; }
        & #lab-top { layout: horizontal; height: 10; }
        & #lab-links { width: 1fr; height: 1fr; scrollbar-size-vertical: 1; }
        & #lab-side { width: 52; height: 1fr; padding: 0 1; }
        & #lab-hint { color: $dim; margin: 1 2 0 2; }
        &.-tall LinkBlock { margin: 0 0 1 0; }
        &.-tall LinkBlock:last-of-type { margin: 0; }
        & #lab-row { display: none; height: 1; padding: 0 2; }
        & #lab-sweep { display: none; height: 1fr; padding: 0 1; }
        & #sweep-said { height: 1; }
        &.-swept #lab-sweep { display: block; }
        &.-swept SpeedPane { display: none; }
        & #lab-empty { display: none; height: 1fr; padding: 1 2; color: $dim; }
        &.-empty #lab-body { display: none; }
        &.-empty #lab-empty { display: block; }
        &.-narrow #lab-side { display: none; }
        &.-narrow #lab-row { display: block; }
        &.-as-links SpeedPane { display: none; }
    }
    """

    def __init__(
        self,
        marks: Callable[[], Sequence[str]] = tuple,
        cluster: ClusterService | None = None,
        forecast: Callable[[], Forecast | None] = lambda: None,
    ) -> None:
        super().__init__()
        self._marks = marks
        self._forecast = forecast
        self._cluster = cluster
        self._sweep: Sweep | None = None
        self._recorded: Sweep | None = None
        self._sweeping = False
        self._wishes = LabWishes(time.monotonic)
        self._told: tuple[str | None, Lab | None] = (None, None)
        self._telling = Throttle(self, GAP_S, self._send)
        self._samples = Samples()
        self._snapshot: ClusterSnapshot | None = None
        self._blocks: dict[str, LinkBlock] = {}
        self._current = ""
        self._links_pane = VerticalScroll(
            id="lab-links", classes="pane", can_focus=False
        )
        self._presets = PresetList()
        self._row = PresetList(id="lab-row")
        self._speed = SpeedPane()
        self._sweep_plot = SweepPlot()
        self._sweep_said = Static(id="sweep-said", markup=False)
        self._sweep_pane = Vertical(id="lab-sweep", classes="pane")

    def compose_body(self) -> ComposeResult:
        self._links_pane.border_title = "Links"
        side = Vertical(id="lab-side", classes="pane")
        side.border_title = "Presets"
        with Vertical(id="lab-body"):
            with PaneRow(least=(48, 30), id="lab-top"):
                yield self._links_pane
                with side:
                    yield self._presets
                    yield Static(with_keys(self.app, HINT), id="lab-hint", markup=False)
            yield self._row
            yield self._speed
            with self._sweep_pane:
                yield self._sweep_said
                yield self._sweep_plot
        yield Static(id="lab-empty", classes="pane", markup=False)

    def on_mount(self) -> None:
        self.query_one("#lab-empty").border_title = "Lab"
        self.set_class(not self._links, "-empty")
        self._sync()
        self._show()

    def show_snapshot(self, snapshot: ClusterSnapshot) -> None:
        super().show_snapshot(snapshot)
        if self._snapshot and self._snapshot.plan != snapshot.plan:
            self._samples = Samples()
        self._snapshot = snapshot
        self._samples.take(snapshot)
        if self.is_mounted:
            self._sync()
            # Else the edit is shown next, and all with it.
            if self.status_line.held:
                self._show()

    def show_edit(self) -> None:
        if self.is_mounted:
            self._show()

    def _sync(self) -> None:
        if [*self._blocks] != [link.worker for link in self._links]:
            self._rebuild()
        for link in self._links:
            block = self._blocks[link.worker]
            if not block.dragging and self._wishes.adopt(link):
                block.show_lab(self._wishes.labs[link.worker])

    def _rebuild(self) -> None:
        self._links_pane.remove_children()
        self._blocks = {link.worker: LinkBlock(link.worker) for link in self._links}
        self._wishes.forget(set(self._blocks))
        self._links_pane.mount(*self._blocks.values())
        self.set_class(not self._blocks, "-empty")
        if self._current not in self._blocks:
            self._current = next(iter(self._blocks), "")
        if self._current:
            current = self._blocks[self._current]
            self.call_after_refresh(current.latency.focus)
        self._arrange()

    def _show(self) -> None:
        plan = self._snapshot.plan if self._snapshot else None
        marks = device_marks(plan, self._marks())
        for link in self._links:
            block = self._blocks[link.worker]
            current = link.worker == self._current
            block.show_link(link, marks.get(link.worker, 0), current=current)
        if self._snapshot:
            why = why_no_link(self._snapshot)
            self.query_one("#lab-empty", Static).update(why)
            acceptance = acceptance_text(self._snapshot.speed.acceptance)
            resubtitle(self._links_pane, acceptance)
        labs = {worker: block.lab for worker, block in self._blocks.items()}
        self._presets.lab = self._row.lab = labs.get(self._current)
        samples = self._samples
        own = samples.base.own_ms if samples.base is not None else None
        if own is None or own <= 0:
            own = links_own_ms(self._links)
        # Before any answer all is predicted, as in the Split pane.
        told = self._forecast() if own is None else None
        own = MS_PER_S / told.tok_per_s if told else own
        links = [with_predicted_trips(link, told) for link in self._links]
        added, latest = total_added_ms(links, labs), samples.latest
        speeds = Speeds(
            predicted=lab_forecast(links, labs, own),
            measured=latest.tok_per_s if latest else None,
            plain=lab_forecast(links, {}, own),
            added_ms=added,
        )
        advice = with_keys(self.app, ADVICE)
        points = tuple(samples.points)
        self._speed.show(speeds, Picture(own, added, points, latest, advice))

    @property
    def _links(self) -> tuple[Link, ...]:
        return self._snapshot.links if self._snapshot else ()

    def on_resize(self) -> None:
        self._arrange()

    def _arrange(self) -> None:
        height = self.app.size.height
        gaps = max(len(self._blocks) - 1, 0) if height >= TALL_FROM else 0
        needed = len(self._blocks) * BLOCK_ROWS + gaps + BORDER_ROWS
        if self.app.size.width >= NARROW_BELOW:
            needed = max(needed, SIDE_ROWS + BORDER_ROWS)
        most = BLOCK_ROWS + BORDER_ROWS if height < SHORT_BELOW - 2 else height // 2
        whole = self.pane_layout == LINKS
        self.query_one("#lab-top").styles.height = "1fr" if whole else min(needed, most)

    def arrange_panes(self) -> None:
        super().arrange_panes()
        self._arrange()

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        for block in event.widget.ancestors:
            if isinstance(block, LinkBlock):
                self._current = block.worker
                self._links_pane.scroll_to_widget(block, animate=False)
                self._show()

    def action_focus_slider(self, by: int) -> None:
        sliders = [*chain(*(block.sliders for block in self._blocks.values()))]
        if sliders:
            at = next((i for i, s in enumerate(sliders) if s.has_focus), -1)
            sliders[(at + by) % len(sliders)].focus()

    def action_put(self, preset: str) -> None:
        self._put(self._current, preset_named(preset).lab)

    def action_put_on_all(self) -> None:
        if self._current:
            self._put(None, self._blocks[self._current].lab)

    def action_clear(self) -> None:
        self._put(self._current, None)

    def action_clear_all(self) -> None:
        self._put(None, None)

    def action_undo(self) -> None:
        before = self._wishes.undo()
        if before is None:
            self.app.bell()
            return
        for worker, lab in before.items():
            if worker in self._blocks:
                self._blocks[worker].show_lab(lab)
                self._tell(worker, lab, final=True)
        self._show()

    # --- the sweep ------------------------------------------------------------

    def action_sweep(self) -> None:
        if self._sweeping or self._cluster is None:
            self.app.bell()
            return
        console_of(self).open(self._begin_sweep(self._cluster), group="sweep choice")

    async def _begin_sweep(self, cluster: ClusterService) -> None:
        from tui.dialogs.dialog import ChoiceDialog

        choices = sweep_choices([*self._blocks], self._current)
        dialog = ChoiceDialog("Sweep", HOW, choices)
        chosen = await self.app.push_screen_wait(dialog)
        if chosen not in (None, "cancel"):
            work = self._sweep_links(cluster, SweepRequest(worker=chosen or None))
            self.run_worker(work, group="sweep", exclusive=True, exit_on_error=False)

    async def _sweep_links(self, cluster: ClusterService, asked: SweepRequest) -> None:
        self._sweeping = True
        try:
            async with aclosing(cluster.sweep(asked)) as states:
                async for sweep in states:
                    self._show_sweep(sweep)
        except DllmError as error:
            console_of(self).report(error.failure())
        finally:
            self._sweeping = False
            if self._sweep is not None:
                self._show_sweep(replace(self._sweep, measuring=None))

    def _show_sweep(self, sweep: Sweep | None) -> None:
        self._sweep = self._sweep_plot.sweep = sweep
        self.set_class(sweep is not None, "-swept")
        if sweep is not None:
            retitle(self._sweep_pane, f"Sweep of {', '.join(sweep.workers)}")
            keys = SWEEP_GOES if self._sweeping else SWEEP_ENDED
            hint = f"{X_TITLE} · {with_keys(self.app, keys)}"
            resubtitle(self._sweep_pane, hint)
            self._sweep_said.update(safe_line(progress_text(sweep)))
        self.refresh_bindings()

    def show_recorded(self, sweep: Sweep | None, *, goes_on: bool) -> None:
        """Show the sweep of a record, until another is told of."""
        if sweep is not None and not goes_on:
            sweep = replace(sweep, measuring=None)
        if sweep != self._recorded:
            self._recorded = sweep
            self._show_sweep(sweep)

    def action_end_sweep(self) -> None:
        """Stop the sweep, which puts the lab back; else leave its result."""
        if self.leave_zoom():
            return
        if self._sweeping:
            self.workers.cancel_group(self, "sweep")
        else:
            self._show_sweep(None)

    def action_export_sweep(self) -> None:
        if self._sweep is None or not self._sweep.measured:
            self.app.bell()
            return
        console_of(self).attempt(self._export(self._sweep), group="sweep export")

    async def _export(self, sweep: Sweep) -> None:
        picture, values = await save_sweep(sweep, Path.cwd())
        console_of(self).tell(f"Wrote {picture} and {values.name}")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action in {"end_sweep", "export_sweep"}:
            return self._sweep is not None
        if action in NEED_LINKS:
            return bool(self._blocks)
        return super().check_action(action, parameters)

    def raw(self) -> Raw | None:
        here = [link for link in self._links if link.worker == self._current]
        return Raw(f"the link to {self._current}", here[0]) if here else super().raw()

    @property
    def subject(self) -> str:
        return f"Link to {self._current}" if self._current else ""

    def copyable(self) -> Copyable | None:
        if not self._current:
            return None
        command = command_of(self._current, self._blocks[self._current].lab)
        return Copyable("the command", command)

    @on(PresetList.Picked)
    def _preset_picked(self, event: PresetList.Picked) -> None:
        event.stop()
        self._put(self._current, event.preset.lab)

    @on(LinkBlock.Changed)
    def _link_changed(self, event: LinkBlock.Changed) -> None:
        event.stop()
        worker = event.block.worker
        self._wishes.want({worker: event.lab}, final=event.final)
        self._tell(worker, event.lab, final=event.final)
        self._show()

    def _put(self, worker: str | None, lab: Lab | None) -> None:
        chosen = [*self._blocks] if worker is None else [worker]
        if not self._blocks or not self._wishes.want(dict.fromkeys(chosen, lab)):
            return
        for name in chosen:
            self._blocks[name].show_lab(lab)
        self._tell(worker, lab, final=True)
        self._show()

    # --- telling the app ------------------------------------------------------

    def _tell(self, worker: str | None, lab: Lab | None, *, final: bool) -> None:
        self._told = worker, lab
        self._telling.ask(at_once=final)

    def _send(self) -> None:
        console_of(self).set_lab(*self._told)


def command_of(worker: str, lab: Lab | None) -> str:
    if lab is None:
        return f"dllm-tui links reset {worker}"
    rate = f" --rate {lab.rate_mb_s:g}MB/s" if lab.rate_mb_s else ""
    return (
        f"dllm-tui links slow {worker} --latency {lab.latency_ms:g}ms"
        f" --jitter {lab.jitter_ms:g}ms{rate}"
    )
