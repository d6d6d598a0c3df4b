"""Asking a relay which weights its worker got."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from backends.link import relay as module
from backends.link.relay import worker_weights
from backends.state.links import DeviceWeights, Held, LayersHeld, WorkerWeights

HELLO = b'{"type":"hello","format":1}\n'
PLACEMENT = (
    b'{"type":"placement","worker":"w","complete":true,"devices":[{"device":1,'
    b'"layers":[[0,5,9,714240]],"embedding":[1,8],"output":[2,787200]}]}\n'
)


@asynccontextmanager
async def relay(path: Path, *answers: bytes) -> AsyncIterator[Path]:
    """One that says something else to every new reader, and its last word at last."""
    left = list(answers)

    async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(tell, path):
        yield path


async def test_it_is_among_the_first_lines(tmp_path: Path) -> None:
    async with relay(tmp_path / "s", HELLO + PLACEMENT) as path:
        assert await worker_weights(path) == WorkerWeights(
            complete=True,
            devices=(
                DeviceWeights(
                    device=1,
                    layers=(LayersHeld(0, 5, 9, 714240),),
                    embedding=Held(1, 8),
                    output=Held(2, 787200),
                ),
            ),
        )


async def test_a_connection_lost_on_the_way_is_made_again(tmp_path: Path) -> None:
    async with relay(tmp_path / "s", b"", HELLO + PLACEMENT) as path:
        assert await worker_weights(path)


@pytest.mark.parametrize("answer", [b"", b"junk\n", HELLO * 9, PLACEMENT[:40]])
async def test_a_relay_that_does_not_say(tmp_path: Path, answer: bytes) -> None:
    async with relay(tmp_path / "s", answer) as path:
        assert await worker_weights(path) is None
    assert await worker_weights(tmp_path / "none") is None


async def test_a_relay_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    silent = asyncio.Event()

    async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await silent.wait()
        writer.close()

    async with await asyncio.start_unix_server(tell, tmp_path / "s"):
        assert await worker_weights(tmp_path / "s") is None
        silent.set()
