"""One user who gets models from one hub, each in a process of its own."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backends.errors import DllmError
from backends.models.download import download
from tests.kit.waiting import until

if TYPE_CHECKING:
    from backends.state.models import Download
    from tests.unit.models.hub import Hub

NAME = "m-Q4_0.gguf"
HUB, URL = "owner/name", "url"


def bytes_of(got: Download) -> bytes:
    return Path(got.path).read_bytes()


class Getting:
    """Gets models as one user, from one hub."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub = hub
        self.folder = folder
        self.told: list[Download] = []
        self.env = {
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    async def get(self, source: str = HUB) -> Download:
        source = self.url if source == URL else source
        told: list[Download] = []
        async with aclosing(download(source, self.folder, self.env)) as progress:
            async for one in progress:
                told.append(one)
                self.told = told
        return told[-1]

    async def fails(self, source: str = HUB) -> str:
        with pytest.raises(DllmError) as caught:
            await self.get(source)
        told = str(caught.value)
        assert "\n" not in told
        return told

    async def begins(self, source: str) -> asyncio.Task[Download]:
        """Get half of a model; the rest comes when the hub may go on."""
        self.hub.go.clear()
        half = self.hub.hold_after = len(self.hub.files[NAME]) // 2
        task = asyncio.create_task(self.get(source))
        await until(lambda: self.half_bytes() > half // 2)
        return task

    async def is_ended_midway(self, source: str) -> None:
        task = await self.begins(source)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.hub.hold_after = None
        self.hub.go.set()

    def half_bytes(self) -> int:
        """Bytes that have come of what is not whole."""
        return sum(part.stat().st_size for part in self.folder.rglob("*.part"))

    @property
    def url(self) -> str:
        return f"{self.hub.url}/cdn/{NAME}"

    def files(self) -> list[str]:
        return [p.name for p in self.folder.rglob("*") if p.is_file()]
