"""Archives of sources: made once, however many peers want one at the same time."""

from __future__ import annotations

import asyncio
import os
import tarfile
from typing import TYPE_CHECKING, Any

from backends.engine.versions import SOURCES
from backends.machines import parcels

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from backends.paths import Paths


def _written(file: Path) -> Path:
    file.write_text("as in the sdist")
    return file


async def test_two_peers_at_once_get_one_archive(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = 0

    async def fetch(source: object, folder: Path, **_: Any) -> Path:
        nonlocal fetched
        fetched += 1
        os.mkdir(folder)
        await asyncio.sleep(0.01)
        return _written(folder / "sdist")

    async def unpack(source: object, sdist: Path, tree: Path) -> None:
        await asyncio.sleep(0.01 * fetched)
        os.mkdir(tree)
        _written(tree / "CMakeLists.txt")

    monkeypatch.setattr("backends.engine.fetch.fetch", fetch)
    monkeypatch.setattr("backends.engine.fetch.unpack", unpack)

    def tell(text: str, fraction: float | None) -> None:
        pass

    one, other = await asyncio.gather(
        *(parcels.engine_source(SOURCES[0], paths, tell) for _ in range(2))
    )
    assert one == other
    assert fetched == 1
    with tarfile.open(one) as tar:
        assert tar.getnames() == ["CMakeLists.txt"]
    assert list(one.parent.iterdir()) == [one]
