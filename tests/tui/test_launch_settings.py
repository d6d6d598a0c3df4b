"""The launch settings, a draft among them: typed, refused, undone, kept, launched."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import Input

from backends.errors import PlanError
from backends.split.device_memory import DeviceLoad, plan_loads
from backends.split.experts import dropped_text, parse_experts
from backends.split.layout import make_split
from backends.state import (
    Ask,
    DeviceMemory,
    FlashAttention,
    LayerRange,
    MemorySource,
    Plan,
    PlanMemory,
    ServerSettings,
    Speculation,
)
from tests.kit.console import Started
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.helpers import burst, resize, screen_text, settled, text_of, until
from tests.tui.scripted import ScriptedCluster
from tests.tui.snapshot_sizes import MakeApp
from tui.app.app import DllmApp
from tui.dialogs.help_and_events import HelpDialog
from tui.model.edit import Edit
from tui.model.files import recall
from tui.model.launch_settings import (
    LaunchSettings,
    differences,
    unusual,
    up_command,
    with_threads_of,
)
from tui.screens.cluster import launch_dialog
from tui.screens.cluster.launch_dialog import LaunchDialog
from tui.screens.cluster.split_pane import LoadTable, SplitPane
from tui.widgets.form_fields import OptionStrip

SIZE = (120, 36)
PLAN = scenes.DEMO_PLAN


def demo(*, serving: bool = False) -> ScriptedCluster:
    first = scenes.demo_serving() if serving else scenes.idle()
    return ScriptedCluster(first)


def plan_of(app: DllmApp) -> Plan:
    assert app.editor.plan is not None
    return app.editor.plan


def test_other_workers_keep_moved_experts_as_far_as_they_can() -> None:
    runs = LayerRange("worker1/CPU", 5, 5), LayerRange("worker2/CPU", 0, 0)
    before = replace(PLAN, experts=runs)
    split = make_split(PLAN.split.n_layer, ["local/CPU", "worker1/CPU"], [6, 7])
    one = replace(PLAN, workers=PLAN.workers[:1], split=split)
    after = with_threads_of(one, before)
    assert after.experts == runs[:1]
    head = (LayerRange("local/CPU", 8, 8),)
    assert with_threads_of(one, replace(PLAN, experts=head)).experts == head
    assert "worker2/CPU are with their layers" in dropped_text(before, after)


async def opened(pilot: Pilot[None]) -> LaunchDialog:
    """The dialog, opened by its key in the split."""
    await settled(pilot)
    pilot.app.query_one(SplitPane).focus_default()
    await pilot.press("p")
    await until(pilot, lambda: isinstance(pilot.app.screen, LaunchDialog))
    await pilot.pause()
    assert isinstance(pilot.app.screen, LaunchDialog)
    return pilot.app.screen


@asynccontextmanager
async def setting(
    started: Started, cluster: ScriptedCluster | None = None, **options: Any
) -> AsyncIterator[tuple[Pilot[None], DllmApp, LaunchDialog]]:
    """A console with a plan that does not run, its launch settings opened."""
    options |= {"initial_model": PLAN.model, "wait": False}
    async with started(cluster or demo(), **options) as (pilot, app, _):
        yield pilot, app, await opened(pilot)


@pytest.fixture
def _asks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_dialog, "ASK_AFTER_S", 0.02)


async def typed(pilot: Pilot[None], name: str, text: str) -> None:
    field = pilot.app.screen.query_one(f"#{name}", Input)
    field.focus()
    await until(pilot, lambda: field.has_focus)
    field.value = text
    await pilot.pause()


async def closed(pilot: Pilot[None], *keys: str) -> None:
    """Press the keys that close it."""
    await pilot.press(*keys)
    await until(pilot, lambda: not isinstance(pilot.app.screen, LaunchDialog))


def complaint(dialog: LaunchDialog, name: str) -> str:
    wrong = dialog.query_one(f"#row-{name} .launch-wrong")
    return str(wrong.render()) if wrong.display else ""


async def test_settings_by_key_are_one_step_and_are_launched(started: Started) -> None:
    cluster = demo()
    async with setting(started, cluster) as (pilot, app, _):
        # Fast: keys that come while others are worked on keep their places.
        await burst(pilot, *"2048", "down", "down", "right", "right", "down", "right")
        await pilot.press("down", "right", "right", "left", "down", "4", "down", "down")
        await closed(pilot, "3", "down", "5", "enter")
        expected = ServerSettings(
            cache_type_k="q8_0",
            cache_type_v="bf16",
            slots=4,
            flash_attention=FlashAttention.ON,
            threads=5,
        )
        plan = plan_of(app)
        assert (plan.ctx_size, plan.server) == (2048, expected)
        assert {worker.threads for worker in plan.workers} == {3}
        assert plan.split == PLAN.split
        assert "KV q8_0/bf16 · 4 slots · flash attention on" in screen_text(app)
        await pilot.press("l")
        await until(pilot, lambda: cluster.called("launch"))
        assert cluster.called("launch")[-1].server == expected
        assert cluster.called("launch")[-1].asked.worker_threads == 3


async def test_a_change_is_a_step_and_neither_escape_nor_the_same(
    started: Started,
) -> None:
    async with setting(started) as (pilot, app, dialog):
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpDialog))
        assert "Launch settings" in screen_text(app)
        await pilot.press("escape")
        assert app.screen is dialog
        await typed(pilot, "slots", "7")
        await closed(pilot, "escape")
        assert plan_of(app) == PLAN
        await opened(pilot)
        # From the values of a row as from a text field.
        await closed(pilot, "down", "enter")
        assert not app.editor.can_undo
        await opened(pilot)
        await typed(pilot, "slots", "2")
        await typed(pilot, "extra_args", "--temp 0.2")
        await closed(pilot, "f2")
        changed = plan_of(app)
        assert (changed.server.slots, changed.extra_args) == (2, ("--temp", "0.2"))
        await pilot.press("u")
        assert plan_of(app) == PLAN
        assert "2 slots" not in screen_text(app)
        await pilot.press("U")
        assert plan_of(app) == changed


async def test_the_mouse_does_it_too(started: Started) -> None:
    async with setting(started) as (pilot, app, dialog):
        strip = dialog.query_one("#cache_type_v", OptionStrip)
        column = text_of(strip).index("q8_0") + 1
        assert await pilot.click(strip, offset=(column, 0))
        presets = dialog.query_one("#presets", OptionStrip)
        assert await pilot.click(presets, offset=(text_of(presets).index("512"), 0))
        assert dialog.query_one("#ctx_size", Input).value == "512"
        assert await pilot.click("#apply")
        await closed(pilot)
        assert plan_of(app).server == ServerSettings(cache_type_v="q8_0")
        assert plan_of(app).ctx_size == 512
        dialog = await opened(pilot)
        assert await pilot.click("#reset")
        assert dialog.query_one("#cache_type_v", OptionStrip).value == "f16"
        assert dialog.query_one("#ctx_size", Input).value == "512"
        assert await pilot.click("#cancel")
        await closed(pilot)
        assert plan_of(app).server.cache_type_v == "q8_0"


WRONG = (
    ("ctx_size", "", "Context must be a whole number."),
    ("ctx_size", "8", "A context of 8 tokens is too small"),
    ("ctx_size", "999999999", "too large"),
    ("slots", "0", "0 slots cannot be had. Give 1 to 256"),
    ("workers", "16", "Give 0 to 15."),
    ("worker_threads", "0", "0 threads cannot be started"),
    ("threads", "5000", "5000 threads cannot be started"),
    ("extra_args", "--port 9", "--port cannot be given to llama-server"),
    ("extra_args", "-np 4", "-np has a field of its own above."),
    ("extra_args", "--alias 'a", "Unclosed quote."),
)


async def test_what_cannot_be_meant_is_said_under_its_field(started: Started) -> None:
    async with setting(started) as (pilot, app, dialog):
        texts = {row.key: row.field.value for row in dialog._rows}
        assert "automatic" in dialog.query_one("#threads", Input).placeholder
        assert not dialog.query_one("#slots", Input).placeholder
        for name, text, sentence in WRONG:
            await typed(pilot, name, text)
            assert sentence in complaint(dialog, name)
            dialog.query_one("#cancel").focus()
            await pilot.press("f2")
            assert app.screen is dialog
            assert dialog.focused is dialog.query_one(f"#{name}")
            await typed(pilot, name, texts[name])
            assert complaint(dialog, name) == ""
        # V needs flash attention where it is quantised.
        for name, moves in (("cache_type_v", 2), ("flash_attention", 2)):
            dialog.query_one(f"#{name}", OptionStrip).focus()
            await pilot.press(*["right"] * moves)
        await pilot.pause()
        assert "without flash attention" in complaint(dialog, "cache_type_v")
        await closed(pilot, "escape")
        assert plan_of(app) == PLAN


async def test_beside_an_error_no_figure_has_a_tick(started: Started) -> None:
    async with started() as (pilot, app, _):
        await pilot.press("p")
        await until(pilot, lambda: isinstance(app.screen, LaunchDialog))
        table = app.screen.query_one(LoadTable)
        await until(pilot, lambda: text_of(table).endswith(("✓", "~")))
        await pilot.press("1")
        await until(pilot, lambda: app.screen.query("LaunchRow.-wrong"))
        await until(pilot, lambda: not text_of(table).endswith(("✓", "~")))
        assert "memory: fix the field above first" in screen_text(app)
        await burst(pilot, "backspace", *"8192")
        await until(pilot, lambda: text_of(table).endswith(("✓", "~")))


@pytest.mark.usefixtures("_asks_soon")
async def test_memory_follows_changes_then_the_engine(started: Started) -> None:
    cluster = demo()
    cluster.memories = _engine_says
    async with setting(started, cluster) as (pilot, app, dialog):
        table = dialog.query_one(LoadTable)
        assert table.edit is not None
        before = sum(load.kv_bytes for load in table.edit.loads)
        cluster.calls.clear()
        dialog.query_one("#cache_type_k", OptionStrip).focus()
        await pilot.press("right", "right")
        predicted = sum(load.kv_bytes for load in _shown(table))
        assert before / 2 < predicted < before
        await until(pilot, lambda: cluster.called("memory"))
        assert cluster.called("memory")[-1].server.cache_type_k == "q8_0"
        await until(pilot, lambda: _shown(table)[0].source is MemorySource.ENGINE)
        assert "memory as the engine says" in screen_text(app)
        cluster.errors["memory"] = PlanError("The engine is busy")
        await pilot.press("right")
        assert "memory predicted" in screen_text(app)
        await until(pilot, lambda: "The engine is busy" in screen_text(app))


def _shown(table: LoadTable) -> tuple[DeviceLoad, ...]:
    assert table.edit is not None
    return table.edit.loads


def _engine_says(plan: Plan) -> PlanMemory:
    told = [load.memory for load in plan_loads(scenes.DEMO, plan)]
    source = MemorySource.ENGINE
    return PlanMemory(devices=tuple(replace(one, source=source) for one in told))


@pytest.mark.usefixtures("_asks_soon")
async def test_other_workers_are_the_controllers_to_deal_out(started: Started) -> None:
    cluster = demo()
    async with setting(started, cluster) as (pilot, app, _):
        await typed(pilot, "slots", "2")
        await typed(pilot, "workers", "3")
        # At once: the answer is waited for.
        await closed(pilot, "enter")
        plan = plan_of(app)
        names = [worker.name for worker in plan.workers]
        assert names == ["worker1", "worker2", "worker3"]
        assert plan.server.slots == 2
        assert cluster.called("propose_on")[-1] == (3, (), "local")
        cluster.errors["propose"] = PlanError("No room for 4 workers")
        await opened(pilot)
        await typed(pilot, "workers", "4")
        await until(pilot, lambda: "No room for 4 workers" in screen_text(app))
        assert "asking for a split" not in screen_text(app)
        assert plan_of(app) == plan
        del cluster.errors["propose"]
        await closed(pilot, "f2")
        assert len(plan_of(app).workers) == 4


async def test_what_runs_otherwise_than_it_is_set_is_said(started: Started) -> None:
    cluster = demo(serving=True)
    async with started(cluster, wait=False) as (pilot, app, _):
        await opened(pilot)
        await typed(pilot, "slots", "2")
        await typed(pilot, "extra_args", "--temp 0.2")
        await closed(pilot, "enter")
        said = "changed: l relaunches, u undoes · 2 slots, further arguments"
        assert said in screen_text(app)
        await pilot.press("u")
        assert "l relaunches" not in screen_text(app)


async def test_they_are_kept_for_the_next_start(
    make_app: MakeApp, memory_file: Path
) -> None:
    app = make_app(demo(), initial_model=PLAN.model)
    async with app.run_test(size=SIZE) as pilot:
        await opened(pilot)
        await typed(pilot, "slots", "2")
        await closed(pilot, "f2")
        kept = plan_of(app)
    assert recall(memory_file).plan_of("default") == kept
    again = make_app(demo())
    async with again.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: again.editor.plan is not None)
        assert plan_of(again) == kept
        dialog = await opened(pilot)
        assert dialog.query_one("#slots", Input).value == "2"


async def test_the_dialog_scrolls_where_there_is_little_room(started: Started) -> None:
    async with setting(started, size=(60, 18)) as (pilot, app, dialog):
        assert "Apply" in screen_text(app)
        await typed(pilot, "extra_args", "--port 9")
        await until(pilot, lambda: "cannot be given" in screen_text(app))
        assert "Apply" in screen_text(app)
        await typed(pilot, "ctx_size", "4096")
        await until(pilot, lambda: "cannot be given" not in screen_text(app))
        dialog.query_one("#extra_args", Input).focus()
        await until(pilot, lambda: "cannot be given" in screen_text(app))
        await resize(pilot, 80, 24)
        await until(pilot, lambda: "head threads" in screen_text(app))
        assert "Apply" in screen_text(app)
        assert dialog.is_current


def test_a_plan_as_the_command_that_launches_it() -> None:
    settings = ServerSettings(cache_type_k="q8_0", slots=4)
    plan = replace(PLAN, server=settings, extra_args=("--alias", "my model"))
    words = shlex.split(up_command(plan))
    assert words[:3] == ["dllm-tui", "up", PLAN.model]
    assert words[words.index("--cache-type-k") + 1] == "q8_0"
    assert words[words.index("--slots") + 1] == "4"
    assert words[-3:] == ["--", "--alias", "my model"]
    assert "--threads" not in words
    assert words[words.index("--relay") + 1] == "auto"
    assert "worker1/CPU=6" in words[words.index("--split") + 1]
    away = replace(people.SPREAD_PLAN, head="box")
    assert "--head box" in up_command(away)


def test_moved_experts_are_a_difference_and_told_with_the_settings() -> None:
    moved = replace(PLAN, experts=(LayerRange("worker1/CPU", 0, 1),))
    assert differences(moved, PLAN) == "experts of 0–1 on worker1/CPU"
    assert differences(PLAN, moved) == "experts with their layers"
    words = shlex.split(up_command(moved))
    assert parse_experts([words[words.index("--experts") + 1]]) == moved.experts
    assert unusual(moved) == "experts of 0–1 on worker1/CPU"


# --- a draft -----------------------------------------------------------------------


MIB = 1 << 20
GUESS = Speculation(
    type="draft-simple",
    model="/m/small.gguf",
    device="local/CPU",
    memory=(DeviceMemory(device="local/CPU", model_bytes=700 * MIB),),
)
DRAFTED = replace(
    PLAN, server=ServerSettings(draft="/m/small.gguf", draft_max=4), speculation=GUESS
)


class Settling(ScriptedCluster):
    """Settles every draft as the one above."""

    def _proposed(self, request: Ask) -> Plan:
        return replace(super()._proposed(request), speculation=GUESS)


def settling() -> Settling:
    return Settling(demo().now)


@pytest.mark.usefixtures("_asks_soon")
async def test_a_draft_is_settled_named_and_undone(started: Started) -> None:
    async with setting(started, settling()) as (pilot, app, _):
        await typed(pilot, "draft", "/m/small.gguf")
        await typed(pilot, "draft_max", "4")
        # At once: the answer is waited for.
        await closed(pilot, "f2")
        plan = plan_of(app)
        assert (plan.server, plan.speculation) == (DRAFTED.server, GUESS)
        assert plan.split == PLAN.split
        assert "draft small on CPU, 4 tokens" in screen_text(app)
        await pilot.press("u")
        assert plan_of(app) == PLAN
        assert "draft small" not in screen_text(app)


@pytest.mark.usefixtures("_asks_soon")
async def test_one_that_does_not_fit_is_said_in_the_dialog(started: Started) -> None:
    cluster = settling()
    async with setting(started, cluster) as (pilot, app, dialog):
        cluster.errors["propose"] = PlanError("other.gguf cannot draft for m.gguf")
        await typed(pilot, "draft", "other.gguf")
        await until(pilot, lambda: "cannot draft for" in screen_text(app))
        await typed(pilot, "draft_max", "65")
        assert "Give 1 to 64" in complaint(dialog, "draft_max")
        await closed(pilot, "escape")
        assert plan_of(app) == PLAN


def test_its_memory_is_shown_with_that_of_the_head() -> None:
    split = make_split(12, ["local/CPU", "worker1/CPU"], [3, 10])
    plain = replace(
        scenes.DEMO_PLAN, split=split, ctx_size=512, server=ServerSettings()
    )
    alone = Edit(plain, scenes.DEMO, devices=(), marks=())
    drafted = replace(alone, plan=replace(plain, speculation=GUESS))
    added = [
        both.total_bytes - one.total_bytes
        for both, one in zip(drafted.loads, alone.loads, strict=True)
    ]
    assert added == [700 * MIB, 0]
    measured = (DeviceMemory(device="local/CPU", model_bytes=5),)
    loaded = replace(drafted, measured=measured)
    assert loaded.loads[0].weight_bytes == 700 * MIB + 5


def test_only_what_its_memory_hangs_on_is_settled_anew() -> None:
    now = LaunchSettings.of(DRAFTED)
    assert not now.needs_proposal(DRAFTED)
    for server, ctx_size, anew in (
        (replace(DRAFTED.server, draft_max=5), now.ctx_size, False),
        (replace(DRAFTED.server, slots=2), now.ctx_size, True),
        (replace(DRAFTED.server, draft="none"), now.ctx_size, True),
        (DRAFTED.server, 512, True),
    ):
        wanted = LaunchSettings(ctx_size, server, now.workers, None, ())
        assert wanted.needs_proposal(DRAFTED) is anew
    plain = LaunchSettings(512, ServerSettings(), now.workers, None, ())
    assert plain.applied(DRAFTED).speculation is None


def test_a_draft_in_words() -> None:
    words = shlex.split(up_command(DRAFTED))
    assert words[words.index("--draft") + 1] == "/m/small.gguf"
    assert words[words.index("--draft-max") + 1] == "4"
    assert differences(DRAFTED, PLAN) == "draft small on CPU, 4 tokens"
    assert differences(PLAN, DRAFTED) == "no draft"
    tables = replace(DRAFTED, speculation=Speculation(type="ngram-map-k"))
    assert differences(tables, PLAN) == "draft ngram-map-k, 4 tokens"
