"""``python -m backends.controller``: the background process itself."""

from __future__ import annotations

from backends.startup import importing, trusting_nobody

with importing(), trusting_nobody():
    import asyncio
    import contextlib
    import getpass
    import logging
    import math
    import os
    import signal
    import socket
    import sys
    import time
    from functools import partial
    from importlib.metadata import version
    from logging.handlers import RotatingFileHandler

    from backends.controller.api import Api
    from backends.controller.chat.store import Chats, ChatStore
    from backends.controller.clusters import Clusters
    from backends.controller.http_server import Listening, Parts
    from backends.controller.lock import hold_lock
    from backends.controller.settings_reload import SettingsReloader
    from backends.controller.usage_monitor import UsageMonitor
    from backends.errors import ControllerError, DllmError
    from backends.machine_names import LOCAL
    from backends.machines.gossip import Gossip, known_machine
    from backends.machines.local import local_agent
    from backends.machines.local_inventory import LocalInventory
    from backends.machines.machine import LocalMachine
    from backends.machines.peers import Peers
    from backends.models.catalogue import Catalogue
    from backends.models.search import user_folders
    from backends.paths import Paths, checked_socket, make_private, user_paths
    from backends.state import API_VERSION, ControllerInfo, KnownMachine
    from backends.tasks import end_others

from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("backends.controller")

LOG_BYTES_MAX = 1 << 20
# With nothing running and nobody connected the controller has no reason to stay.
IDLE_EXIT_S = 600.0
REFRESH_S = 5.0
LOOK_S = 1.0
TURN_S = 0.5
"""Between two looks of a service whether it is its turn."""


def main() -> int:
    """Run until a signal or the API ends it; 1 with a sentence if it cannot start."""
    stays = "--stay" in sys.argv[1:]
    paths = user_paths()
    os.umask(0o077)
    # llama-server obeys LLAMA_ARG_* too; a plan must be all that it obeys.
    for name in [name for name in os.environ if name.startswith("LLAMA_ARG_")]:
        del os.environ[name]
    try:
        make_private(paths.runtime_dir)
        make_private(paths.state_dir)
        file = paths.controller_log
        handler = RotatingFileHandler(file, maxBytes=LOG_BYTES_MAX, backupCount=1)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.basicConfig(level=logging.INFO, handlers=[handler])
        # They tell of every request and every channel: megabytes an hour.
        for talkative in ("aiohttp.access", "asyncssh"):
            logging.getLogger(talkative).setLevel(logging.WARNING)
        info = ControllerInfo(
            api=API_VERSION,
            version=version("dllm-tui"),
            pid=os.getpid(),
            socket=str(checked_socket(paths)),
        )
        lock = _turn(paths.lock, info, stays=stays)
        asyncio.run(run(paths, info, stays=stays))
    except DllmError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"The controller cannot start: {error}\n")
        return 1
    os.close(lock)
    return 0


def _turn(path: Path, info: ControllerInfo, *, stays: bool) -> int:
    while True:
        try:
            return hold_lock(path, info)
        except ControllerError:
            if not stays:
                raise
        time.sleep(TURN_S)


async def run(paths: Paths, info: ControllerInfo, *, stays: bool = False) -> None:
    """Serve the API and the cluster until the API or a signal says to end.

    One that does not stay ends too when there was nothing to do for long.
    """
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    agent = local_agent(paths.run_dir)
    inventory = LocalInventory(paths, agent)
    clusters = Clusters(inventory, paths)
    catalogue = Catalogue(agent, user_folders(inventory.settings().model_dirs))
    here = LocalMachine(
        agent, inventory, paths.relay_socket, lambda: catalogue.listing.models
    )
    peers = Peers(
        here, inventory, paths, show=clusters.show_peers, serves=clusters.serves
    )
    inventory.models.elsewhere = lambda name, path: peers.ssh(name).model(path)
    inventory.serves = lambda: clusters.serves(LOCAL)
    chats = Chats(
        ChatStore(paths.chats_dir), _keeps_chats(inventory, paths.config_file)
    )
    reloader = SettingsReloader(
        paths.config_file, inventory, catalogue, clusters, peers
    )
    gossip = Gossip(
        peers,
        paths.told_dir,
        own=partial(_own_machine, clusters, catalogue),
        serves=clusters.serves,
        is_on=lambda: inventory.settings().gossip,
    )
    usage = UsageMonitor(clusters, peers)
    parts = Parts(
        inventory=inventory,
        clusters=clusters,
        catalogue=catalogue,
        peers=peers,
        chats=chats,
        reloader=reloader,
        gossip=gossip,
        usage=usage,
        info=info,
        ended=ended,
    )
    api = Api(parts)
    await _begin(clusters, peers)
    reloader.show(inventory.settings_error)
    async with Listening(api.application(), checked_socket(paths)) as listening:
        log.info("controller %d serves %s", os.getpid(), paths.socket)
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(listening.keep()),
                group.create_task(clusters.look_for_engine()),
                group.create_task(_keep_fresh(api, clusters, ended, stays=stays)),
                group.create_task(_look_for_silent(clusters)),
                group.create_task(reloader.run()),
                group.create_task(usage.run()),
                group.create_task(gossip.run()),
            ]
            catalogue.start_refresh()
            await ended.wait()
            clusters.close()
            await chats.close()
            for task in tasks:
                task.cancel()
    await clusters.leave()
    await peers.close()
    # Requests whose askers left would start the agent again.
    await end_others()
    await agent.close()
    log.info("controller %d ends", os.getpid())


async def _begin(clusters: Clusters, peers: Peers) -> None:
    await clusters.start(peers)
    try:
        peers.start(clusters.settle)
    except DllmError as error:
        log.error("%s", error)
        clusters.get().store.update(message=str(error))
        clusters.begin(error)
    else:
        clusters.begin()


def _own_machine(clusters: Clusters, catalogue: Catalogue) -> KnownMachine:
    peers = clusters.get().store.snapshot.peers
    devices = [d for peer in peers if peer.name == LOCAL for d in peer.devices]
    user = ""
    # As in a container, where nothing tells the name of this user.
    with contextlib.suppress(KeyError, OSError):
        user = f"{getpass.getuser()}@"
    models = catalogue.listing.models
    return known_machine(socket.gethostname(), user, devices, models)


def _keeps_chats(inventory: LocalInventory, file: Path) -> Callable[[], bool]:
    """Return a function that is true if chats are to be written.

    It is false until the settings could be read. If ``keep_chats`` is off and the file
    is missing, it stays off: an editor may be replacing the file.
    """
    keeps: bool | None = None

    def look() -> bool:
        nonlocal keeps
        if keeps is not False or file.exists():
            with contextlib.suppress(DllmError):
                keeps = inventory.config().keep_chats
        return bool(keeps)

    return look


async def _keep_fresh(
    api: Api, clusters: Clusters, ended: asyncio.Event, *, stays: bool
) -> None:
    """Refresh what is shown while somebody looks; end after a long idle time."""
    idle_s = 0.0
    while not ended.is_set():
        await asyncio.sleep(REFRESH_S)
        try:
            if api.streams:
                await clusters.book.weigh()
                await clusters.look_at_memory()
                for cluster in clusters:
                    await cluster.look_at_fallbacks(math.inf)
        except Exception:
            log.exception("what is shown is refreshed again")
        idle_s = 0.0 if api.in_use else idle_s + REFRESH_S
        if idle_s >= IDLE_EXIT_S and not stays:
            log.info("idle for %.0f s", idle_s)
            ended.set()


async def _look_for_silent(clusters: Clusters) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            await clusters.look_for_silent()
        except Exception:
            log.exception("who responds is looked for again")


if __name__ == "__main__":
    sys.exit(main())
