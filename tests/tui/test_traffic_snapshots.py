"""What the Traffic screen looks like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from backends.state import ClusterSnapshot, Link, LinkCommand, Pass
from tests.tui import scenes
from tests.tui.helpers import screen_text, settled, until
from tests.tui.scripted import ScriptedCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.pilot import Pilot

    from tui.app import DllmApp

    MakeApp = Callable[..., DllmApp]
    Compare = Callable[..., bool]

SIZES = [(60, 18), (80, 24), (120, 36), (160, 48)]


def passes(compute_ms: float, link_ms: float, count: int = 20) -> tuple[Pass, ...]:
    """A prompt, then tokens that take about so long."""
    prompt = Pass(at_ms=0, tokens=512, generated=False, head_ms=4000, compute_ms=900)
    tokens = tuple(
        Pass(
            at_ms=100.0 + n * 46,
            round_trips=1,
            head_ms=32.0 - compute_ms / 4 + n * 7 % 5,
            up_ms=link_ms + n % 3 / 10,
            compute_ms=compute_ms + n * 13 % 7 / 4,
            down_ms=link_ms * 0.9,
            wait_ms=0.4 + n % 2 / 5,
        )
        for n in range(count)
    )
    return (prompt, *tokens)


def commands(count: int, us: float, megabytes: int) -> dict[str, LinkCommand]:
    """What llama-server asks of a worker that serves for a while."""
    return {
        "GRAPH_COMPUTE": LinkCommand(
            count=2 * count // 3, bytes_up=count * 9_000, bytes_down=0
        ),
        "GRAPH_RECOMPUTE": LinkCommand(count=count, bytes_up=count * 16),
        "SET_TENSOR": LinkCommand(
            count=count * 3, bytes_up=megabytes * 1024**2, p50_us=38, p99_us=410.2
        ),
        "GET_TENSOR": LinkCommand(
            count=count,
            bytes_up=count * 300,
            bytes_down=count * 8192,
            p50_us=us,
            p99_us=us * 1.4,
            max_us=us * 2.6,
        ),
        "GET_ALIGNMENT": LinkCommand(
            count=14, answered=13, bytes_up=9, bytes_down=8, p50_us=0.8, p99_us=420
        ),
    }


def link(name: str, compute_ms: float, rtt_ms: float, **facts: object) -> Link:
    """A link on which tokens were made."""
    made = Link(
        worker=name,
        protocol="8.0.0",
        rtt_ms=rtt_ms,
        bytes_up=3_000_000_000,
        bytes_down=70_000_000,
        round_trips_per_token=1.0,
        bytes_up_per_token=12_186.0,
        bytes_down_per_token=8_396.0,
        commands=commands(4127, compute_ms * 1000, 2863),
        passes=passes(compute_ms, rtt_ms / 2),
    )
    return msgspec.structs.replace(made, **facts)


MINI = link("mini", 9.8, 3.1)
BOX = link("box", 5.2, 0.42)
PLAIN = Link(
    worker="attic", mode="plain", reason="command 23 is unknown", waiting=("a:1",)
)


def traffic(*links: Link, at: float = scenes.NOW) -> ClusterSnapshot:
    """The homelab with these links."""
    return msgspec.structs.replace(scenes.homelab_serving(), links=links, at=at)


def shown(*keys: str, text: str) -> Any:
    """Go to the Traffic screen and press keys there."""

    async def run(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press("f3")
        await until(pilot, lambda: text in screen_text(pilot.app))
        await pilot.press(*keys)
        await pilot.pause()

    return run


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_two_links(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int]
) -> None:
    app = make_app(ScriptedCluster(traffic(MINI, BOX)))
    run = shown(text="GET_TENSOR")
    assert snap_compare(app, terminal_size=size, run_before=run)


@pytest.mark.parametrize("theme", ["dllm-dark", "dllm-light"])
@pytest.mark.parametrize("size", SIZES[1:3], ids=lambda size: f"{size[0]}x{size[1]}")
def test_three_links_one_plain(
    make_app: MakeApp, snap_compare: Compare, size: tuple[int, int], theme: str
) -> None:
    app = make_app(ScriptedCluster(traffic(MINI, BOX, PLAIN)), theme=theme)
    run = shown("v", "j", "space", text="GET_TENSOR")
    assert snap_compare(app, terminal_size=size, run_before=run)


def test_no_token_yet(make_app: MakeApp, snap_compare: Compare) -> None:
    quiet = Link(worker="mini", protocol="8.0.0", rtt_ms=3.1)
    app = make_app(ScriptedCluster(traffic(quiet)))
    run = shown(text="No token yet")
    assert snap_compare(app, terminal_size=(80, 24), run_before=run)


def test_no_relays(make_app: MakeApp, snap_compare: Compare) -> None:
    app = make_app(ScriptedCluster(traffic()))
    run = shown(text="No relays")
    assert snap_compare(app, terminal_size=(80, 24), run_before=run)
