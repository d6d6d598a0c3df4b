"""``dllm-tui`` as its user on the head types it, beside a network of peers."""

from __future__ import annotations

import os
import sysconfig
from typing import TYPE_CHECKING

from backends.demo import MODEL_PATH
from tests.engine.conftest import User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hosts.network import Network


MODEL = str(MODEL_PATH)
QUESTION = "Who are you?"


class HeadUser(User):
    """A user on the test machine whose HOME and SSH files are the network's."""

    def __init__(
        self, network: Network, cache: Path, *, state: Path | None = None
    ) -> None:
        """``cache`` has the engines; ``state`` tells users of one HOME apart."""
        super().__init__(state or network.home)
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


def prepared(user: HeadUser, *names: str) -> None:
    """Make peers known, with engine and helper."""
    for name in names:
        user.run("peers", "add", name)
        user.run("peers", "provision", name)


def answer(user: HeadUser) -> str:
    """What is answered without chance, to the same question every time."""
    return str(user.json("chat", QUESTION, "--temperature", "0")["text"])
