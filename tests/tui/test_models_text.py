"""The list of models as text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from textual.content import Content

from backends.state import ModelCatalogue
from tests.tui import scenes
from tests.tui.fake_models import model
from tui.screens.models.screen import ModelDetail, fact_lines
from tui.screens.models.table import (
    COLUMNS,
    cell_text,
    empty_text,
    looks_like_path,
    summary_text,
    tokens_text,
)
from tui.widgets.table import SortOrder, fitting_columns

SMALL = model("alpha-1B", n_layer=16, file_type="Q8_0", n_ctx_train=4096)
LARGE = model("Beta-Coder-70B", 40, n_layer=80, arch="llama")
BROKEN = model("aaa", problem="not a GGUF file")
ALL = (LARGE, BROKEN, SMALL)


def test_the_order_goes_through_the_columns_and_round() -> None:
    assert SortOrder("name").next(["name", "size"]) == SortOrder("size")
    assert SortOrder("size").next(["name", "size"]) == SortOrder("name")
    assert SortOrder("arch").next(["name", "size"]) == SortOrder("name")
    assert SortOrder("name").by("name") == SortOrder("name", True)
    assert SortOrder("name", True).by("size") == SortOrder("size")
    assert SortOrder("arch").next([]) == SortOrder("arch")


@given(st.integers(56, 200))
def test_columns_leave_room_for_names(width: int) -> None:
    columns = fitting_columns(COLUMNS, (), width)
    used = sum(column.width for column in columns) + 2 * len(columns) + 1
    assert columns[0].key == "name"
    assert width - used >= 28


@given(st.text(max_size=40), st.sampled_from(COLUMNS), st.integers(8, 40))
def test_cells_are_exactly_as_wide_as_their_column(
    name: str, column: object, width: int
) -> None:
    cell = cell_text(model(name), column, width, current=True)  # type: ignore[arg-type]
    assert cell.cell_len == width


def test_a_cell_that_is_too_narrow_ends_in_an_ellipsis() -> None:
    cell = cell_text(LARGE, COLUMNS[0], 10, current=False)
    assert cell.plain == "  Beta-Co…"


def test_who_alone_holds_a_model_stands_beside_its_name() -> None:
    cells = [
        cell_text(model("odd", held_by=holders), COLUMNS[0], 24, current=False).plain
        for holders in (("mini", "nuc"), ("local", "mini"), ())
    ]
    assert [cell.strip() for cell in cells] == ["odd · on mini, nuc", "odd", "odd"]


def test_contexts_and_paths_are_told_from_words() -> None:
    tokens = (0, 4096, 8192, 202_752)
    assert [tokens_text(one) for one in tokens] == ["—", "4096", "8k", "198k"]
    assert all(map(looks_like_path, ("/m/a.gguf", "~/a", "./a", "a.gguf")))
    assert not any(map(looks_like_path, ("qwen", "")))


def test_the_summary_counts() -> None:
    catalogue = ModelCatalogue(models=ALL)
    assert summary_text(catalogue, 3) == "3 models · 42.0 GiB"
    assert summary_text(catalogue, 1) == "1 of 3 models · 42.0 GiB"
    assert summary_text(ModelCatalogue(scanning=True), 0) == "0 models · scanning…"


def test_an_empty_list_says_why() -> None:
    assert empty_text(None) == "Looking for models…"
    assert empty_text(ModelCatalogue(scanning=True)) == "Looking for models…"
    unmatched = empty_text(ModelCatalogue(models=ALL), "x")
    assert "“x”" in unmatched
    assert "{models.get}" in unmatched
    nothing = empty_text(ModelCatalogue(folders=("/a", "/b")))
    assert "· /a\n· /b" in nothing
    assert "model_dirs" in nothing
    assert "dllm-tui up PATH" in nothing


def test_details_name_what_the_header_says() -> None:
    lines = [line.plain for line in fact_lines(scenes.GLM)]
    assert lines[0] == "GLM-4.7-Flash"
    assert lines[1] == "deepseek2 · 47 layers + output"
    assert "context    202 752 tokens" in lines
    assert lines[-1] == scenes.GLM.path


def test_the_detail_says_which_machines_hold_the_model() -> None:
    shown: list[str] = []

    class Detail(ModelDetail):
        def _show(self, facts: list[Content], sizes: list[Content]) -> None:
            shown[:] = [line.plain for line in facts]

    Detail().show_info(scenes.GLM, ("local", "mini"))
    assert any("held by" in line and "local, mini" in line for line in shown)
    Detail().show_info(scenes.GLM, ("local",))
    assert not any("held by" in line for line in shown)
