"""The line on every screen: a lab, a silent worker, and how old all of it is."""

from __future__ import annotations

from msgspec.structs import replace
from textual.pilot import Pilot

from backends.errors import ControllerError
from backends.state import ClusterSnapshot, ClusterState, Lab, Speed
from backends.state.snapshots import RequestCounts
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.flowing import planning
from tests.tui.helpers import resize, screen_text, text_of, until
from tui.app.app import DllmApp
from tui.model.facts import warnings

SLOW = Lab(latency_ms=10)
MODES = ("cluster", "traffic", "lab", "logs", "models")


def changed(**changes: object) -> ClusterSnapshot:
    return replace(scenes.homelab_serving(), **changes)


def with_links(**changes: tuple[object, ...]) -> ClusterSnapshot:
    """The homelab with a field of its two links set, each to its own."""
    snapshot = scenes.homelab_serving()
    links = tuple(
        replace(link, **{field: values[index] for field, values in changes.items()})
        for index, link in enumerate(snapshot.links)
    )
    return replace(snapshot, links=links)


def test_warnings_in_words() -> None:
    for snapshot, text, short in (
        (None, "", ""),
        (scenes.homelab_serving(), "", ""),
        (with_links(lab=(Lab(), None)), "", ""),
        (with_links(lab=(SLOW, None)), "lab on mini", "lab"),
        (with_links(lab=(SLOW, Lab(rate_mb_s=6))), "lab on 2 links", "lab"),
        (with_links(unanswered_ms=(1200.0, None)), "", ""),
        (with_links(unanswered_ms=(3400.0, None)), "mini silent 3 s", "silent 3 s"),
        (with_links(unanswered_ms=(3400.0, 9100.0)), "box silent 9 s", "silent 9 s"),
        (changed(requests=RequestCounts(waiting=0, passed=3)), "", ""),
        (changed(requests=RequestCounts(waiting=1)), "1 request waits", "1 wait"),
        (changed(requests=RequestCounts(waiting=2)), "2 requests wait", "2 wait"),
        (changed(drained_since=1.0), "drained", "drained"),
    ):
        assert " · ".join(warnings(snapshot)) == text
        assert " · ".join(warnings(snapshot, short=True)) == short


def test_a_cluster_that_ended_has_no_lab() -> None:
    ended = replace(with_links(lab=(SLOW, None)), state=ClusterState.IDLE)
    assert not warnings(ended)


async def said_on_every_screen(pilot: Pilot[None], app: DllmApp, text: str) -> None:
    for mode in MODES:
        await app.action_show_mode(mode)
        await until(pilot, lambda: text in screen_text(app).splitlines()[0])


async def test_every_screen_says_that_a_lab_is_on_in_any_terminal(
    started: Started,
) -> None:
    snapshot = with_links(lab=(SLOW, SLOW), unanswered_ms=(None, 61_000.0))
    async with started(snapshot) as (pilot, app, cluster):
        await said_on_every_screen(pilot, app, "lab on 2 links")
        await app.action_show_mode("cluster")
        for size in ((60, 18), (80, 24), (100, 30)):
            await resize(pilot, *size)
            text = text_of(app._home.status_line)
            for part in ("lab", "silent 61 s", "● serving", "21.3 tok/s"):
                assert part in text, size
        idle = replace(snapshot, seq=99, speed=Speed(last_tok_per_s=20.9))
        cluster.push(idle)
        await until(pilot, lambda: "—   tok/s" in text_of(app._home.status_line))


async def test_the_edited_plans_model_is_named_on_every_screen(
    started: Started,
) -> None:
    async with planning(started) as (pilot, app, _):
        await said_on_every_screen(pilot, app, "dllm-demo-12L")


async def test_figures_grow_old_without_a_controller(started: Started) -> None:
    async with started(scenes.homelab_serving()) as (pilot, app, cluster):
        line, now = app._home.status_line, [100.0]
        line._clock = lambda: now[0]
        cluster.errors["snapshots"] = ControllerError("No answer on the socket")
        cluster.lose(ControllerError("It went away"))
        await until(pilot, lambda: "reconnecting · 0 s old" in text_of(line))
        now[0] = 112.4
        await until(pilot, lambda: "reconnecting · 12 s old" in text_of(line))
        del cluster.errors["snapshots"]
        await until(pilot, lambda: "● serving" in text_of(line))
        assert " s old" not in text_of(line)
