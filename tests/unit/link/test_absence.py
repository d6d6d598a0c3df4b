"""Why there is no link to look at, as one says it to whoever asks for one."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from backends.config import Config
from backends.controller.relays import Links
from backends.controller.snapshot_store import SnapshotStore
from backends.errors import DllmError, UsageError
from backends.link.figures import why_no_link
from backends.state import ClusterSnapshot, ClusterState, Plan, Share, Split
from tests.unit.state.scene import busy_scene
from tui.cli import links as links_module
from tui.cli.links import links, trace

BUSY = replace(busy_scene(0), links=())
UNMETERED = replace(BUSY.plan, relay=False) if BUSY.plan else None
HEAD_ALONE = Plan(
    model="/m.gguf",
    split=Split(n_layer=12, shares=(Share(device="local/CPU", layers=13),)),
)


@pytest.mark.parametrize(
    ("snapshot", "why"),
    [
        (busy_scene(0), ""),
        (ClusterSnapshot(), "There is no link: nothing runs"),
        (
            replace(busy_scene(0), state=ClusterState.FAILED),
            "There is no link: nothing runs",
        ),
        (
            replace(BUSY, plan=HEAD_ALONE),
            "There is no link: local, the head, runs alone, without workers",
        ),
        (
            replace(BUSY, plan=UNMETERED),
            "The links are not measured: the plan was launched with --relay off",
        ),
        (
            replace(BUSY, state=ClusterState.LOADING),
            "The links are not there yet: the cluster is loading",
        ),
    ],
)
def test_the_reason_is_the_true_one(snapshot: ClusterSnapshot, why: str) -> None:
    assert why_no_link(snapshot) == why


@pytest.fixture
def head_alone(monkeypatch: pytest.MonkeyPatch) -> ClusterSnapshot:
    """A cluster without workers, as commands find it."""
    snapshot = replace(BUSY, plan=HEAD_ALONE)

    async def current(_cluster: str) -> ClusterSnapshot:
        return snapshot

    monkeypatch.setattr(links_module, "current_snapshot", current)
    return snapshot


def test_the_lab_of_a_head_alone_says_that_it_has_no_links(
    head_alone: ClusterSnapshot,
) -> None:
    shown = CliRunner().invoke(links, ["list"])
    assert shown.output == f"{why_no_link(head_alone)}.\n"


def test_a_trace_of_a_head_alone_is_refused_with_the_reason(
    head_alone: ClusterSnapshot,
) -> None:
    error = CliRunner().invoke(trace, []).exception
    assert isinstance(error, DllmError)
    assert str(error) == why_no_link(head_alone)


async def test_the_controller_refuses_a_lab_with_the_reason(
    head_alone: ClusterSnapshot,
) -> None:
    store = SnapshotStore(Config)
    store.snapshot = head_alone
    with pytest.raises(UsageError) as refused:
        await Links(store).set_lab(None, None)
    assert str(refused.value) == why_no_link(head_alone)
