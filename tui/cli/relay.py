"""``dllm-tui relay``: machines behind routers meet at a host that both can reach."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import click

from backends.errors import MachineError, UsageError
from backends.mesh.relay_access import (
    RELAY_PORT,
    RelayAccess,
    RelayFile,
    own_relay_key,
    parse_access,
    try_relay,
)
from backends.mesh.worker_status import LogEntry
from backends.paths import user_paths
from backends.service.manager import ServiceState
from backends.service.unit import command_service
from backends.tasks import end_tasks
from backends.units import format_bytes
from tui.cli.command import Group, options, quantity
from tui.cli.output import say
from tui.cli.service import add_unit_commands, dry_run_option, installed, unit_lines
from tui.cli.worker import read_secret
from tui.cli.worker_status import show_entry

if TYPE_CHECKING:
    from backends.mesh.iroh_relay import RelayTraffic

EXAMPLES = """
dllm-tui relay                          on a host that all can reach
dllm-tui relay run --listen 0.0.0.0:50090 --rate 2MB --clients 16
dllm-tui relay access --address relay.example.org    show what they need
dllm-tui relay access --new             make another key
dllm-tui relay use - < access.txt       on each machine that is lent
dllm-tui relay leave                    use none any more
dllm-tui relay service install
dllm-tui relay service status
dllm-tui relay service remove
"""
NOTES = (
    "Open its port for TCP and for UDP. It passes on datagrams that are encrypted from "
    "end to end: it sees node ids, addresses and sizes. Nobody uses it without its key."
)
RATES = {"mb": 1e6, "kb": 1e3}
TELL_S = 600.0

run_options = options(
    (
        "--listen",
        "PLACE",
        "Where machines meet: ADDRESS:PORT.",
        f"0.0.0.0:{RELAY_PORT}",
    ),
    ("--rate", "SIZE", "Most bytes a second of each machine: 8MB.", "8MB"),
    ("--clients", int, "Most machines at once.", 64),
)


@click.group(cls=Group, default="run", examples=EXAMPLES, notes=NOTES)
def relay() -> None:
    """Have machines behind routers meet at this host, or at another."""


@relay.command("run")
@run_options
async def run_relay(listen: str, rate: str, clients: int, as_json: bool) -> None:
    """Be a relay until you end it.

    It also tells each machine the address by which its router shows it.
    """
    from backends.mesh.dialling import listening_at, parse_place
    from backends.mesh.iroh_relay import RelayServer
    from backends.mesh.reflector import Reflector, reflector_address

    def told(text: str) -> None:
        show_entry(LogEntry(at=round(time.time(), 3), text=text), as_json)

    address, port = parse_place(listen, RELAY_PORT)
    key = own_relay_key(user_paths().relay_key_file)
    server = RelayServer(key, _rate(rate), _clients(clients), say=told)
    async with AsyncExitStack() as stack:
        listening = listening_at(address, port)
        stack.callback(listening.close)
        await server.start(listening)
        stack.push_async_callback(server.close)
        port = listening.getsockname()[1]
        told(f"a relay at port {port}; dllm-tui relay access tells how to use it")
        try:
            if not (plain := reflector_address(address)):
                raise MachineError(f"{address} is no address of IPv4")
            access = RelayAccess(url="", key=key)
            reflector = await Reflector.bound(access, plain, port)
            stack.push_async_callback(reflector.close)
            answering = asyncio.create_task(reflector.run())
            stack.push_async_callback(end_tasks, answering)
        except MachineError as error:
            told(f"machines are not told how they look from here: {error}")
        await _log(server.traffic, told)


async def _log(traffic: RelayTraffic, told: Callable[[str], None]) -> None:
    before = ""
    while True:
        await asyncio.sleep(TELL_S)
        size = format_bytes(traffic.bytes)
        text = f"{size} passed on, {traffic.dropped} datagrams dropped"
        text += f", {traffic.refused} connections refused"
        if text != before:
            told(text)
        before = text


def _rate(text: str) -> float:
    rate = quantity(text, RATES, "8MB")
    if rate < 1e4:
        raise UsageError("A machine needs 10 kB a second at least", "Say: 8MB.")
    return rate


def _clients(count: int) -> int:
    if not 2 <= count <= 1024:
        raise UsageError("A relay serves 2 to 1024 machines", "Say: 64.")
    return count


@relay.command("access", shows=lambda told: [told["access"]])
@options(
    ("--address", None, "Address of this host, as the others reach it."),
    ("--port", int, "Its port.", RELAY_PORT),
    ("--new", bool, "Make another key; then start the relay anew."),
)
def show_access(address: str | None, port: int, new: bool) -> dict[str, str]:
    """Show the secret with which machines use the relay of this host."""
    from backends.mesh.dialling import reachable
    from backends.mesh.token import place

    host = address or reachable("0.0.0.0")[0]
    url = parse_access(f"http://{place(host, port)}").url
    key = own_relay_key(user_paths().relay_key_file, anew=new)
    return {"access": RelayAccess(url=url, key=key).text}


@relay.command("use")
@click.argument("access")
async def use_relay(access: str) -> dict[str, str]:
    """Use a relay, once the worker here starts anew.

    ACCESS is what relay access shows there, or - to read it from standard input. The
    tokens that are made here then tell it to consoles. Any other relay of iroh, such as
    a public one, is named by its URL alone.
    """
    meant = parse_access(read_secret(access))
    RelayFile(user_paths().relays_file).use(meant)
    say(f"Machines meet at {meant.url} now. Start dllm-tui worker anew if it runs.")
    problem = ""
    try:
        await try_relay(meant)
    except MachineError as error:
        problem = str(error)
        say(problem)
    return {"relay": meant.url, "problem": problem}


@relay.command("leave")
def leave_relay() -> dict[str, str]:
    """Use no relay any more; peers that were added by it keep it."""
    RelayFile(user_paths().relays_file).use(None)
    say("No relay is used for new tokens.")
    return {"relay": ""}


@relay.group("service", cls=Group, default="status")
def relay_unit() -> None:
    """Be a relay at every login, or at boot."""


add_unit_commands(relay_unit, "relay", "")


@relay_unit.command("install", shows=unit_lines)
@dry_run_option
@run_options
def install_relay(
    dry_run: bool, listen: str, rate: str, clients: int
) -> ServiceState | None:
    """Install and start it."""
    _rate(rate)
    args = ["--listen", listen, "--rate", rate, "--clients", str(_clients(clients))]
    title = "passes on what machines behind routers send each other"
    paths = user_paths()
    wanted = command_service("relay", title, paths, os.environ, args, shut_in=True)
    if not dry_run:
        # It may write no file itself.
        own_relay_key(paths.relay_key_file)
    return installed(wanted, dry_run=dry_run)
