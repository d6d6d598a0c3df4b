"""``dllm-tui`` as its user on the head types it, beside a network of peers."""

from __future__ import annotations

import asyncio
import os
import shutil
import sysconfig
from typing import TYPE_CHECKING

import pytest

from backends.client.client import ControllerClient
from backends.demo import MODEL_PATH
from backends.paths import Paths, user_paths
from backends.state import PeerState
from tests.engine.conftest import User
from tests.hosts.container import HOME
from tui.cli.peers import settled_peer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hosts.machine import Machine
    from tests.hosts.network import Network


MODEL = str(MODEL_PATH)
QUESTION = "Who are you?"
CACHE_THERE = f"{HOME}/.cache/dllm-tui"
"""On a peer."""


class HeadUser(User):
    """A user on the test machine whose HOME and SSH files are the network's."""

    def __init__(
        self, network: Network, cache: Path, *, state: Path | None = None
    ) -> None:
        """``cache`` has the engines; ``state`` tells users of one HOME apart."""
        super().__init__(state or network.home)
        self.network = network
        self.home.mkdir(exist_ok=True)
        self.cache = cache
        (self.home / "run").mkdir(mode=0o700, exist_ok=True)
        scripts = sysconfig.get_path("scripts")
        folders = {k: v for k, v in self.env.items() if k.startswith("XDG_")}
        more = {
            "XDG_CACHE_HOME": str(cache),
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "NO_COLOR": "1",
        }
        self.env = network.env(**{**folders, **more})

    @property
    def paths(self) -> Paths:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self.env.items():
                patch.setenv(name, value)
            return user_paths()


def prepared(user: HeadUser, *names: str) -> None:
    """Make peers known, with engine and helper.

    They are installed on the first peer of a session; all others get a copy of that.
    """
    folders = [user.network.peer(name).inside(CACHE_THERE) for name in names]
    kept = user.network.directory / "installed"
    if kept.exists():
        shutil.copytree(kept, folders[0])
    user.run("peers", "add", names[0])
    if not kept.exists():
        user.run("peers", "provision", names[0])
        # A copy that is broken off is not taken for the whole.
        half = kept.with_suffix(".half")
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(folders[0], half)
        half.rename(kept)
    for folder in folders[1:]:
        shutil.copytree(kept, folder)
    asyncio.run(_become_ready(user, names))


def engine_folder(machine: Machine) -> Path:
    """Where the engine of a prepared peer is."""
    engines = machine.inside(f"{CACHE_THERE}/engines")
    (server,) = engines.glob("*/llama-server")
    return server.parent


async def _become_ready(user: HeadUser, names: tuple[str, ...]) -> None:
    client = ControllerClient(user.paths)
    for name in names[1:]:
        await client.add_peer(name, ssh=name)
    for name in names:
        peer = await settled_peer(client, name)
        assert peer.state is PeerState.READY, peer.note


def answer(user: HeadUser) -> str:
    """What is answered without chance, to the same question every time."""
    return user.ask(QUESTION)


_ANSWERED_HERE: list[str] = []


def answer_here(user: HeadUser) -> str:
    """The same of this machine's own workers; they are started for it once a session.

    Nothing of the user's may serve.
    """
    if not _ANSWERED_HERE:
        user.up(MODEL, "--workers", "2")
        _ANSWERED_HERE.append(answer(user))
        user.run("stop")
    return _ANSWERED_HERE[0]
