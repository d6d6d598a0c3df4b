"""``dllm-tui worker`` and ``join``: lend this machine, within the owner's limits."""

from __future__ import annotations

import asyncio
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from backends.errors import MachineError, UsageError
from backends.mesh.owner_limits import OwnerLimits, parse_hours
from backends.mesh.pairings import PairedConsole, PairingFile, without_relay_key
from backends.mesh.token import TokenKind, read_token
from backends.mesh.worker_status import StatusFile, WorkerStatus
from backends.paths import user_paths
from backends.service.manager import ServiceState
from backends.service.unit import command_service
from backends.units import format_age
from tui.cli.command import SECONDS, Group, Name, options, quantity
from tui.cli.output import (
    Column,
    Table,
    is_linear,
    say,
)
from tui.cli.service import add_unit_commands, dry_run_option, installed, unit_lines
from tui.cli.worker_status import DRAW_S, WorkerScreen, show_entry, status_lines
from tui.model.qr_code import qr_text
from tui.widgets.safe_text import safe_line

if TYPE_CHECKING:
    from backends.mesh.worker import Worker

EXAMPLES = """
dllm-tui worker                      lend this machine; shows a token
dllm-tui worker run --headless --memory 8GiB --hours 22-7
dllm-tui worker run --devices CUDA0 --models ~/.models
dllm-tui worker invite --qr          another token, good once within an hour
dllm-tui worker accept 123456        a console that shows these digits
dllm-tui worker run --no-announce    consoles need a token
dllm-tui worker status               what is used now, by whom, and the log
dllm-tui worker list                 the consoles that may use it
dllm-tui worker rename ada studio
dllm-tui worker revoke studio        takes effect within a second
dllm-tui worker pause                ends what runs for others
dllm-tui worker resume
dllm-tui worker service install --memory 8GiB
dllm-tui worker service status
dllm-tui worker service remove
"""
JOIN_EXAMPLES = """
dllm-tui join TOKEN                  of peers invite, on another machine
dllm-tui join - < token.txt          no other program sees it
dllm-tui join TOKEN --headless --memory 8GiB
"""
BYTES = {"gib": 2.0**30, "mib": 2.0**20, "gb": 1e9, "mb": 1e6}

listen_option = options(
    ("--listen", "PLACE", "Where consoles dial: ADDRESS:PORT.", "[::]:50080"),
    ("--no-announce", bool, "Tell this network nothing, and pair by tokens alone."),
)
headless_option = options(
    ("--headless", bool, "Print a log, without the status screen."),
)
lending_options = options(
    ("--name", "NAME", "Name for consoles; the host name by default."),
    ("--memory", "SIZE", "Most main memory for all consoles: 8GiB."),
    ("--devices", "NAMES", "Devices to lend: CUDA0 or CUDA0,CPU; all by default."),
    ("--hours", "FROM-TO", "Lend it only then: 22-7."),
    ("--models", click.Path(), "Folder of models to lend; ~/.models (repeatable)."),
    ("--models-writable", bool, "Let consoles add models to the first folder."),
)


@click.group(cls=Group, default="run", examples=EXAMPLES)
def worker() -> None:
    """Lend this machine to consoles elsewhere."""


@worker.command("run")
@listen_option
@headless_option
@lending_options
async def run_worker(
    listen: str, no_announce: bool, headless: bool, as_json: bool, **given: Any
) -> None:
    """Lend this machine until you end it.

    Consoles get workers of its llama.cpp and its models, within your limits: no shell,
    and no other file. In the status screen, p pauses, i invites, c draws the token as a
    code, q ends it; y and n answer a console that asks to be paired.
    """
    from backends.mesh.dialling import parse_place
    from backends.mesh.worker import LISTEN_PORT

    made = _worker(**given)
    address, port = parse_place(listen, LISTEN_PORT)
    made.listen(address, port, announces=not no_announce)
    await made.listen_quic(address, port)
    await _lend(made, headless, as_json)


@click.command("join", cls=Group.command_class, examples=JOIN_EXAMPLES)
@click.argument("token")
@headless_option
@lending_options
async def join(token: str, headless: bool, as_json: bool, **given: Any) -> None:
    """Join the console of a token, which this machine dials.

    It lends this machine until you end it, and dials again whenever the connection
    breaks. TOKEN is - to read it from standard input.
    """
    made = _worker(**given)
    runs = _pairings().lent
    if runs and any(given.values()):
        raise UsageError(
            "The worker that runs here has limits of its own, which a join keeps",
            "End that first, or join without --name, --memory and the like.",
        )
    name = await made.join(read_token(read_secret(token), TokenKind.JOIN))
    say(f"Joined {name}.")
    if runs:
        say("The worker that runs here dials it from now on.")
        return
    await _lend(made, headless, as_json)


def read_secret(text: str) -> str:
    """The argument itself, or the first line of standard input for ``-``."""
    return sys.stdin.readline().strip() if text == "-" else text


def _pairings() -> PairingFile:
    return PairingFile(user_paths().worker_pairings_file)


def _worker(
    name: str | None,
    memory: str | None,
    devices: str | None,
    hours: str | None,
    models: tuple[str, ...],
    models_writable: bool,
) -> Worker:
    from backends.mesh.tenants import Tenants
    from backends.mesh.worker import Worker

    limits = limits_of(memory, devices, hours, models, models_writable)
    paths, pairings = user_paths(), _pairings()
    tenants = Tenants(paths, pairings, limits, name or "")
    return Worker(paths, pairings, tenants)


def limits_of(
    memory: str | None,
    devices: str | None,
    hours: str | None,
    models: tuple[str, ...],
    writable: bool = False,
) -> OwnerLimits:
    """The owner's limits as they were typed."""
    folders = models or ("~/.models",)
    names = re.split(r"[,\s]+", devices.strip()) if devices else ()
    return OwnerLimits(
        memory_bytes=int(quantity(memory, BYTES, "8GiB")) if memory else None,
        devices=tuple(names),
        hours=parse_hours(hours) if hours else None,
        models=tuple(str(Path(one).expanduser().absolute()) for one in folders),
        writable=writable,
    )


# --- the status screen -----------------------------------------------------------


async def _lend(made: Worker, headless: bool, as_json: bool) -> None:
    headless = headless or as_json or is_linear()
    lending = asyncio.create_task(made.run())
    on_screen = not headless and sys.stdout.isatty() and sys.stdin.isatty()
    watching = WorkerScreen(made).run() if on_screen else _log(made, as_json)
    showing = asyncio.create_task(watching)
    try:
        await asyncio.wait([lending, showing], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (showing, lending):
            task.cancel()
        ended = await asyncio.gather(showing, lending, return_exceptions=True)
    for outcome in ended:
        if isinstance(outcome, Exception):
            raise outcome


async def _log(made: Worker, as_json: bool) -> None:
    if not (made.tenants.pairings.consoles or as_json):
        say("No console may use it yet: dllm-tui worker invite makes a token.")
    told = 0
    while True:
        for entry in made.tenants.log_after(told):
            show_entry(entry, as_json)
        told = made.tenants.told
        await asyncio.sleep(DRAW_S)


# --- consoles --------------------------------------------------------------------


def token_lines(token: str, expires_at: float, qr: bool) -> Iterator[str]:
    yield token
    if qr:
        yield from qr_text(token).splitlines()
    left = format_age(math.ceil((expires_at - time.time()) / 60) * 60)
    say(f"It is good once, for {left}. It is shown this once.")


invite_options = options(
    ("--for life", "TIME", "How long it is good: 1h, 10m.", "1h"),
    ("--qr", bool, "Draw a QR code, too."),
)


def life_s(text: str) -> float:
    seconds = quantity(text, SECONDS, "1h")
    if not 1 <= seconds <= 7 * SECONDS["d"]:
        raise UsageError("A token is good for a second to seven days", "Say: 1h.")
    return seconds


@worker.command("invite", shows=lambda made: token_lines(**made))
@invite_options
def invite(life: str, qr: bool) -> dict[str, Any]:
    """Make a token with which a console may use this machine."""
    from backends.mesh.worker import new_invitation

    token = new_invitation(user_paths(), _pairings(), life_s(life))
    return {"token": token.text, "expires_at": token.expires_at, "qr": qr}


def _seen(console: PairedConsole) -> str:
    return f"{format_age(time.time() - console.seen_at)} ago" if console.seen_at else ""


CONSOLES = Table(
    columns=[
        Column("NAME", lambda one: one.name),
        Column("PAIRED", lambda one: f"{format_age(time.time() - one.added_at)} ago"),
        Column("LAST SEEN", _seen),
        Column("DIALLED AT", lambda one: " ".join(one.places), wide=True),
        Column("KEY", lambda one: one.key, wide=True),
    ],
    name=lambda one: one.name,
    none=lambda _: "No consoles. Invite one: dllm-tui worker invite.",
)


@worker.command("list", shows=CONSOLES, watches=True)
def list_consoles() -> tuple[PairedConsole, ...]:
    """List the consoles that may use this machine."""
    return tuple(map(without_relay_key, _pairings().read().consoles))


@worker.command("status", shows=status_lines, watches=True)
def worker_status() -> WorkerStatus:
    """Show what the worker here lends, to whom, and its log."""
    pairings = _pairings()
    if not pairings.lent:
        raise MachineError(
            "No worker runs here", "Start it: dllm-tui worker [--headless]."
        )
    return StatusFile(user_paths().worker_status_file).read(pairings.read().pid)


@worker.command("accept")
@click.argument("digits")
def accept_console(digits: str) -> dict[str, str]:
    """Let in the console that asks now, if it shows these DIGITS.

    Other digits refuse it.
    """
    asking = _pairings().decide(digits.replace(" ", ""))
    say(f"Accepted {safe_line(asking.name)}; it is paired once its user agrees, too.")
    return {"accepted": asking.name}


@worker.command("rename")
@click.argument("name", type=Name("consoles"))
@click.argument("new")
def rename_console(name: str, new: str) -> dict[str, str]:
    """Give a console another name here."""
    _pairings().rename(name, new)
    say(f"{name} is called {new} now.")
    return {"renamed": name, "name": new}


@worker.command("revoke")
@click.argument("name", type=Name("consoles"))
def revoke_console(name: str) -> dict[str, str]:
    """Let a console in no more, and end what runs for it."""
    _pairings().revoke(name)
    say(f"Revoked {name}.")
    return {"revoked": name}


@worker.command("pause")
def pause_worker() -> dict[str, bool]:
    """Lend nothing until resume, and end what runs for others."""
    return _paused(True)


@worker.command("resume")
def resume_worker() -> dict[str, bool]:
    """Lend it again."""
    return _paused(False)


def _paused(paused: bool) -> dict[str, bool]:
    pairings = _pairings()
    pairings.pause(paused)
    what = "Paused" if paused else "Resumed"
    say(f"{what}." if pairings.lent else f"{what}; no worker runs here now.")
    return {"paused": paused}


# --- the service -----------------------------------------------------------------


@worker.group("service", cls=Group, default="status")
def worker_unit() -> None:
    """Lend this machine at every login, without a screen."""


add_unit_commands(worker_unit, "worker", "; what runs for others ends")


@worker_unit.command("install", shows=unit_lines)
@dry_run_option
@listen_option
@lending_options
def install_worker(
    dry_run: bool, listen: str, no_announce: bool, **given: Any
) -> ServiceState | None:
    """Install and start it with these limits."""
    # Wrong ones are told here, and not in a log.
    limits_of(given["memory"], given["devices"], given["hours"], given["models"])
    args = ["--headless", "--listen", listen]
    if no_announce:
        args.append("--no-announce")
    if given.pop("models_writable"):
        args.append("--models-writable")
    for option, value in given.items():
        for one in value if isinstance(value, tuple) else filter(None, [value]):
            args += [f"--{option}", str(one)]
    title = "lends this machine to consoles elsewhere"
    wanted = command_service("worker", title, user_paths(), os.environ, args)
    return installed(wanted, dry_run=dry_run)
