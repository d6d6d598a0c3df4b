"""Measure the CPU time of the console's frames: run it with ``make bench-tui``.

There is no terminal and no cluster. The real console is fed a cluster at work on 80
layers, as the controller streams it. A boundary of the split is dragged, also of 128
layers on 12 devices (``wide``): memory, fit and predicted speed follow each move. Only
CPU time of this process counts, so a busy machine changes little. Figures, no verdict.
The longest of a move or snapshot is the time in which the event loop does nothing else.

``--profile NAME`` (``idle``, ``busy``, ``drag`` or ``wide``) tells which functions take
it.
"""

from __future__ import annotations

import asyncio
import cProfile
import os
import pstats
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from backends.startup import importing

os.environ["TEXTUAL_ANIMATIONS"] = "none"

# As the program itself does it: else looking for garbage takes a tenth of a second.
with importing():
    import msgspec
    from textual import events

    from backends.split.layout import ranges, with_counts
    from backends.state.delta import Frame, applied, framed
    from tests.tui.helpers import settled, until
    from tests.tui.scenes import pace
    from tests.tui.scripted import ScriptedCluster
    from tests.unit.state.scene import busy_scene
    from tui.app.app import DllmApp

Spent = tuple[float, float]
"""CPU milliseconds of a move or snapshot: all, and the longest without a pause."""

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from textual.pilot import Pilot

    from backends.state import ClusterSnapshot

    Work = Callable[[DllmApp, Pilot[None]], Awaitable[list[Spent]]]

SNAPSHOTS = 40
PER_S = 4
MOVES = 120
FRAME_S = 0.08
"""Waited after each move: long enough for all that it brings about."""
SIZES = [(80, 24), (120, 36), (160, 50)]

Given = TypeVar("Given")
decode = msgspec.json.Decoder(Frame).decode


def quiet_scene(tick: int) -> ClusterSnapshot:
    still, now = busy_scene(0), busy_scene(tick)
    speed = msgspec.structs.replace(still.speed, tok_per_s=None, last_tok_per_s=20.0)
    return msgspec.structs.replace(
        still, seq=now.seq, at=now.at, peers=now.peers, speed=speed
    )


def large(scene: ClusterSnapshot) -> ClusterSnapshot:
    """The same with more files on the peers: 116 kB, as a large cluster's is."""
    peers = tuple(
        msgspec.structs.replace(
            peer,
            facts=peer.facts
            and msgspec.structs.replace(peer.facts, models=peer.facts.models * 4),
        )
        for peer in scene.peers
    )
    return msgspec.structs.replace(scene, peers=peers)


def lines_of(scene: Callable[[int], ClusterSnapshot]) -> list[bytes]:
    scenes = [large(scene(tick)) for tick in range(SNAPSHOTS + 1)]
    pairs = zip(scenes, [None, *scenes[:-1]], strict=True)
    return [msgspec.json.encode(framed(new, old)) for new, old in pairs]


async def followed(
    app: DllmApp, pilot: Pilot[None], scene: Callable[[int], ClusterSnapshot]
) -> list[Spent]:
    """CPU milliseconds of each snapshot, from its line to the painted screen."""
    first, *rest = lines_of(scene)
    snapshot = applied(decode(first), None)
    app.take(snapshot)
    await pilot.pause()

    def take(line: bytes) -> None:
        nonlocal snapshot
        snapshot = applied(decode(line), snapshot)
        app.take(snapshot)

    return [await spent_ms(take, line, 1 / PER_S) for line in rest]


async def dragged(app: DllmApp, pilot: Pilot[None]) -> list[Spent]:
    """CPU milliseconds of each move of a boundary, until it is painted."""
    bar = app._home.split.bar
    await pilot.mouse_down(bar, offset=(bar.handle_x, 1))
    left, y = bar.content_region.x, bar.content_region.y + 1
    (first, _), (_, last) = (bar.geometry.span(bar.picked + side) for side in (0, 1))
    room = range(left + first + 1, left + last - 1)
    places = [room[move * 3 % len(room)] for move in range(MOVES)]

    def move(x: int) -> None:
        app.post_message(
            events.MouseMove(None, x, y, 0, 0, 1, False, False, False, x, y)
        )

    spent = [await spent_ms(move, x, FRAME_S) for x in places]
    assert bar.dragging
    await pilot.mouse_up(bar, offset=(bar.handle_x, 1))
    return spent


async def spent_ms(act: Callable[[Given], None], given: Given, wait_s: float) -> Spent:
    parts_s = [0.0]
    run = asyncio.Handle._run

    def timed(self: asyncio.Handle) -> None:
        began = time.process_time()
        run(self)
        parts_s.append(time.process_time() - began)

    asyncio.Handle._run = timed  # type: ignore[method-assign]
    began = time.process_time()
    try:
        act(given)
        await asyncio.sleep(wait_s)
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
    return (time.process_time() - began) * 1000, max(parts_s) * 1000


async def console(
    size: tuple[int, int], work: Work, scene: ClusterSnapshot | None = None
) -> list[Spent]:
    """Work on a real console of this size, by default on the cluster of 80 layers."""
    with tempfile.TemporaryDirectory() as folder:
        first = msgspec.structs.replace(large(scene or busy_scene(0)), seq=0)
        cluster = ScriptedCluster(first)
        cluster.pace = pace
        app = DllmApp(cluster, memory_file=Path(folder) / "console.json")
        async with app.run_test(size=size) as pilot:
            await settled(pilot)
            await until(pilot, lambda: app.editor.edit and app.editor.edit.forecast)
            return await work(app, pilot)


def idle(size: tuple[int, int]) -> list[Spent]:
    return asyncio.run(console(size, lambda a, p: followed(a, p, quiet_scene)))


def busy(size: tuple[int, int]) -> list[Spent]:
    return asyncio.run(console(size, lambda a, p: followed(a, p, busy_scene)))


def drag(size: tuple[int, int]) -> list[Spent]:
    return asyncio.run(console(size, dragged))


def wide(size: tuple[int, int]) -> list[Spent]:
    """Two devices with most of the layers, so that there is a way to drag."""
    scene = busy_scene(0, tuple(f"worker{n}" for n in range(1, 13)), 128)
    assert scene.plan is not None
    split = with_counts(scene.plan.split, (44, 45, *[4] * 10))
    plan = msgspec.structs.replace(scene.plan, split=split)
    scene = msgspec.structs.replace(scene, plan=plan, planned=ranges(split))
    return asyncio.run(console(size, dragged, scene))


WORKS = {"idle": idle, "busy": busy, "drag": drag, "wide": wide}


def main() -> None:
    """Measure and print, or profile."""
    if sys.argv[1:2] == ["--profile"]:
        profile(sys.argv[2])
        return
    size_bytes = len(msgspec.json.encode(large(busy_scene(0))))
    print(f"a snapshot of {size_bytes / 1000:.0f} kB with 80 layers, CPU time:")
    for size in SIZES:
        for name, work in WORKS.items():
            tell(
                f"{name} {size[0]}x{size[1]}", work(size), rate=name in ("idle", "busy")
            )


def tell(title: str, spent: list[Spent], *, rate: bool) -> None:
    """One line of figures."""
    whole, longest = ([*sorted(one)] for one in zip(*spent, strict=True))
    p95 = int(len(spent) * 0.95)
    middle, last = statistics.median(whole), longest[-1]
    core = f"  {statistics.mean(whole) * PER_S / 10:4.1f} % of a core" if rate else ""
    print(
        f"  {title:14} median {middle:6.2f} ms  p95 {whole[p95]:6.2f} ms"
        f"  longest p95 {longest[p95]:6.2f} ms, at most {last:6.2f} ms{core}"
    )


def profile(name: str) -> None:
    watcher = cProfile.Profile()
    watcher.runcall(WORKS[name], (120, 36))
    stats = pstats.Stats(watcher)
    stats.sort_stats("tottime").print_stats(25)
    stats.sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
