"""``python -m backends.gateway``: one cluster's gateway, on the loopback."""

from __future__ import annotations

from backends.startup import importing, trusting_nobody

with importing(), trusting_nobody():
    import argparse
    import asyncio
    import contextlib
    import errno
    import logging
    import os
    import resource
    import signal
    import sys
    from pathlib import Path

    from backends.errors import DllmError
    from backends.gateway.auth import Auth
    from backends.gateway.control import Control
    from backends.gateway.control_messages import PORT_TAKEN, PROTOCOL, Mode, Target
    from backends.gateway.listen_settings import (
        ListenSettings,
        add_arguments,
        listen_settings_in,
    )
    from backends.gateway.proxy import Proxy
    from backends.gateway.server import Listener, Server
    from backends.tasks import end_tasks

from collections.abc import Callable

log = logging.getLogger("backends.gateway")

FILES_MAX = 10240
"""Open files, where the system names no limit but has one."""


def main() -> int:
    """Run until told to end: then 0. Where it cannot start, a sentence and why."""
    os.umask(0o077)
    _allow_connections()
    parser = argparse.ArgumentParser(prog="backends.gateway")
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--protocol", type=int, choices=[PROTOCOL], required=True)
    add_arguments(parser)
    arguments = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stdout,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    try:
        with asyncio.Runner(loop_factory=_quickest_loop()) as runner:
            access = listen_settings_in(arguments)
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
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None


def _allow_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (hard, FILES_MAX):
        if soft < limit or soft < 0:
            with contextlib.suppress(ValueError, OSError):
                return resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


async def _start_controller() -> None:
    # What a gateway that is never alone does not need takes long to import.
    from backends.client.start import ensure_running
    from backends.paths import user_paths

    await ensure_running(user_paths())


async def run(port: int, socket: Path, access: ListenSettings) -> None:
    """Serve until a signal says to end.

    Raises:
        DllmError: the certificate cannot be used.
        OSError: the port cannot be listened at.
    """
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with Proxy() as proxy:
        listener = Listener(Server(Auth(proxy, access).answer), access, port)
        control = Control(proxy, socket, listener)
        tasks = [
            asyncio.create_task(control.keep()),
            asyncio.create_task(control.call(_start_controller)),
        ]
        try:
            await listener.open()
            await ended.wait()
            if proxy.target.mode is not Mode.END:
                proxy.queue.turn_to(Target(mode=Mode.END))
        finally:
            await listener.close()
            await end_tasks(*tasks)


if __name__ == "__main__":
    sys.exit(main())
