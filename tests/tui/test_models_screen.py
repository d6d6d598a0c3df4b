"""The Models screen and the model picker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import DataTable, Input

from backends.errors import ControllerError, ModelError, UsageError
from backends.state import ClusterSnapshot
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.fake_models import GIB, ModelsCluster, model
from tests.tui.flowing import dialog
from tests.tui.helpers import burst, resize, screen_text, toasts, until
from tests.tui.stages import ScreenStage, Stage
from tui.screens.models.picker import ModelPicker
from tui.screens.models.screen import ModelDetail, ModelsScreen
from tui.screens.models.table import ModelTable
from tui.widgets.inputs import FilterBar

GLM = model("GLM-4.7-Flash-Q4_K_M", 16.9)
QWEN = model("Qwen3-Coder-30B", 18.4, source="huggingface")
OSS = model("gpt-oss-120b [mxfp4]", 59.0)
BROKEN = model("broken", 0.1, problem="not a GGUF file")


class Models(ScreenStage):
    """The Models screen of a cluster."""

    def __init__(self, cluster: ModelsCluster) -> None:
        self.models = ModelsScreen(cluster, poll_s=0.05)
        super().__init__(self.models)

    @property
    def table(self) -> ModelTable:
        return self.models.query_one(ModelTable)

    def names(self) -> list[str]:
        rows = range(self.table.row_count)
        cells = [self.table.get_row_at(row)[0].plain for row in rows]
        return [cell[2:].partition(" · ")[0].strip() for cell in cells]


@pytest.fixture
def cluster() -> ModelsCluster:
    return ModelsCluster(QWEN, BROKEN, GLM, OSS)


async def listed(app: Models, pilot: Pilot[None], count: int = 4) -> None:
    await until(pilot, lambda: app.models.is_mounted and app.table.row_count == count)


@asynccontextmanager
async def listing(
    cluster: ModelsCluster, size: tuple[int, int] = (120, 36)
) -> AsyncIterator[tuple[Models, Pilot[None]]]:
    app = Models(cluster)
    async with app.run_test(size=size) as pilot:
        await listed(app, pilot)
        yield app, pilot


async def test_what_is_known_is_listed_and_columns_go_before_names(
    cluster: ModelsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listing(cluster, (160, 40)) as (app, pilot):
        assert app.names() == [GLM.name, OSS.name, QWEN.name, "broken"]
        shown = screen_text(app)
        assert "broken · not a GGUF file" in shown
        assert "huggingface" in shown
        assert "128k" in shown
        assert "4 models · 94.4 GiB" in shown
        assert len(app.table.column_keys) == 7
        await pilot.press("j")
        await resize(pilot, 60, 20)
        await until(pilot, lambda: app.table.column_keys == ["name", "quant", "size"])
        assert app.table.pointed == OSS
        assert GLM.name in screen_text(app)
        updated: list[object] = []
        monkeypatch.setattr(
            app.table, "update_cell", lambda *args, **_: updated.append(args)
        )
        app.table.show_models(cluster.files)
        assert updated == []
        grown = replace(GLM, size_bytes=20 * GIB)
        app.table.show_models((grown, *cluster.files[3:]))
        assert [args[:2] for args in updated] == [(GLM.path, "size")]  # type: ignore[index]


async def test_the_model_pointed_at_is_copied_used_and_kept_in_any_order(
    cluster: ModelsCluster,
) -> None:
    async with listing(cluster) as (app, pilot):
        app.models.show_snapshot(ClusterSnapshot(plan=scenes.HOMELAB_PLAN))
        await until(pilot, lambda: f"● {GLM.name}" in screen_text(app))
        await pilot.press("y")
        assert app.clipboard == GLM.path
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.chosen)
        await pilot.press("G", "enter")
        refusal = "broken cannot be used: not a GGUF file."
        await until(pilot, lambda: refusal in app.said)
        assert app.chosen == [OSS.path]
        await pilot.press("k")
        assert app.table.pointed == QWEN
        await pilot.click(DataTable, offset=(3, 0))
        await until(pilot, lambda: app.table.order.reverse)
        assert app.names() == [QWEN.name, OSS.name, GLM.name, "broken"]
        while app.table.order.column != "size":
            await pilot.press("o")
        assert app.names() == [GLM.name, QWEN.name, OSS.name, "broken"]
        await pilot.press("O")
        assert app.names() == [OSS.name, QWEN.name, GLM.name, "broken"]
        assert app.table.pointed == QWEN
        assert "▼size" in screen_text(app)


async def test_the_filter_is_fuzzy_and_escape_clears_it(cluster: ModelsCluster) -> None:
    async with listing(cluster) as (app, pilot):
        await burst(pilot, "slash", *"zzz")
        await until(pilot, lambda: "No model matches “zzz”." in screen_text(app))
        await pilot.press("escape")
        await listed(app, pilot)
        await burst(pilot, "slash", *"q3c")
        await listed(app, pilot, 1)
        assert "1 of 4 models" in screen_text(app)
        await pilot.press("enter")
        assert app.focused is app.table
        await pilot.press("escape")
        await listed(app, pilot)
        await pilot.press("escape")
        assert app.backs == 1


async def test_rescanning_shows_that_it_does_and_what_it_finds(
    cluster: ModelsCluster,
) -> None:
    async with listing(cluster) as (app, pilot):
        # Whoever comes to the screen is shown what has come since.
        assert cluster.called("catalogue") == [True]
        await pilot.press("j")
        cluster.scanning = True
        await pilot.press("r")
        await until(pilot, lambda: "scanning…" in screen_text(app))
        assert cluster.called("catalogue")[:2] == [True, True]
        cluster.files = (*cluster.files, model("Aardvark-1B", 1))
        await listed(app, pilot, 5)
        assert app.table.pointed == OSS
        cluster.files = tuple(file for file in cluster.files if file != QWEN)
        cluster.scanning = False
        await listed(app, pilot, 4)
        await until(pilot, lambda: "scanning…" not in screen_text(app))
        assert app.table.pointed == OSS


async def test_details_are_read_for_the_model_under_the_cursor(
    cluster: ModelsCluster,
) -> None:
    async with listing(cluster) as (app, pilot):
        await until(pilot, lambda: "47 layers + output" in screen_text(app))
        await pilot.press("j")
        await until(pilot, lambda: "Pick another" in screen_text(app))
        await pilot.press("k")
        await until(pilot, lambda: "47 layers + output" in screen_text(app))
        assert cluster.called("inspect").count(GLM.path) == 1
        cluster.files = (replace(GLM, identity="other bytes"), OSS)
        await pilot.press("r")
        await listed(app, pilot, 2)
        await pilot.press("j", "k")
        await until(pilot, lambda: cluster.called("inspect").count(GLM.path) == 2)
        await resize(pilot, 80, 24)
        await until(pilot, lambda: "47 layers + output" in screen_text(app))
        detail = app.models.query_one(ModelDetail)
        await pilot.press("shift+down")
        await until(pilot, lambda: detail.scroll_y > 0)
        await pilot.press("shift+up")
        await until(pilot, lambda: detail.scroll_y == 0)


async def test_any_path_can_be_used_and_tab_completes_it(
    cluster: ModelsCluster,
) -> None:
    async with listing(cluster) as (app, pilot):
        await burst(pilot, "p", *"/nowhere.gguf", "enter")
        await until(pilot, lambda: "is not a GGUF file. Pick" in screen_text(app))
        assert app.chosen == []
        bar = app.models.query_one("#models-path", FilterBar)
        bar.query_one("Input").value = GLM.path  # type: ignore[attr-defined]
        await pilot.press("enter")
        await until(pilot, lambda: app.chosen == [GLM.path])
        assert not bar.display
        assert app.focused is app.table
        cluster.models |= {"/models/GLM-other.gguf": scenes.GLM}
        await burst(pilot, "p", *"/models/G", "tab")
        await until(pilot, lambda: bar.text == "/models/GLM-")
        await until(pilot, lambda: "GLM-other.gguf" in screen_text(app))
        await pilot.press("4", "tab")
        await until(pilot, lambda: bar.text == GLM.path)
        await until(pilot, lambda: "GLM-other.gguf" not in screen_text(app))
        cluster.errors["names_after"] = ControllerError(
            "The controller does not answer"
        )
        await pilot.press("tab")
        await until(pilot, lambda: "does not answer" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: app.chosen == [GLM.path] * 2)


async def test_a_download_is_refused_cancelled_or_done(cluster: ModelsCluster) -> None:
    cluster.downloads.clear()
    async with listing(cluster) as (app, pilot):
        bar = app.models.query_one("#models-get", FilterBar)
        cluster.errors["get_model"] = ModelError("o/n has several models: Q4 (1 GiB)")
        await burst(pilot, "g", *"o/n:Q", "enter")
        await until(pilot, lambda: "several models" in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: not bar.display and app.focused is app.table)
        del cluster.errors["get_model"]
        await burst(pilot, "g", *"pypi:n", "enter")
        await until(pilot, lambda: "94.0 MiB" in bar.note)
        await pilot.press("x")
        await until(pilot, lambda: not bar.display)
        assert "resumes" in app.said[-1]
        await burst(pilot, "g", *"pypi:tiny", "enter")
        await until(pilot, lambda: "0 % of 94.0 MiB" in bar.note)
        assert "x cancels" in bar.note
        assert app.focused is app.table
        await pilot.press("g")
        assert "already" in app.said[-1]
        cluster.downloads.set()
        await until(pilot, lambda: "Got m.gguf (pinned SHA-256)." in app.said)
        assert not bar.display
        assert len(cluster.called("catalogue")) == 2


async def test_a_repository_is_looked_at_before_a_download(
    cluster: ModelsCluster,
) -> None:
    cluster.downloads.clear()
    async with listing(cluster) as (app, pilot):
        for key in ("escape", ""):
            await burst(pilot, "g", *"o/n", "enter")
            await until(pilot, lambda: "reading the headers of 2" in screen_text(app))
            assert "4.0 GiB  ?" in screen_text(app)
            if key:
                await pilot.press(key)
                await until(pilot, lambda: app.focused is app.table)
                assert not cluster.called("get_model")
        cluster.downloads.set()
        await until(pilot, lambda: "all devices have" in screen_text(app))
        row = next(x for x in screen_text(app).splitlines() if "▸ Q4_K_M" in x)
        assert "yes" in row
        assert "32768" in row
        assert "~20.6 tok/s" in row
        assert "local/CPU 0–20, mini/MTL0 21–31 + output" in row
        await pilot.press("enter")
        await until(pilot, lambda: ("get_model", "o/n:Q4_K_M") in cluster.calls)
        await until(pilot, lambda: any("Got m.gguf" in said for said in app.said))
        cluster.errors["remote_models"] = ModelError(
            "o/n is gated", "Accept its terms."
        )
        await burst(pilot, "g", *"o/n", "enter")
        await until(pilot, lambda: "o/n is gated" in screen_text(app))


async def test_a_silent_controller_is_reported(cluster: ModelsCluster) -> None:
    cluster.errors["catalogue"] = ControllerError("The controller does not answer")
    app = Models(cluster)
    async with app.run_test(size=(120, 36)) as pilot:
        await until(pilot, lambda: app.troubles)
        assert app.troubles == ["The controller does not answer"]


# --- the picker ------------------------------------------------------------------


class Picking(Stage):
    """Asks for a model."""

    def __init__(self, cluster: ModelsCluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.picked: list[str | None] = []

    def ask(self) -> None:
        picker = ModelPicker(self.cluster, current=QWEN.path, poll_s=0.05)
        self.push_screen(picker, self.picked.append)

    @property
    def table(self) -> ModelTable:
        return self.screen.query_one(ModelTable)


async def offered(app: Picking, pilot: Pilot[None], count: int = 4) -> None:
    await until(pilot, lambda: isinstance(app.screen, ModelPicker))
    await until(pilot, lambda: app.table.row_count == count)


async def asked(app: Picking, pilot: Pilot[None]) -> None:
    app.picked.clear()
    app.ask()
    await offered(app, pilot)


@asynccontextmanager
async def picking(cluster: ModelsCluster) -> AsyncIterator[tuple[Picking, Pilot[None]]]:
    app = Picking(cluster)
    async with app.run_test(size=(80, 24)) as pilot:
        await asked(app, pilot)
        yield app, pilot


async def test_the_picker_filters_while_one_types_and_arrows_move(
    cluster: ModelsCluster,
) -> None:
    async with picking(cluster) as (app, pilot):
        await until(pilot, lambda: "looked in /" in screen_text(app))
        await burst(pilot, *"broken", "enter")
        await until(pilot, lambda: "It cannot be used" in screen_text(app))
        assert app.picked == []
        for keys, path in (
            (("escape",), None),
            (("enter",), QWEN.path),
            (("up", "enter"), OSS.path),
            ((*"flash", "enter"), GLM.path),
        ):
            await pilot.press(*keys[:-1])
            if path == GLM.path:
                await offered(app, pilot, 1)
            await pilot.press(keys[-1])
            await until(pilot, lambda: app.picked)
            assert app.picked == [path]
            await asked(app, pilot)


async def test_the_picker_takes_a_path_or_says_why_not(cluster: ModelsCluster) -> None:
    async with picking(cluster) as (app, pilot):
        await burst(pilot, *"/no.gguf")
        assert "Enter uses the file at this path, tab completes it" in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: "is not a GGUF file" in screen_text(app))
        await burst(pilot, *["backspace"] * 8, *GLM.path, "enter")
        await until(pilot, lambda: app.picked)
        assert app.picked == [GLM.path]
        cluster.models |= {"/models/GLM-other.gguf": scenes.GLM}
        await asked(app, pilot)
        typed = app.screen.query_one(Input)
        await burst(pilot, *"/mo", "tab")
        await until(pilot, lambda: typed.value == "/models/")
        await pilot.press("tab")
        await until(pilot, lambda: typed.value == "/models/GLM-")
        await until(pilot, lambda: "GLM-other.gguf" in screen_text(app))
        await pilot.press("4", "tab")
        await until(pilot, lambda: typed.value == scenes.GLM.path)
        await pilot.press("x", "tab")
        await until(pilot, lambda: "nothing there begins" in screen_text(app))
        await pilot.press("backspace", "enter")
        await until(pilot, lambda: app.picked)
        assert app.picked == [scenes.GLM.path]


async def test_deleting_asks_and_names_the_files(started: Started) -> None:
    theirs = replace(QWEN, path="mini:/models/q.gguf", held_by=("mini", "nuc"))
    cluster = ModelsCluster(theirs)
    async with started(cluster, wait=False) as (pilot, app, _):
        await pilot.press("6")
        await until(pilot, lambda: "1 model" in screen_text(app))
        await pilot.press("delete")
        await dialog(pilot)
        assert "17.0 GiB  /models/q.gguf" in screen_text(app)
        assert "Copies on nuc stay." in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen))
        assert not cluster.called("remove_model"), "Cancel comes first"
        await pilot.press("delete")
        await dialog(pilot)
        await pilot.press("y")
        await until(pilot, lambda: toasts(app))
        assert toasts(app) == [f"Deleted {QWEN.name} (17.0 GiB)."]
        assert cluster.called("remove_model") == [("mini", "/models/q.gguf")]
        did = [name for name, _ in cluster.calls]
        assert "catalogue" in did[did.index("remove_model") :], "it looks again"
        refusal = "GLM is in use: the cluster default runs it, or is to"
        cluster.errors["removal"] = UsageError(refusal, "Stop that first.")
        await pilot.press("delete")
        await until(pilot, lambda: refusal in toasts(app)[-1])
        assert isinstance(app.screen, ModelsScreen)
