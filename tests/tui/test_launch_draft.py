"""The draft among the launch settings: typed, settled, refused, undone, named."""

from __future__ import annotations

import dataclasses
import shlex

import pytest
from msgspec.structs import replace

from backends.errors import PlanError
from backends.split.layout import make_split
from backends.state import Ask, DeviceMemory, Plan, ServerSettings, Speculation
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import screen_text, until
from tests.tui.scripted import ScriptedCluster
from tests.tui.test_launch_settings import (
    PLAN,
    closed,
    complaint,
    demo,
    plan_of,
    setting,
    typed,
)
from tui.model.edit import Edit
from tui.model.launch_settings import LaunchSettings, differences, up_command
from tui.screens.cluster import launch_dialog

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


@pytest.fixture(autouse=True)
def _asks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_dialog, "ASK_AFTER_S", 0.02)


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
    drafted = dataclasses.replace(alone, plan=replace(plain, speculation=GUESS))
    added = [
        both.total_bytes - one.total_bytes
        for both, one in zip(drafted.loads, alone.loads, strict=True)
    ]
    assert added == [700 * MIB, 0]
    measured = (DeviceMemory(device="local/CPU", model_bytes=5),)
    loaded = dataclasses.replace(drafted, measured=measured)
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
