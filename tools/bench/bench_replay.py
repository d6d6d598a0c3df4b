"""Measure how long a replay takes to show another moment: ``make bench-tui`` does it.

A record of ten minutes shows a cluster at work on 80 layers. It has a snapshot of
116 kB four times a second. The real console replays it without a terminal, and goes to
moments all over it. Only CPU time of this process counts, so a busy machine changes
little. Figures, no verdict.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

os.environ["TEXTUAL_ANIMATIONS"] = "none"

from backends.client.flight_recorder import FlightRecorder
from backends.client.record_player import FlightRecord, RecordPlayer
from backends.paths import user_paths
from backends.state.delta import framed
from tests.unit.state.scene import busy_scene
from tools.bench.bench_frames import large
from tui.app.replay_app import ReplayApp

LENGTH_S = 600.0
PER_S = 4
SEEKS = 40
SIZE = (120, 36)
TARGET = "/v1/snapshots?cluster=default"


def record(folder: Path) -> Path:
    now_s = 0.0
    recorder = FlightRecorder(
        folder / "record.gz", cluster="default", clock=lambda: now_s
    )
    before = None
    for tick in range(int(LENGTH_S * PER_S)):
        now_s = tick / PER_S
        scene = large(busy_scene(tick))
        recorder.frame(TARGET, framed(scene, before), partial(framed, scene, None))
        before = scene
        while recorder._submitted - recorder._done > 100:
            time.sleep(0.01)
    recorder.close()
    return recorder.file


async def seeks(file: Path, folder: Path, *, ready: bool) -> list[float]:
    """Milliseconds until other moments are drawn.

    Once the curves of the whole record are ``ready``, or before any is.
    """
    player = RecordPlayer(FlightRecord.read(file))
    client = player.client(user_paths())
    app = ReplayApp(client, player, memory_file=folder / "console.json")
    chance, taken_ms = random.Random(1), []
    async with app.run_test(size=SIZE) as pilot:
        if ready:
            await app.workers.wait_for_complete(
                [one for one in app.workers if one.group == "trends"]
            )
        else:
            app.workers.cancel_group(app, "trends")
        app.action_play()
        await pilot.pause()
        for _ in range(SEEKS if ready else 1):
            at_s = chance.uniform(0, LENGTH_S) if ready else LENGTH_S
            began = time.process_time()
            app.seek(at_s)
            await pilot.pause()
            taken_ms.append((time.process_time() - began) * 1000)
    return taken_ms


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        began = time.process_time()
        file = record(folder)
        took_s = time.process_time() - began
        size_mb = file.stat().st_size / 1e6
        print(f"a record of 10 minutes: {size_mb:.1f} MB, written in {took_s:.1f} s")
        began = time.process_time()
        FlightRecord.read(file)
        print(f"  read in     {(time.process_time() - began) * 1000:7.1f} ms")
        (first,) = asyncio.run(seeks(file, folder, ready=False))
        print(f"  first seek  {first:7.1f} ms, to the end, before the curves are ready")
        taken = sorted(asyncio.run(seeks(file, folder, ready=True)))
        p95 = taken[int(len(taken) * 0.95)]
        print(
            f"  seek median {statistics.median(taken):7.1f} ms  p95 {p95:7.1f} ms  "
            f"longest {taken[-1]:7.1f} ms, of {len(taken)}"
        )


if __name__ == "__main__":
    main()
