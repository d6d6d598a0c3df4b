"""The menu of what can be done with the selected thing."""

from __future__ import annotations

from msgspec.structs import replace
from textual.geometry import Region

from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import burst, screen_text, toasts, until
from tui.app.app import DllmApp
from tui.dialogs.menu import MenuDialog, MenuEntry, place_of


def test_it_stands_beside_what_it_is_about() -> None:
    for near, place in (
        (Region(10, 5, 30, 2), (12, 7)),
        (Region(10, 20, 30, 1), (12, 8)),
        (Region(70, 5, 10, 2), (40, 7)),
        (Region(0, 2, 80, 20), (2, 3)),
        (Region(0, 16, 80, 8), (2, 4)),
    ):
        assert place_of(near, (40, 12), (80, 24)) == place


def entries(app: DllmApp) -> dict[str, MenuEntry]:
    assert isinstance(app.screen, MenuDialog)
    return {entry.name: entry for entry in app.screen.rows.rows}


async def opened(pilot: object, app: DllmApp) -> None:
    await pilot.press("full_stop")  # type: ignore[attr-defined]
    await until(pilot, lambda: isinstance(app.screen, MenuDialog))  # type: ignore[arg-type]


async def test_a_peer_and_what_cannot_be_done_with_it(started: Started) -> None:
    async with started() as (pilot, app, cluster):
        app._home.go_to("peers")
        app._home.peers.peer_list.select("nuc")
        await pilot.pause()
        await opened(pilot, app)
        found = entries(app)
        assert "Peer nuc" in screen_text(app)
        assert {"open", "head", "probe", "remove", "copy"} <= {*found}
        assert not {"select", "launch", "filter", "move"} & {*found}
        assert found["probe"].key == "r"
        assert not found["probe"].refusal
        # It is away: why it cannot be a worker stands in the menu, at the end.
        assert "nuc" in found["worker"].refusal
        assert found["worker"].refusal[:20] in screen_text(app)
        await burst(pilot, *"worker", "enter")
        assert isinstance(app.screen, MenuDialog)
        # It does nothing with what is no longer selected.
        await pilot.press("escape")
        await opened(pilot, app)
        await burst(pilot, *"probe")
        scene = scenes.homelab_serving()
        left = tuple(peer for peer in scene.peers if peer.name != "nuc")
        cluster.push(replace(scene, seq=9, peers=left))
        await until(pilot, lambda: app.editor.peers == left)
        await pilot.press("enter")
        await until(pilot, lambda: toasts(app) == ["That is no longer selected"])


SUBJECTS = {
    "layers": ("layer 0", "to A"),
    "models": ("", "use"),
    "traffic": ("", "export"),
    "lab": ("Link to mini", "Wi-Fi"),
    "machines": ("", "restart"),
}


async def test_enter_does_what_typing_found_and_each_screen_has_a_menu(
    started: Started,
) -> None:
    async with started() as (pilot, app, _):
        await pilot.press("left")
        assert app.editor.can_undo
        await opened(pilot, app)
        await burst(pilot, *"undo")
        assert next(iter(entries(app))) == "undo"
        await pilot.press("enter")
        await until(pilot, lambda: not app.editor.can_undo)
        assert not app.screen.is_modal
        await opened(pilot, app)
        assert entries(app)["undo"].refusal == "nothing was changed"
        assert [*entries(app)][-1] in {"undo", "redo", "launch"}
        await pilot.press("escape")
        await until(pilot, lambda: not app.screen.is_modal)
        for mode, (subject, name) in SUBJECTS.items():
            await app.action_show_mode(mode)
            await until(pilot, lambda: app.screen.focused)
            await opened(pilot, app)
            assert name in entries(app), mode
            assert subject in screen_text(app)
            if mode == "layers":
                assert "to D" not in entries(app)
            await pilot.press("escape")
            await until(pilot, lambda: not app.screen.is_modal)


async def test_who_only_watches_is_told_so(started: Started) -> None:
    async with started(readonly=True) as (pilot, app, _):
        app._home.go_to("peers")
        await pilot.pause()
        await opened(pilot, app)
        assert entries(app)["remove"].refusal == app.refusal
        assert not entries(app)["open"].refusal
