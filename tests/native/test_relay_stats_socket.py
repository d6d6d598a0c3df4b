"""The socket of a relay's figures, when its directory vanishes and comes back."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

from tests.kit.waiting import wait_until
from tests.native.relaying import HELLO_REQUEST, Relay, Stats, Worker, greet, running


def meet(head: Relay, worker: Worker, stats: Stats, bytes_up: int) -> None:
    with head.connect() as client, worker.accept() as peer:
        greet(client, peer)
        stats.snapshot(bytes_up=bytes_up)


def answers(head: Relay) -> bool:
    try:
        head.stats().close()
    except OSError:
        return False
    return True


def test_figures_can_be_had_again_where_the_directory_vanished(
    relay: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "runtime"
    folder.mkdir()
    path, hello = folder / "w.sock", len(HELLO_REQUEST)
    with (
        Worker() as worker,
        running(relay, worker.port, path) as head,
        head.stats() as before,
    ):
        shutil.rmtree(folder)
        meet(head, worker, before, hello)
        folder.mkdir(mode=0o700)
        wait_until(lambda: answers(head), "its socket")
        with head.stats() as after:
            after.snapshot(bytes_up=hello)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        # What another has put there is not ours to replace.
        path.unlink()
        path.write_text("another's")
        meet(head, worker, before, 2 * hello)
        meet(head, worker, before, 3 * hello)
        assert path.read_text() == "another's"
