"""A lab that no relay takes is refused at the controller's border, whoever asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from backends.config import Config
from backends.controller.relays import Links
from backends.controller.snapshot_store import SnapshotStore
from backends.errors import HostError, UsageError
from backends.link.wire import require_possible
from backends.state import LAB_DELAY_MAX_MS, LAB_RATE_MAX_MB_S, Lab

if TYPE_CHECKING:
    from pathlib import Path

MOST = Lab(
    latency_ms=LAB_DELAY_MAX_MS, jitter_ms=LAB_DELAY_MAX_MS, rate_mb_s=LAB_RATE_MAX_MB_S
)


@pytest.mark.parametrize(
    ("beyond", "sentence"),
    [
        ({"latency_ms": LAB_DELAY_MAX_MS + 1}, "delays by 60 s at most"),
        ({"jitter_ms": LAB_DELAY_MAX_MS + 1}, "delays by 60 s at most"),
        ({"rate_mb_s": LAB_RATE_MAX_MB_S + 1}, "limits a link to 1000 GB/s at most"),
        ({"latency_ms": -1.0}, "less than nothing"),
        ({"seed": -1}, "less than nothing"),
    ],
)
async def test_what_no_relay_takes_is_refused(
    beyond: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    links = Links(SnapshotStore(Config))
    async with links.following({"worker1": tmp_path / "s"}, lambda _: None):
        with pytest.raises(UsageError, match=sentence):
            await links.set_lab(None, replace(MOST, **beyond))
        # What it can do reaches the relay, which is not there.
        with pytest.raises(HostError, match="relay of worker1 does not answer"):
            await links.set_lab(None, MOST)


def test_the_limits_themselves_can_be_had() -> None:
    require_possible(MOST)
