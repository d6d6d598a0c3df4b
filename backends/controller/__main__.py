"""``python -m backends.controller``: the background process itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from logging.handlers import RotatingFileHandler
from typing import TYPE_CHECKING

from aiohttp import web

from backends.controller.api import Api
from backends.controller.board import Board
from backends.controller.journal import Journal
from backends.controller.links import Links
from backends.controller.lock import hold_lock
from backends.controller.machines import LocalMachine
from backends.controller.peer_api import PeerApi
from backends.controller.peers import Peers
from backends.controller.places import LOCAL
from backends.controller.readers import Readers
from backends.controller.supervisor import Supervisor
from backends.errors import DllmError
from backends.models.catalogue import Catalogue
from backends.models.folders import user_folders
from backends.paths import Paths, checked_socket, make_private, user_paths
from backends.peers.local import LocalHost

if TYPE_CHECKING:
    from pathlib import Path

    from backends.controller.machines import Machines

log = logging.getLogger("backends.controller")

LOG_BYTES_MAX = 1 << 20
# With nothing running and nobody connected the controller has no reason to stay.
IDLE_EXIT_S = 600.0
REFRESH_S = 5.0
SHUTDOWN_S = 1.0


def main() -> int:
    """Run until told to end; 0 when ended, 1 with a sentence when it cannot start."""
    paths = user_paths()
    os.umask(0o077)
    _forget_llama_arguments()
    try:
        make_private(paths.runtime_dir)
        make_private(paths.state_dir)
        _log_to(paths.controller_log)
        lock = hold_lock(paths.lock)
        asyncio.run(run(paths))
    except DllmError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"The controller cannot start: {error}\n")
        return 1
    os.close(lock)
    return 0


def _forget_llama_arguments() -> None:
    """llama-server obeys LLAMA_ARG_* too; a plan must be all that it obeys."""
    for name in [name for name in os.environ if name.startswith("LLAMA_ARG_")]:
        del os.environ[name]


def _log_to(file: Path) -> None:
    handler = RotatingFileHandler(file, maxBytes=LOG_BYTES_MAX, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)


async def run(paths: Paths) -> None:
    """Serve the API and the cluster until the API or a signal says to end."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    readers = Readers(paths)
    board = Board(readers.config)
    here = LocalMachine(LocalHost(paths.run_dir), readers, paths.relay_socket)
    peers = Peers(here, readers, paths, board)
    readers.elsewhere = peers.model
    links = Links(board)
    journal = Journal(paths.journal_file)
    supervisor = Supervisor(peers, board, journal, readers, links)
    catalogue = Catalogue(user_folders(readers.config().model_dirs))
    api = Api(
        supervisor=supervisor,
        board=board,
        readers=readers,
        catalogue=catalogue,
        machines=peers,
        links=links,
        peer_api=PeerApi(peers),
        ended=ended,
    )
    peers.start(supervisor.settle)
    await supervisor.adopt()
    async with Listening(api.application(), checked_socket(paths)):
        log.info("controller %d serves %s", os.getpid(), paths.socket)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_find_engine(readers, board)),
                group.create_task(_keep_fresh(api, supervisor, board, peers, ended)),
            ]
            catalogue.start_refresh()
            await ended.wait()
            board.close()
            for task in tasks:
                task.cancel()
    await supervisor.leave()
    await peers.close()
    log.info("controller %d ends", os.getpid())


class Listening:
    """Listens on a Unix socket only this user can open; removes it at the end."""

    def __init__(self, application: web.Application, socket: Path) -> None:
        """Nothing happens before ``async with``."""
        # A reader who leaves must end its generation, also before the first token.
        self._runner = web.AppRunner(
            application, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S
        )
        self._socket = socket

    async def __aenter__(self) -> None:
        """Replace a stale socket: the lock says nobody else serves it."""
        self._socket.unlink(missing_ok=True)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self._socket)).start()
        self._socket.chmod(0o600)

    async def __aexit__(self, *exc: object) -> None:
        """Stop listening, let answers end, remove the socket."""
        await self._runner.cleanup()
        self._socket.unlink(missing_ok=True)


async def _find_engine(readers: Readers, board: Board) -> None:
    """Show the engine a launch would use, or what is missing."""
    try:
        engine = await readers.engine()
    except DllmError as error:
        if board.snapshot.engine is None and not board.snapshot.message:
            board.update(message=str(error))
    else:
        board.update(engine=engine.info)


async def _keep_fresh(
    api: Api,
    supervisor: Supervisor,
    board: Board,
    machines: Machines,
    ended: asyncio.Event,
) -> None:
    """Refresh what is shown while somebody looks; end after a long idle time."""
    idle_s = 0.0
    while not ended.is_set():
        await asyncio.sleep(REFRESH_S)
        if api.streams and not supervisor.busy:
            with contextlib.suppress(DllmError):
                await machines.get(LOCAL).look()
                await board.refresh(machines)
        idle_s = 0.0 if api.streams or supervisor.busy else idle_s + REFRESH_S
        if idle_s >= IDLE_EXIT_S:
            log.info("idle for %.0f s", idle_s)
            ended.set()


if __name__ == "__main__":
    sys.exit(main())
