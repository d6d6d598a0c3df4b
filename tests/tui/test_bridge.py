"""The bridge: newest snapshot only, paced, and told once when the stream ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from msgspec.structs import replace
from textual.message import Message

from backends.errors import ControllerError
from tests.kit.waiting import PATIENCE_S
from tests.tui import scenes
from tests.tui.scripted import ScriptedCluster
from tui.api.bridge import BROKE, Bridge, LinkLost, LinkRestored, SnapshotTaken


def numbered(seq: int) -> object:
    return replace(scenes.idle(), seq=seq)


@asynccontextmanager
async def listening(
    cluster: ScriptedCluster, interval_s: float = 0.0
) -> AsyncIterator[list[Message]]:
    posted: list[Message] = []
    bridge = Bridge(cluster, posted.append, interval_s=interval_s, retry_s=0.001)
    task = asyncio.create_task(bridge.run())
    yield posted
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def wait_for(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 -- any condition, not one of ours
            await asyncio.sleep(0)


def seqs(posted: list[Message]) -> list[int]:
    return [m.snapshot.seq for m in posted if isinstance(m, SnapshotTaken)]


async def test_the_first_snapshot_comes_at_once() -> None:
    async with listening(ScriptedCluster(scenes.idle()), interval_s=60) as posted:
        await wait_for(lambda: seqs(posted) == [1])


async def test_only_the_newest_of_a_burst_is_posted() -> None:
    cluster = ScriptedCluster(scenes.idle())
    async with listening(cluster, interval_s=0.05) as posted:
        await wait_for(lambda: seqs(posted) == [1])
        for seq in range(2, 50):
            cluster.push(numbered(seq))  # type: ignore[arg-type]
        await wait_for(lambda: len(seqs(posted)) > 1)
        assert seqs(posted) == [1, 49]


async def test_a_broken_stream_is_said_once_and_asked_again() -> None:
    cluster = ScriptedCluster(scenes.idle())
    async with listening(cluster) as posted:
        await wait_for(lambda: seqs(posted))
        cluster.errors["snapshots"] = ControllerError("No socket")
        cluster.lose(ControllerError("The connection broke (EOF)", "Run it again."))
        await wait_for(lambda: cluster.streams >= 4)
        (lost,) = [m for m in posted if isinstance(m, LinkLost)]
        assert lost.reason == BROKE
        del cluster.errors["snapshots"]
        await wait_for(lambda: any(isinstance(m, LinkRestored) for m in posted))


async def test_a_controller_that_takes_its_leave_is_no_loss() -> None:
    """It ends with what it ran; the next one is asked without a word."""
    cluster = ScriptedCluster(scenes.idle())
    async with listening(cluster) as posted:
        await wait_for(lambda: seqs(posted) == [1])
        cluster.now = numbered(2)  # type: ignore[assignment]
        cluster.lose()
        await wait_for(lambda: seqs(posted) == [1, 2])
        assert {type(m) for m in posted} == {SnapshotTaken}


async def test_a_controller_that_ends_before_its_first_word_is_a_loss() -> None:
    cluster = ScriptedCluster(None)
    async with listening(cluster) as posted:
        await wait_for(lambda: cluster.streams)
        cluster.lose()
        await wait_for(lambda: posted)
        assert [type(m) for m in posted] == [LinkLost]


async def test_a_controller_never_there_says_why() -> None:
    cluster = ScriptedCluster(scenes.idle())
    cluster.errors["snapshots"] = ControllerError("Cannot start it", "Look there.")
    async with listening(cluster) as posted:
        await wait_for(lambda: posted)
        lost = posted[0]
        assert isinstance(lost, LinkLost)
        assert lost.reason == "Cannot start it. Look there."


async def test_an_error_nobody_expects_is_said_and_not_the_end() -> None:
    cluster = ScriptedCluster(scenes.idle())
    cluster.errors["snapshots"] = KeyError("oh")
    async with listening(cluster) as posted:
        await wait_for(lambda: cluster.streams >= 3)
        lost = [m for m in posted if isinstance(m, LinkLost)]
        assert ["KeyError" in m.reason for m in lost] == [True]
        del cluster.errors["snapshots"]
        await wait_for(lambda: seqs(posted))


def test_a_newer_snapshot_replaces_an_older_one_only() -> None:
    taken = SnapshotTaken(scenes.idle())
    assert taken.can_replace(SnapshotTaken(scenes.idle()))
    assert not taken.can_replace(LinkRestored())
