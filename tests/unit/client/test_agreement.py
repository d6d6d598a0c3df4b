"""A controller of another release: an older one is replaced, a newer one named."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

from backends.client.client import ControllerClient
from backends.client.http import ASKING, ClientFacts
from backends.client.start import answers
from backends.controller.lock import lock_holder
from backends.errors import ControllerError
from backends.paths import Paths
from backends.state import API_VERSION

OTHER_RELEASE = """
import sys
import backends.controller.__main__ as controller
controller.API_VERSION = int(sys.argv[1])
sys.exit(controller.main())
"""


async def started(paths: Paths, api: int) -> subprocess.Popen[bytes]:
    """A controller of another release, listening."""
    paths.runtime_dir.mkdir(mode=0o700, exist_ok=True)
    # It outlives this call; the fixture ends what is left.
    process = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, "-c", OTHER_RELEASE, str(api)]
    )
    async with asyncio.timeout(20):
        while not await answers(paths.socket):  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.02)
    return process


async def test_an_older_controller_is_replaced(home: Path, paths: Paths) -> None:
    old = await started(paths, API_VERSION - 1)
    client = ControllerClient(paths)
    snapshot = await client.snapshot()
    assert await asyncio.to_thread(old.wait, 5) == 0
    assert snapshot.controller_pid != old.pid
    holder = lock_holder(paths.lock)
    assert holder is not None
    assert (holder.pid, holder.api) == (snapshot.controller_pid, API_VERSION)


async def test_what_is_no_controller_is_left_alone_and_named(
    home: Path, paths: Paths
) -> None:
    paths.runtime_dir.mkdir(mode=0o700, exist_ok=True)
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.UnixSite(runner, str(paths.socket)).start()
    with pytest.raises(ControllerError, match=r"sock does not say of which release"):
        await ControllerClient(paths).snapshot()
    await runner.cleanup()


async def test_a_newer_controller_is_left_alone_and_named(
    home: Path, paths: Paths
) -> None:
    new = await started(paths, API_VERSION + 1)
    with pytest.raises(ControllerError, match=f"newer dllm-tui .*pid {new.pid}"):
        await ControllerClient(paths).snapshot()
    assert new.poll() is None


async def test_two_clients_replace_an_older_one_together(
    home: Path, paths: Paths
) -> None:
    old = await started(paths, 1)
    snapshots = await asyncio.gather(
        *(ControllerClient(paths).snapshot() for _ in range(4))
    )
    pids = {snapshot.controller_pid for snapshot in snapshots}
    assert len(pids) == 1
    assert old.pid not in pids
    os.kill(pids.pop(), 0)


async def test_an_older_controller_stays_where_one_only_watches(
    home: Path, paths: Paths
) -> None:
    old = await started(paths, API_VERSION - 1)
    token = ASKING.set(ClientFacts(readonly=True))
    with pytest.raises(ControllerError, match="of an older dllm-tui, and where you"):
        await ControllerClient(paths).snapshot()
    ASKING.reset(token)
    assert old.poll() is None
