"""``python -m backends.gateway``: one cluster's gateway, on the loopback."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from aiohttp import web

from backends.gateway.control import Control
from backends.gateway.language import LANGUAGE, Mode, Target
from backends.gateway.proxy import Proxy

log = logging.getLogger("backends.gateway")

LOOPBACK = "127.0.0.1"
BACKLOG = 512
SHUTDOWN_S = 2.0
"""Answers that are under way when it is told to end have so long."""


def main() -> int:
    """Run until told to end; 0 when ended, 1 with a sentence when it cannot start."""
    os.umask(0o077)
    arguments = _arguments()
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stdout,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    try:
        asyncio.run(run(arguments.port, arguments.socket))
    except OSError as error:
        sys.stderr.write(
            f"The gateway cannot listen on {LOOPBACK}:{arguments.port}: "
            f"{error.strerror or error}\n"
        )
        return 1
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="backends.gateway")
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--language", type=int, choices=[LANGUAGE], required=True)
    return parser.parse_args()


def server_of(proxy: Proxy) -> web.Server:
    """What reads requests and has them answered.

    A client who leaves ends its request, also before the first token; a body that is
    compressed is llama-server's to unpack.
    """
    return web.Server(
        proxy.answer,
        handler_cancellation=True,
        access_log=None,
        auto_decompress=False,
    )


async def run(port: int, socket: Path) -> None:
    """Serve until a signal says to end.

    Raises:
        OSError: the port cannot be listened at.
    """
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with Proxy() as proxy:
        runner = web.ServerRunner(server_of(proxy), shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        control = asyncio.ensure_future(Control(proxy, socket).keep())
        try:
            await web.TCPSite(runner, LOOPBACK, port, backlog=BACKLOG).start()
            log.info("listening on %s:%d", LOOPBACK, port)
            await ended.wait()
            if proxy.target.mode is not Mode.END:
                proxy.turn_to(Target(mode=Mode.END))
        finally:
            control.cancel()
            await asyncio.gather(control, return_exceptions=True)
            await runner.cleanup()


if __name__ == "__main__":
    sys.exit(main())
