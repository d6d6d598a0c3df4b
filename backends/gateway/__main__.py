"""``python -m backends.gateway``: one cluster's gateway, on the loopback."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from backends.errors import DllmError
from backends.garbage import spare_modules
from backends.gateway.access import Access, access_in, add_arguments
from backends.gateway.control import Control
from backends.gateway.door import Door
from backends.gateway.doorstep import Doorstep
from backends.gateway.http_log import http_log
from backends.gateway.language import LANGUAGE, PORT_TAKEN, Mode, Target
from backends.gateway.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("backends.gateway")

IDLE_S = 75.0
"""A connection on which nobody asks anything is closed: there are only so many."""
SHUTDOWN_S = 2.0
"""Answers that are under way when it is told to end have so long."""


def main() -> int:
    """Run until told to end: then 0. Where it cannot start, a sentence and why."""
    spare_modules()
    os.umask(0o077)
    arguments = _arguments()
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stdout,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    try:
        with asyncio.Runner(loop_factory=_quickest_loop()) as runner:
            access = access_in(arguments)
            runner.run(run(arguments.port, arguments.socket, access))
    except DllmError as error:
        sys.stderr.write(f"The gateway cannot start: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(
            f"The gateway cannot listen at port {arguments.port}: "
            f"{error.strerror or error}\n"
        )
        return PORT_TAKEN if error.errno == errno.EADDRINUSE else 1
    return 0


def _quickest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where that is there; else asyncio's own."""
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="backends.gateway")
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--language", type=int, choices=[LANGUAGE], required=True)
    add_arguments(parser)
    return parser.parse_args()


def server_of(answerer: Door | Proxy) -> web.Server:
    """What reads requests and has them answered.

    A client who leaves ends its request, also before the first token; a body that is
    compressed is llama-server's to unpack.
    """
    return web.Server(
        answerer.answer,
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=IDLE_S,
        logger=http_log(),
        auto_decompress=False,
    )


async def run(port: int, socket: Path, access: Access) -> None:
    """Serve until a signal says to end.

    Raises:
        DllmError: the certificate cannot be used.
        OSError: the port cannot be listened at.
    """
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with Proxy() as proxy:
        door = server_of(Door(proxy, access))
        runner = web.ServerRunner(door, shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        control = asyncio.ensure_future(Control(proxy, socket).keep())
        doorstep = Doorstep(runner, access, port)
        try:
            await doorstep.open()
            await ended.wait()
            if proxy.target.mode is not Mode.END:
                proxy.turn_to(Target(mode=Mode.END))
        finally:
            await doorstep.close()
            control.cancel()
            await asyncio.gather(control, return_exceptions=True)
            await runner.cleanup()


if __name__ == "__main__":
    sys.exit(main())
