"""``dllm-tui`` as its user on the head types it, beside a network of peers."""

from __future__ import annotations

import os
import sysconfig
from typing import TYPE_CHECKING

from tests.engine.conftest import User

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hosts.network import Network


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
