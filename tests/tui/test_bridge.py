"""The bridge: newest snapshot only, paced, and told once when the stream ends."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from backends.errors import ControllerError
from backends.state import ChatDelta, ChatRequest
from tests.tui import scenes
from tests.tui.scripted import ScriptedCluster
from tui.bridge import Bridge
from tui.messages import LinkLost, LinkRestored, SnapshotTaken
from tui.talk import join, talk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from textual.message import Message


def numbered(seq: int) -> object:
    return msgspec.structs.replace(scenes.idle(), seq=seq)


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
    async with asyncio.timeout(5):
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


async def test_an_ended_stream_is_said_once_and_asked_again() -> None:
    cluster = ScriptedCluster(scenes.idle())
    async with listening(cluster) as posted:
        await wait_for(lambda: seqs(posted))
        cluster.errors["snapshots"] = ControllerError("No socket")
        cluster.lose()
        await wait_for(lambda: cluster.streams >= 4)
        assert [type(m) for m in posted].count(LinkLost) == 1
        del cluster.errors["snapshots"]
        await wait_for(lambda: any(isinstance(m, LinkRestored) for m in posted))


async def test_a_controller_never_there_says_why() -> None:
    cluster = ScriptedCluster(scenes.idle())
    cluster.errors["snapshots"] = ControllerError("Cannot start it", "Look there.")
    async with listening(cluster) as posted:
        await wait_for(lambda: posted)
        lost = posted[0]
        assert isinstance(lost, LinkLost)
        assert lost.reason == "Cannot start it. Look there."


def test_a_newer_snapshot_replaces_an_older_one_only() -> None:
    taken = SnapshotTaken(scenes.idle())
    assert taken.can_replace(SnapshotTaken(scenes.idle()))
    assert not taken.can_replace(LinkRestored())


def test_joined_deltas_lose_nothing() -> None:
    first = ChatDelta(text="a", reasoning="x", prompt_progress=0.5)
    second = ChatDelta(text="b", reasoning="y", done=True, finish_reason="stop")
    both = join(first, second)
    assert (both.text, both.reasoning, both.done) == ("ab", "xy", True)
    assert both.finish_reason == "stop"


async def test_an_answer_ends_exactly_once() -> None:
    cluster = ScriptedCluster(scenes.idle())
    cluster.answer = [ChatDelta(text="a"), ChatDelta(text="b")]
    shown: list[ChatDelta] = []
    await talk(cluster, ChatRequest(messages=()), shown.append)
    assert "".join(delta.text for delta in shown) == "ab"
    assert [delta.done for delta in shown].count(True) == 1
    assert shown[-1].done
