"""Plans as files: what they hold, their names, the last launches, the commands."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from backends.errors import PlanError
from backends.paths import user_paths
from backends.plan_files import (
    LAUNCHES_MAX,
    PlanFile,
    find_plan,
    keep_launch,
    kept_plans,
    plan_changes,
    read_plan,
    rename_in_plans,
    save_plan,
)
from backends.split.layout import make_split
from backends.state import Ask, LayerRange, PairMode, Plan, ServerSettings, WorkerSpec
from tui.cli import plans
from tui.cli.main import cli

PLAN = Plan(
    model="/models/m.gguf",
    head="studio",
    split=make_split(12, ["studio/MTL0", "mini/MTL0"], [8, 5]),
    workers=(WorkerSpec(name="mini", peer="mini", devices=("MTL0",)),),
    ctx_size=8192,
    server=ServerSettings(slots=2, cache_type_k="q8_0"),
    pair=PairMode.NEVER,
    extra_args=("--temp", "0.2"),
    asked=Ask(model="/models/m.gguf", worker_threads=3),
)
FILE = PlanFile.of(PLAN)


def test_a_file_asks_for_what_was_saved(tmp_path: Path) -> None:
    path = save_plan(tmp_path, "evening", FILE)
    text = path.read_text()
    assert read_plan(path) == FILE
    assert "draft" not in text, "what is usual is not said"
    assert path.stat().st_mode & 0o077 == 0
    assert FILE.ask() == Ask(
        model="/models/m.gguf",
        head="studio",
        split={"studio/MTL0": 8, "mini/MTL0": 5},
        ctx_size=8192,
        server=PLAN.server,
        pair=PairMode.NEVER,
        worker_threads=3,
        extra_args=("--temp", "0.2"),
    )
    assert PlanFile.of(replace(PLAN, head="local")).ask().head is None


def test_experts_elsewhere_are_saved_with_their_devices(tmp_path: Path) -> None:
    moved = (LayerRange("studio/CPU", 2, 5), LayerRange("mini/MTL0", 7, 7))
    file = PlanFile.of(replace(PLAN, experts=moved))
    path = save_plan(tmp_path, "evening", file)
    assert '[["studio/CPU", 2, 5], ["mini/MTL0", 7, 7]]' in path.read_text()
    assert read_plan(path).ask().experts == moved
    assert "experts" not in FILE.text()
    assert plan_changes(FILE, file) == [
        ("experts", "with their layers", "2–5 on studio/CPU, 7 on mini/MTL0")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "model = ",
        "\xff",
        'model = "m"',
        'model = "m"\nspeed = 3\n[split]\n"a/CPU" = 3',
        'model = "m"\n[split]\n"a/CPU" = 3\n[server]\nslots = "many"',
        "[[[",
    ],
)
def test_what_is_no_plan_is_said_with_its_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(PlanError, match=r"x\.toml is no plan"):
        read_plan(path)
    assert list(kept_plans(tmp_path)) == []


def test_a_plan_follows_the_new_name_of_a_machine(tmp_path: Path) -> None:
    plan = replace(
        FILE,
        model="mini:/m.gguf",
        experts=(LayerRange("mini/MTL0", 3, 4),),
        server={"draft": "mini:/d.gguf"},
    )
    path = save_plan(tmp_path, "evening", plan)
    os.utime(path, (1.0, 1.0))
    other = save_plan(tmp_path, "other", replace(FILE, split={"minima/CPU": 13}))
    before = other.read_bytes()
    rename_in_plans("mini", "ada", tmp_path)
    (kept,) = (one for one in kept_plans(tmp_path) if one.name == "evening")
    assert kept.plan.split == {"studio/MTL0": 8, "ada/MTL0": 5}
    assert kept.plan.model == "ada:/m.gguf"
    assert kept.plan.experts == (LayerRange("ada/MTL0", 3, 4),)
    assert kept.plan.server == {"draft": "ada:/d.gguf"}
    assert kept.at == 1.0
    assert other.read_bytes() == before
    rename_in_plans("studio", "nuc", tmp_path)
    assert read_plan(path).head == "nuc"


def test_a_plan_is_found_by_name_or_file(tmp_path: Path) -> None:
    path = save_plan(tmp_path, "evening", FILE)
    assert find_plan("evening", tmp_path).plan == FILE
    assert find_plan(str(path), tmp_path / "other").plan == FILE
    with pytest.raises(PlanError, match="There is no plan evenig"):
        find_plan("evenig", tmp_path)


async def test_a_model_that_is_elsewhere_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "m.gguf"
    here.touch()
    find = AsyncMock(return_value=here)
    monkeypatch.setattr(plans, "resolve", find)
    shared = replace(FILE, model="/elsewhere/m.gguf")
    assert (await plans._with_model(shared)).model == str(here)
    find.assert_awaited_once_with("m.gguf")
    for model in str(here), "mini:/elsewhere/m.gguf":
        kept = replace(FILE, model=model)
        assert await plans._with_model(kept) is kept


@pytest.mark.parametrize("name", ["", "../x", ".x", "a/b", "x" * 65, "a\nb"])
def test_a_name_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlanError, match="is no name for a plan"):
        save_plan(tmp_path, name, FILE)
    assert list(tmp_path.iterdir()) == []


def test_a_name_is_taken_once(tmp_path: Path) -> None:
    other = PlanFile.of(replace(PLAN, ctx_size=1024))
    save_plan(tmp_path, "evening", FILE)
    with pytest.raises(FileExistsError):
        save_plan(tmp_path, "evening", other)
    save_plan(tmp_path, "evening", other, replaces=True)
    assert find_plan("evening", tmp_path).plan == other


def test_the_last_launches_are_kept_each_once(tmp_path: Path) -> None:
    plans = [PlanFile.of(replace(PLAN, ctx_size=256 * n)) for n in range(1, 24)]
    for at, plan in enumerate(plans):
        keep_launch(tmp_path, plan)
        newest = {k.plan.context: k.path for k in kept_plans(tmp_path)}[plan.context]
        os.utime(newest, (at, at))
    kept = list(kept_plans(tmp_path))
    assert [one.plan for one in kept] == plans[::-1][:LAUNCHES_MAX]
    keep_launch(tmp_path, plans[10])
    again = list(kept_plans(tmp_path))
    assert again[0].plan == plans[10]
    assert len(again) == LAUNCHES_MAX


def test_launches_of_one_moment_are_all_kept(tmp_path: Path) -> None:
    plans = [PlanFile.of(replace(PLAN, ctx_size=256 * n)) for n in range(1, 17)]
    with ThreadPoolExecutor(len(plans)) as threads:
        list(threads.map(keep_launch, repeat(tmp_path), plans))
    kept = {one.plan.context for one in kept_plans(tmp_path)}
    assert kept == {plan.context for plan in plans}


def test_a_file_in_the_place_of_the_launches_is_named(tmp_path: Path) -> None:
    (tmp_path / "launches").write_text("")
    with pytest.raises(PlanError, match="Not a directory"):
        keep_launch(tmp_path / "launches", FILE)


def test_changes_name_what_differs() -> None:
    split = make_split(12, ["studio/MTL0", "mini/MTL0"], [7, 6])
    other = PlanFile.of(replace(PLAN, split=split, ctx_size=4096, relay=False))
    assert plan_changes(FILE, FILE) == []
    assert plan_changes(FILE, other) == [
        ("context", "8192", "4096"),
        ("layers of studio/MTL0", "8", "7"),
        ("layers of mini/MTL0", "5", "6"),
        ("relay", "never", "off"),
    ]


# --- commands ------------------------------------------------------------------------


def dllm(*words: str) -> str:
    result = CliRunner().invoke(cli, ["plans", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.usefixtures("new_user")
def test_plans_are_saved_listed_compared_and_deleted() -> None:
    folder = user_paths().launches_dir
    assert "No plans." in dllm("list")
    keep_launch(folder, FILE)
    assert "mini/MTL0 5" in dllm("launches")
    assert "Wrote" in dllm("save", "evening")
    assert "evening" in dllm("list")
    assert dllm("show", "evening").startswith("# A plan of dllm-tui")
    (launch,) = kept_plans(folder)
    assert "No difference." in dllm("diff", "evening", launch.name)
    dllm("save", "morning", "--from", launch.name)
    dllm("delete", "evening")
    assert dllm("list", "-o", "name").split() == ["morning"]


@pytest.mark.usefixtures("new_user")
def test_a_launch_is_no_saved_plan_to_delete(tmp_path: Path) -> None:
    path = tmp_path / "theirs.toml"
    path.write_text(FILE.text())
    result = CliRunner().invoke(cli, ["plans", "delete", str(path)])
    assert result.exit_code != 0
    assert path.exists()
