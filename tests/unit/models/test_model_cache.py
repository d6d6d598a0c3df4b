"""A header on a peer is read once for a while."""

from __future__ import annotations

import time

import pytest

from backends.demo import MODEL_PATH
from backends.models.catalogue import LOOK_AGAIN_S, ModelCache
from backends.models.layers import read_model
from backends.state import ModelInfo


async def test_a_peer_is_asked_once_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str]] = []

    async def elsewhere(peer: str, path: str) -> ModelInfo:
        asked.append((peer, path))
        return read_model(MODEL_PATH)

    cache = ModelCache()
    cache.elsewhere = elsewhere
    start = time.monotonic()
    for _ in range(3):
        await cache.get("bob:/m.gguf")
    assert asked == [("bob", "/m.gguf")]
    monkeypatch.setattr(time, "monotonic", lambda: start + LOOK_AGAIN_S + 1)
    await cache.get("bob:/m.gguf")
    assert len(asked) == 2
