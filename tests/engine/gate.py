"""A load that cannot end before a test lets it: what is to happen meanwhile does."""

from __future__ import annotations

import os
from shlex import quote

import psutil

from backends.engine.find import find_engine
from backends.paths import user_paths
from tests.engine.conftest import User, wait_for
from tests.kit.processes import with_word

# Questions (--version, --help) pass; a server that is to serve waits.
SERVER = """#!/bin/sh
case " $* " in *" --port "*) while [ -e {gate} ]; do sleep 0.02; done ;; esac
exec {server} "$@"
"""


class Gate:
    """Keeps the llama-server of a user from beginning, until a worker is suspended."""

    def __init__(self, user: User) -> None:
        self._user = user
        self._closed = user.home / "gate"
        self._closed.touch()
        real = find_engine(None, user_paths())
        folder = user.home / "engine"
        folder.mkdir()
        for program in (real.worker_path, real.fit_path):
            (folder / os.path.basename(program)).symlink_to(program)
        script = folder / "llama-server"
        paths = {"gate": str(self._closed), "server": real.server_path}
        script.write_text(SERVER.format(**{k: quote(v) for k, v in paths.items()}))
        script.chmod(0o755)
        user.env["DLLM_ENGINE_DIR"] = str(folder)

    def freeze_load(self) -> psutil.Process:
        """Let the load begin with a suspended worker, which is returned."""
        wait_for(lambda: self._running("--port", "llama-server"), "llama-server")
        worker = self._running("-p", "ggml-rpc-server")[0]
        worker.suspend()
        wait_for(lambda: worker.status() == psutil.STATUS_STOPPED, "it is suspended")
        self._closed.unlink()
        return worker

    def _running(self, option: str, name: str) -> list[psutil.Process]:
        return with_word(self._user.processes(), option, name)
