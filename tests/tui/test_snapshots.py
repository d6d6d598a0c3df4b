"""What the screens look like, at the sizes and in the themes that matter.

Behaviour is tested elsewhere; these notice when something looks different.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import Input

from backends.config import Config, SettingsFile
from backends.paths import user_paths
from backends.state import (
    Acceptance,
    ClusterSnapshot,
    Event,
    EventKind,
    EventTone,
    LayerBytes,
    Link,
    Peer,
    ProcessState,
    Speed,
)
from tests.kit.console import Started
from tests.tui import peer_scenes as people
from tests.tui import scenes
from tests.tui.fake_models import ModelsCluster, model
from tests.tui.helpers import burst, resize, screen_text, settled, until
from tests.tui.links import BOX, MINI, PLAIN
from tests.tui.pictures import BOTH, NORMAL, SMALL, Snap, seen
from tests.tui.scripted import ScriptedCluster
from tests.tui.snapshot_sizes import Look
from tests.tui.test_live_strip import SHARING, serving, serving_many
from tui.app.app import DllmApp
from tui.app.frame import StatusLine
from tui.dialogs.help_and_events import EvidenceDialog
from tui.dialogs.settings import SettingsDialog
from tui.model.events import happening_of
from tui.screens.cluster.launch_dialog import LaunchDialog
from tui.screens.cluster.peers_pane import PeerList
from tui.screens.cluster.split_bar import SplitBar
from tui.screens.cluster.split_pane import SplitPane
from tui.widgets.waterfall import Waterfall

RATES = [9.0, 14.2, 18.8, 20.1, 21.3, 21.0, 22.4, None, 12.0, 19.7, 21.9, 21.3]


async def speeds(pilot: Pilot[None]) -> None:
    """Some history in the graph, then everything at rest."""
    await settled(pilot)
    app = cast("DllmApp", pilot.app)
    for second, rate in enumerate(RATES * 4):
        app.editor.trends.rates.push(scenes.NOW + 10 + second, rate)
    app._show()
    await pilot.pause()


async def test_serving_in_any_room(started: Started, snap_compare: Snap) -> None:
    sizes = ((60, 18), SMALL, NORMAL, (160, 48), (50, 14))
    async with started(size=sizes[0]) as (pilot, _, _):
        await speeds(pilot)
        await seen(snap_compare, pilot, *sizes)


@pytest.mark.parametrize(
    "scene", [scenes.demo_starting, scenes.demo_failed], ids=["starting", "failed"]
)
async def test_a_launch(started: Started, snap_compare: Snap, scene: Any) -> None:
    async with started(scene()) as (pilot, _, _):
        await seen(snap_compare, pilot, *BOTH)


async def test_planning(started: Started, snap_compare: Snap) -> None:
    running = started(ScriptedCluster(None), size=SMALL, wait=False)
    async with running as (pilot, app, cluster):
        await seen(snap_compare, pilot, of="before the first snapshot")
        cluster.push(scenes.idle())
        await until(pilot, lambda: app.editor.snapshot)
        await seen(snap_compare, pilot, of="no model yet")
        app.use_model(scenes.DEMO.path)
        await settled(pilot)
        await pilot.press("left", "left")
        await seen(snap_compare, pilot, *BOTH)


async def test_other_themes(started: Started, snap_compare: Snap) -> None:
    async with started(size=(100, 30)) as (pilot, app, _):
        await speeds(pilot)
        for theme in ("dllm-light", "dllm-ansi", "dllm-colour-blind", "nord"):
            app._use_theme(theme)
            await pilot.pause()
            await seen(snap_compare, pilot, of=theme)


def test_without_colour(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    look(None, (100, 30), speeds)


DIALOGS = {
    "quit": ("q",),
    "stop": ("s",),
    "help": ("question_mark",),
    "theme": ("t",),
    "zoom": ("z",),
    "typing": ("1", "2"),
    "relaunch": ("left", "l"),
    "find": ("colon", "s", "p", "l", "i", "t"),
    "events": ("e",),
    "jump": ("ctrl+j",),
    "menu": ("shift+tab", "j", "full_stop"),
}
ALIKE = {"quit", "stop", "typing", "jump", "menu"}
"""As at another size, or as another of them: kept at one size."""


async def test_dialogs(started: Started, snap_compare: Snap) -> None:
    async with started(size=SMALL) as (pilot, app, _):
        for name, keys in DIALOGS.items():
            await pilot.press(*keys)
            sizes = (SMALL,) if name in ALIKE else BOTH
            await seen(snap_compare, pilot, *sizes, of=name)
            await pilot.press("escape", "escape")
            if sizes is BOTH:
                await resize(pilot, *SMALL)
            app.editor.undo()
            app.show_edit()
            app._home.go_to("split")
            await pilot.pause()
        await app.push_screen(EvidenceDialog(happening_of(DIED)))
        await seen(snap_compare, pilot, of="evidence")


DIED = Event(
    number=7,
    at=datetime(2026, 8, 1, 12, 30, tzinfo=UTC),
    kind=EventKind.DIED,
    text="worker1 was killed (SIGKILL)",
    tone=EventTone.ERROR,
    cluster="default",
    peer="mini",
    process="worker1",
    exit_signal=9,
    hint="It ran out of memory: give it fewer layers.",
    evidence=(
        "Starting RPC server v7.0.0",
        "  endpoint       : 127.0.0.1:50052",
        "Accepted client connection",
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate 4.2 GiB",
    ),
)


def test_dragging_past_what_fits(look: Look) -> None:
    async def drag(pilot: Pilot[None]) -> None:
        await speeds(pilot)
        bar = pilot.app.query_one(SplitBar)
        await pilot.mouse_down(bar, offset=(bar.handle_x, 1))
        await pilot.hover(bar, offset=(1, 1))
        await pilot.pause()

    look(None, (120, 36), drag, theme="dllm-dark")


async def test_launch_settings(started: Started, snap_compare: Snap) -> None:
    async with started(scenes.demo_serving(), size=SMALL) as (pilot, app, _):
        app.query_one(SplitPane).focus_default()
        await pilot.press("p")
        await until(pilot, lambda: isinstance(app.screen, LaunchDialog))
        for name, text in (("slots", "4"), ("extra_args", "--port 9")):
            app.screen.query_one(f"#{name}", Input).value = text
        await pilot.press("down", "down", "right", "right")
        await seen(snap_compare, pilot, *BOTH)


async def test_settings(
    started: Started, snap_compare: Snap, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SettingsFile, "name", "~/.config/dllm-tui/config.toml")
    workers = Config.__struct_fields__.index("workers")
    settings = SettingsFile(user_paths())
    async with started(size=SMALL, settings=settings) as (pilot, app, _):
        await pilot.press("comma")
        await until(pilot, lambda: isinstance(app.screen, SettingsDialog))
        await burst(pilot, *["down"] * workers, "enter", *"999", "enter")
        await until(pilot, lambda: "cannot be 999" in screen_text(app))
        await seen(snap_compare, pilot, *BOTH)


# --- live --------------------------------------------------------------------------


ACCEPTED = Acceptance(drafted=160, accepted=113, passes=20)
DRAFTING = Speed(tok_per_s=61.2, slots=4, speculative=True, acceptance=ACCEPTED)
WAYS = (
    replace(MINI, way="direct"),
    replace(BOX, way="tunnel"),
)
WITHOUT_RELAYS = replace(scenes.HOMELAB_PLAN, relay=False)
LIVE = {
    "no relays": (serving(plan=WITHOUT_RELAYS), BOTH),
    "a draft": (serving(*SHARING, speed=DRAFTING), BOTH),
    "little room": (serving(MINI, BOX), ((60, 18),)),
    "how data go": (serving(*WAYS), (NORMAL,)),
    "one link that nobody reads": (serving(MINI, PLAIN), (SMALL,)),
    "seven workers": (serving_many(), BOTH),
}


async def test_live(started: Started, snap_compare: Snap) -> None:
    async with started(serving(), size=SMALL) as (pilot, app, cluster):
        await speeds(pilot)
        app._home.go_to("live")
        for seq, (name, (snapshot, sizes)) in enumerate(LIVE.items(), 10):
            now = replace(snapshot, seq=seq)
            cluster.push(now)
            await until(pilot, lambda: app.editor.snapshot is now)  # noqa: B023
            await seen(snap_compare, pilot, *sizes, of=name)
        await pilot.press("z")
        await seen(snap_compare, pilot, SMALL, of="zoomed")


# --- traffic -----------------------------------------------------------------------


QUIET = Link(worker="mini", protocol="8.0.0", rtt_ms=3.1)
TRAFFIC = (
    ("--relay off", (), (), (SMALL,)),
    ("No token yet", (QUIET,), (), (SMALL,)),
    ("GET_TENSOR", (MINI, BOX), ("j",), BOTH),
    ("attic", (MINI, BOX, PLAIN), ("v", "space"), BOTH),
)


async def test_traffic(started: Started, snap_compare: Snap) -> None:
    async with started(serving(), size=SMALL) as (pilot, app, cluster):
        await pilot.press("f3")
        waterfall = app.screen.query_one(Waterfall)
        # Frozen figures do not grow old.
        app.screen.query_one(StatusLine)._clock = lambda: 0.0
        for seq, (text, links, keys, sizes) in enumerate(TRAFFIC, 10):
            plan = scenes.HOMELAB_PLAN if links else WITHOUT_RELAYS
            cluster.push(replace(serving(*links, plan=plan), seq=seq))
            await until(pilot, lambda: text in screen_text(app))  # noqa: B023
            # It is drawn a little later.
            await until(pilot, lambda: waterfall.shown == [*links])  # noqa: B023
            await pilot.press(*keys)
            await seen(snap_compare, pilot, *sizes, of=text)


# --- models and their picker -------------------------------------------------------


MIB = 1024**2

MODELS = tuple(
    model(name, size_gib, arch=arch, file_type=quant, source=source, problem=problem)
    for name, arch, quant, size_gib, source, problem in (
        ("GLM-4.7-Flash-Q4_K_M", "deepseek2", "Q4_K_M", 16.9, "models", ""),
        (
            "Qwen3-Coder-480B-A35B-Instruct-UD-Q2_K_XL-00001-of-00004",
            *("qwen3moe", "Q2_K", 175.3, "huggingface", ""),
        ),
        ("gpt-oss-120b-mxfp4", "gpt-oss", "MXFP4", 59.0, "lmstudio", ""),
        ("Llama-3.3-70B-Instruct-Q4_K_M", "llama", "Q4_K_M", 39.6, "ollama", ""),
        ("Mistral-Small-3.2-24B [it]", "mistral", "Q6_K", 18.0, "huggingface", ""),
        ("half-a-download", "", "", 3.1, "models", "the file is cut short"),
    )
)
DEALT_GLM = replace(
    scenes.GLM,
    n_expert=64,
    n_expert_used=4,
    layers=tuple(
        replace(
            layer,
            groups=LayerBytes(attention=38 * MIB, ffn=22 * MIB, experts=301 * MIB),
            quants={"Q4_K": 240 * MIB, "Q6_K": 120 * MIB, "F32": MIB},
        )
        for layer in scenes.GLM.layers
    ),
)


async def test_models(started: Started, snap_compare: Snap) -> None:
    folders = ("/home/me/.cache/huggingface/hub", "/home/me/models")
    cluster = ModelsCluster(folders=folders, snapshot=scenes.homelab_serving())
    cluster.models[scenes.GLM.path] = DEALT_GLM
    async with started(cluster, size=SMALL) as (pilot, app, _):

        async def at(text: str, *keys: str) -> None:
            await burst(pilot, *keys)
            await until(pilot, lambda: text in screen_text(app))

        await at("No GGUF file found", "f6")
        await seen(snap_compare, pilot)
        cluster.files = MODELS
        await at("layers + output", "r")
        await seen(snap_compare, pilot, *BOTH)
        await resize(pilot, *SMALL)
        await at("is not a GGUF", "p", *"/tmp/x.gguf", "enter")
        await seen(snap_compare, pilot)
        await pilot.press("escape", "f1")
        await at("6 models", "m")
        await seen(snap_compare, pilot, *BOTH, of="picker")


# --- logs --------------------------------------------------------------------------


HEAD = """\
0.00.000.112 I build: 6400 (f0c1d) with cc 13.3.0 for x86_64-linux-gnu
0.00.001.204 I system info: n_threads = 8, n_threads_batch = 8, total_threads = 16
0.00.120.450 I srv    load_model: loading model '/models/GLM-4.7-Flash-Q4_K_M.gguf'
0.00.180.911 D ggml_backend_rpc_init: endpoint 127.0.0.1:50052
0.00.204.070 W llama_context: n_ctx_seq (8192) < n_ctx_train (202752) -- the full \
capacity of the model will not be utilized
"""
TAIL = """\
0.41.020.338 I srv  update_slots: all slots are idle
0.52.204.118 E ggml_backend_rpc: \x1b[31msend failed\x1b[0m to 127.0.0.1:50052
0.52.204.190 W srv  log_server_r: request: POST /v1/chat/completions 127.0.0.1 500
0.53.000.004 I slot launch_slot_: id  0 | task 12 | processing task
"""


def log() -> str:
    """A log of llama-server with a bit of everything."""
    layers = "".join(
        f"0.{2 + n // 3:02d}.{n * 7:03d}.000 I load_tensors: layer {n:3d} assigned to "
        f"device RPC{n // 16}, is_swa = 0\n"
        for n in range(48)
    )
    return HEAD + layers + TAIL


def with_logs() -> ScriptedCluster:
    """The homelab, one worker of which was killed."""
    serving = scenes.homelab_serving()
    first, second, *others = serving.processes
    killed = replace(second, state=ProcessState.EXITED, exit_signal=9)
    first = replace(
        first, log_path="/home/me/.local/state/dllm-tui/run/llama-server/log"
    )
    scripted = ScriptedCluster(replace(serving, processes=(first, killed, *others)))
    scripted.logs = {info.name: log() for info in serving.processes}
    return scripted


async def test_logs(started: Started, snap_compare: Snap) -> None:
    scripted = with_logs()
    scene, scripted.now = scripted.now, ClusterSnapshot()
    assert scene is not None
    async with started(scripted, size=SMALL, wait=False) as (pilot, app, _):

        async def at(text: str, *keys: str) -> None:
            await pilot.press(*keys)
            await until(pilot, lambda: text in screen_text(app))
            await seen(snap_compare, pilot, of=text)

        await at("No process has run", "f5")
        scripted.push(scene)
        await at("57 lines")
        await seen(snap_compare, pilot, NORMAL)
        await resize(pilot, *SMALL)
        await at("paused", "w", "home")
        await at(" of 57 lines", "w", "end", "slash", "slash", *"RPC[12]", "enter")
        await at("3 of 57 lines", "escape", "v", "v")
        await at("Not a pattern", "escape", "slash", "slash", "left_square_bracket")


# --- peers and their dialogs -------------------------------------------------------


def home(*peers: Peer) -> ScriptedCluster:
    plans = {scenes.GLM.path: people.SPREAD_PLAN}
    return ScriptedCluster(people.here(*peers, quiet=True), plans=plans)


async def select(pilot: Pilot[None], index: int, *keys: str) -> None:
    """Select a peer, and press keys."""
    app: Any = pilot.app
    app._home.go_to("peers")
    app.query_one(PeerList).selected = index
    await pilot.pause()
    await pilot.press(*keys)


async def test_peers(started: Started, snap_compare: Snap) -> None:
    async with started(home(), size=SMALL, initial_model=scenes.GLM.path) as (
        pilot,
        _,
        _,
    ):
        await select(pilot, 1)
        await seen(snap_compare, pilot, *BOTH)
        await select(pilot, 6, "z")
        await seen(snap_compare, pilot, of="all")
        await pilot.press("z")
        await resize(pilot, *SMALL)
        await select(pilot, 1, "enter")
        await seen(snap_compare, pilot, *BOTH, of="details")
        await pilot.press("escape")
        await resize(pilot, *SMALL)
        await select(pilot, 0, "a", "i", "down")
        await seen(snap_compare, pilot, *BOTH, of="adding")


async def test_peers_in_trouble(started: Started, snap_compare: Snap) -> None:
    others = people.NUC, people.OLD, people.EVE, people.FRED, people.GUS, people.NEW
    running = started(home(*others), size=SMALL, initial_model=scenes.GLM.path)
    async with running as (pilot, _, _):
        await select(pilot, 1)
        await seen(snap_compare, pilot, *BOTH)


async def test_added(started: Started, snap_compare: Snap) -> None:
    running = started(home(people.BOB), size=SMALL, initial_model=scenes.GLM.path)
    async with running as (pilot, app, cluster):
        for peer in (people.NUC, people.EVE, people.ADA, people.NEW):
            await select(pilot, 0, "a")
            await burst(pilot, *peer.name[:12], "enter")
            dialog: Any = app.screen
            await until(pilot, lambda: dialog.follows)  # noqa: B023
            found = replace(peer, name=dialog.follows)
            cluster.push(people.here(people.BOB, found))
            await until(pilot, lambda: dialog._shown and dialog._shown.text)  # noqa: B023
            await until(pilot, lambda: len(app.editor.peers) == 3)
            await seen(snap_compare, pilot, of=peer.name)
            cluster.push(people.here(people.BOB))
            await until(pilot, lambda: len(app.editor.peers) == 2)
            await pilot.press("escape", "escape")
            await until(pilot, lambda: not app.screen.is_modal)


async def test_questions(started: Started, snap_compare: Snap) -> None:
    running = started(people.here(people.ADA), size=SMALL, wait=False)
    async with running as (pilot, app, cluster):
        for asked in (people.HOST_KEY, people.PASSWORD):
            peer = replace(people.MINI, question=asked, note=asked.text)
            cluster.push(people.here(people.ADA, peer))
            await until(pilot, lambda: len(app.screen_stack) == 2)
            await pilot.press("s", "3", "q")
            await seen(snap_compare, pilot, *BOTH, of=asked.kind)
            cluster.push(people.here(people.ADA))
            await until(pilot, lambda: len(app.screen_stack) == 1)
            await resize(pilot, *SMALL)


async def test_refused(started: Started, snap_compare: Snap) -> None:
    async with started(people.refused(), size=SMALL) as (pilot, _, _):
        await seen(snap_compare, pilot, *BOTH)
