"""Layers: what each layer of the edited plan holds, and the device that computes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from textual import on
from textual.actions import SkipAction
from textual.app import ComposeResult
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.strip import Strip
from textual.widgets import Static

from backends.errors import PlanError
from backends.split.experts import check_experts, with_given, with_split
from backends.split.layout import devices, move_layers
from backends.state import Plan
from backends.units import (
    format_bytes,
    format_count,
    format_difference,
    format_mean,
    format_ms,
    format_speed,
)
from tui.actions import bindings
from tui.app.console import console_of
from tui.app.frame import ConsoleScreen
from tui.app.messages import Copyable, Raw
from tui.dialogs.dialog import ChoiceDialog
from tui.model.best_choices import change
from tui.model.edit import Edit
from tui.model.editor import PlanEditor
from tui.model.names import device_label, letter
from tui.model.plan_words import speed_texts, verdict
from tui.screens.layers.table import (
    LayerRow,
    LayerTable,
    layer_rows,
    spans,
    taken_along,
)
from tui.widgets.keys import with_keys
from tui.widgets.panes import LIST_AND_DETAIL, PaneRow
from tui.widgets.row_list import Choice
from tui.widgets.safe_text import safe, safe_line
from tui.widgets.size_bars import fact, group_bytes, quant_bytes, size_bars
from tui.widgets.sources import predicted, told
from tui.widgets.strips import Drawn, StripWidget, fitting, line, resubtitle, retitle

NO_PLAN = (
    "No model is picked: {app.cluster} goes to Cluster, where {cluster.model} does."
)


class LayersSpeedLine(StripWidget):
    """The predicted speed, as much of it as fits."""

    texts: Drawn[tuple[str, ...]] = Drawn(())
    """The longest first."""

    def draw(self, width: int, height: int) -> list[Strip]:
        return [line([(fitting(self.texts, width), self.palette.dim)], width)]


class LayersScreen(ConsoleScreen):
    """The layers of the edited plan, and the sums of those selected."""

    AUTO_FOCUS = "LayerTable"
    HELP = LayerTable.HELP
    BINDINGS = bindings("layers")
    LAYOUTS = LIST_AND_DETAIL

    DEFAULT_CSS = """
    LayersScreen {
        & #layers-body { height: 1fr; layout: horizontal; }
        & #layers-list { width: 1fr; height: 1fr; }
        & #layers-detail { width: 42; height: 1fr; padding: 0 1; scrollbar-size: 1 1; }
        & #layers-detail > Static { height: auto; margin: 0 0 1 0; }
        & #layers-empty { display: none; height: 1fr; padding: 1 2; color: $dim; }
        & .-empty LayerTable, & .-empty #layers-speed { display: none; }
        & .-empty #layers-empty { display: block; }
        & #layers-speed { height: 1; padding: 0 1; }
        & #layers-verdict { height: auto; padding: 0 1; }
        &.-narrow #layers-body { layout: vertical; }
        &.-narrow #layers-detail { width: 1fr; height: 9; }
        &.-narrow.-short #layers-detail { display: none; }
        &.-as-below #layers-body { layout: vertical; }
        &.-as-below #layers-detail { width: 1fr; height: 12; }
        &.-as-list #layers-detail { display: none; }
    }
    """

    def __init__(self, editor: PlanEditor) -> None:
        super().__init__()
        self._editor = editor
        self._edit: Edit | None = None
        self._gives_experts = False
        """True if experts are given to devices, and not whole layers."""
        self.table = LayerTable(id="layers-table")
        self._empty = Static(id="layers-empty", markup=False)
        self._speed = LayersSpeedLine(id="layers-speed")
        self._verdict = Static(id="layers-verdict", markup=False)
        self._list = Container(id="layers-list", classes="pane -empty")
        self._detail = VerticalScroll(
            id="layers-detail", classes="pane", can_focus=False
        )
        self._sizes = Static(markup=False)
        self._prices = Static(markup=False)
        self._devices = Static(markup=False)

    def compose_body(self) -> ComposeResult:
        self._list.border_title = "Layers"
        with PaneRow(least=(40, 30), id="layers-body"):
            with self._list:
                yield self.table
                yield self._empty
                yield self._speed
                yield self._verdict
            with self._detail:
                yield self._sizes
                yield self._prices
                yield self._devices

    def show_edit(self) -> None:
        edit = self._editor.edit
        if edit is None:
            self._list.set_class(True, "-empty")
            self._empty.update(with_keys(self.app, NO_PLAN))
        elif edit != self._edit:
            self._list.set_class(False, "-empty")
            self.table.show(layer_rows(edit))
            self._give_only(experts=self._gives_experts and has_experts(edit))
            self._devices.update(Content("\n").join(self._device_lines(edit)))
        self._edit = edit
        told = self._editor.refusals
        self.refusals = {f"layers.{verb}": why for verb, why in told.items()}
        self._show_selected()
        snapshot = self._editor.snapshot
        self._speed.texts = speed_texts(edit, snapshot) if edit else ()
        said = verdict(self._edit, self._editor.plan, self._editor.snapshot)
        text = with_keys(self.app, safe(said.text))
        self._verdict.update(Content.styled(text, f"${said.tone}"))

    @on(LayerTable.Pointed)
    def _pointed(self, event: LayerTable.Pointed) -> None:
        event.stop()
        self._show_selected()

    def _show_selected(self) -> None:
        rows = self.table.selected
        if self._edit is None or not rows:
            self._detail.border_title = "Selected"
            self._sizes.update("")
            self._prices.update("")
            return
        retitle(self._detail, spans(rows))
        resubtitle(self._list, _marked_text(rows) if self.table.marking else "")
        self._sizes.update(Content("\n").join(_size_lines(rows)))
        self._prices.update(Content("\n").join(self._price_lines(self._edit, rows)))

    def _device_lines(self, edit: Edit) -> Iterator[Content]:
        yield Content.styled("devices", "$dim")
        for load in edit.loads:
            mark = edit.mark(load.device)
            held = format_count(load.n_layers, "layer")
            size = format_bytes(load.total_bytes)
            tone = "$warn" if load.device in edit.tight else ""
            tone = "$bad" if load.device in edit.misfits else tone
            yield Content.assemble(
                (f"{letter(mark)} ", f"$device-{mark % 8 + 1}"),
                safe_line(device_label(load.device)),
                (f"  {held} · {told(size, load.source)}", tone or "$dim"),
            )
        if forecast := edit.forecast:
            trips = format_mean(forecast.trips_per_token, "round trip")
            network = format_ms(sum(part.network_ms for part in forecast.parts))
            text = f"{predicted(trips)} a token, {predicted(network)}"
            yield Content("")
            yield Content.styled(text, "$dim")

    def _price_lines(self, edit: Edit, rows: list[LayerRow]) -> Iterator[Content]:
        """The round trips and the speed of a token, by the device they are given to."""
        if edit.forecast is None:
            return
        what = "experts to" if self._gives_experts else "given to"
        yield Content.styled(f"{what:<10} trips a token", "$dim")
        for mark, device in enumerate(edit.marks):
            there = None
            with suppress(PlanError):
                there = self._editor.drawn(self._given(edit, rows, device))
            if there is None or (forecast := there.forecast) is None:
                continue
            part = change(forecast.tok_per_s, edit.forecast.tok_per_s)
            speed = predicted(format_speed(forecast.tok_per_s))
            gain = f"  {format_difference(part)}" if part is not None else ""
            over = there.misfits
            yield Content.assemble(
                (f"{letter(mark)} ", f"$device-{mark % 8 + 1}"),
                (
                    f"{predicted(format_mean(forecast.trips_per_token)):>8}  {speed}",
                    "$dim",
                ),
                (gain, "$ok" if part and part > 0 else "$warn"),
                ("  over" if over else "", "$bad"),
            )
            given = {row.number for row in rows}
            if along := taken_along(edit.split, there.split, given, device):
                yield Content.styled(f"  and {along} with it", "$dim")

    def action_mark(self) -> None:
        self.table.mark(on=not self.table.marking)

    def action_unmark(self) -> None:
        if not self.table.marking:
            raise SkipAction
        self.table.mark(on=False)

    def action_extend(self, rows: int) -> None:
        self.table.extend(rows)

    def action_move(self, rows: int) -> None:
        self.table.move(rows)

    def action_pick(self) -> None:
        self.table.pick()

    def action_give(self, mark: int) -> None:
        if self._edit is not None and mark < len(self._edit.marks):
            self._give(self._edit.marks[mark])
        else:
            self.app.bell()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "experts":
            return has_experts(self._edit)
        if action == "give":
            marks = self._edit.marks if self._edit else ()
            return isinstance(parameters[0], int) and parameters[0] < len(marks)
        return super().check_action(action, parameters)

    def action_experts(self) -> None:
        self._give_only(experts=not self._gives_experts)
        self._show_selected()

    def _give_only(self, *, experts: bool) -> None:
        self._gives_experts = experts
        retitle(self._list, "Layers: experts" if experts else "Layers")
        self.refresh_bindings()

    def _given(self, edit: Edit, rows: list[LayerRow], device: str) -> Plan:
        if not self._gives_experts:
            split = move_layers(edit.split, rows[0].number, rows[-1].number, device)
            return with_split(edit.plan, split)
        layers = [row.number for row in rows if row.layer and row.layer.groups.experts]
        if not layers:
            raise PlanError(f"There are no experts in {spans(rows)}")
        plan = with_given(edit.plan, layers, device)
        check_experts(plan, edit.model)
        return plan

    def _give(self, device: str) -> None:
        edit, rows = self._editor.edit, self.table.selected
        if edit is None or not rows or device not in devices(edit.split):
            return
        self.table.mark(on=False)
        what = f"experts of {spans(rows)}" if self._gives_experts else spans(rows)
        try:
            plan = self._given(edit, rows, device)
        except PlanError as error:
            console_of(self).tell(str(error), "warning")
            return
        if plan == edit.plan:
            console_of(self).tell(f"{what} stays on {device}", keep=False)
        else:
            self._editor.put(plan, edit.model)

    @on(LayerTable.Picked)
    def _picked(self, event: LayerTable.Picked) -> None:
        event.stop()
        if self._edit is not None:
            console_of(self).open(self._ask(self._edit), group="layers")

    async def _ask(self, edit: Edit) -> None:
        choices = [
            Choice(device, device_label(device), letter(mark).lower())
            for mark, device in enumerate(edit.marks)
        ]
        title = f"Give {spans(self.table.selected)} to"
        text = "Layers between them and the device's own go there too."
        if self._gives_experts:
            title, text = title.replace("Give", "Give experts of"), ""
        chosen = await self.app.push_screen_wait(ChoiceDialog(title, text, choices))
        if chosen is not None:
            self._give(chosen)

    def raw(self) -> Raw | None:
        row = self.table.pointed
        if row is None or self._edit is None:
            return super().raw()
        if row.layer is None:
            return Raw("the model", self._edit.model)
        return Raw(f"layer {row.name}", row.layer)

    @property
    def subject(self) -> str:
        rows = self.table.selected
        return spans(rows) if rows else ""

    def copyable(self) -> Copyable | None:
        edit = self._edit
        if edit is None:
            return None
        counts = ",".join(map(str, edit.counts))
        return Copyable(what="the split", text=counts)


def has_experts(edit: Edit | None) -> bool:
    return edit is not None and any(one.groups.experts for one in edit.model.layers)


def _marked_text(rows: list[LayerRow]) -> str:
    return f"{format_count(len(rows), 'layer')} marked"


def _size_lines(rows: list[LayerRow]) -> Iterator[Content]:
    layers = [row.layer for row in rows if row.layer is not None]
    output = sum(row.n_bytes for row in rows if row.layer is None)
    yield fact("size", format_bytes(sum(row.n_bytes for row in rows)))
    if kv := sum(row.kv_bytes for row in rows):
        yield fact("KV cache", predicted(format_bytes(kv)))
    yield from size_bars(group_bytes(layers) | {"output": output})
    for name, n_bytes in quant_bytes(layers).most_common():
        yield fact(name, f"{format_bytes(n_bytes):>20}")
