"""``dllm-tui peers``: other machines, from a name to a worker that can serve."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager

import click

from backends.client.client import ControllerClient
from backends.errors import DllmError, MachineError, unknown_peer
from backends.machine_names import is_place, is_token, suggested_name
from backends.state import (
    FoundWorker,
    Peer,
    PeerAnswer,
    PeerPairing,
    PeerQuestion,
    PeerState,
    ProvisionMode,
    QuestionKind,
)
from backends.state.models import Delivered
from backends.tasks import end_tasks
from backends.units import format_bytes, format_digits, format_ms
from tui.cli.command import Group, Name, options, prompting, refuse_with, refuse_without
from tui.cli.measure import measure
from tui.cli.output import Column, Table, emit_json, say, show
from tui.cli.progress import ProgressLine, ticking
from tui.cli.worker import invite_options, life_s, read_secret, token_lines
from tui.model.peer_words import peer_rows, transport_words
from tui.widgets.safe_text import safe, safe_line

EXAMPLES = """
dllm-tui peers list
dllm-tui peers add mini            a host name, or a Host of ~/.ssh/config
dllm-tui peers add ada@10.0.0.7 --name nuc
dllm-tui peers add box --bare 10.0.0.3:50052
dllm-tui peers add TOKEN           of dllm-tui worker, on a lent machine
dllm-tui peers add - < token.txt   no other program sees it
dllm-tui peers add TOKEN --via ada@gate    through an SSH host, if need be
dllm-tui peers add nuc             known by another console of yours
dllm-tui peers discover            lent machines on this network
dllm-tui peers add 10.0.0.7:50080  one of these: compare six digits
dllm-tui peers invite              a token for a machine that dials us
dllm-tui peers show mini           probe it: devices, engines, disk
dllm-tui peers setup mini          install engine and relay
dllm-tui peers measure             the speed of devices that never ran
dllm-tui peers reset mini          remove them again
dllm-tui peers rename mini studio
dllm-tui peers remove mini
dllm-tui up m.gguf --peer mini --peer nuc --detach
"""
POLL_S = 0.1


def _memory_text(peer: Peer) -> str:
    free = sum(device.usable_bytes for device in peer.devices)
    return format_bytes(free) if free else ""


def _rtt_text(peer: Peer) -> str:
    return "" if peer.rtt_ms is None else format_ms(peer.rtt_ms).strip()


PEERS = Table(
    columns=[
        Column("NAME", lambda peer: peer.name),
        Column("STATE", lambda peer: peer.state.value),
        Column("TRANSPORT", transport_words),
        Column("RTT", _rtt_text, right=True),
        Column("MEMORY FREE", _memory_text, right=True),
        Column("ADDRESS", lambda peer: peer.address, wide=True),
        Column(
            "DEVICES", lambda peer: ",".join(d.name for d in peer.devices), wide=True
        ),
        Column("NOTE", lambda peer: peer.note),
    ],
    name=lambda peer: peer.name,
    none=lambda _: "No peers. Add one: dllm-tui peers add NAME.",
)


@click.group(
    cls=Group,
    default="list",
    aliases={"probe": "show", "provision": "setup", "clean": "reset"},
    examples=EXAMPLES,
)
def peers() -> None:
    """Add, probe, set up, rename and remove other machines."""


name_argument = click.argument("name", type=Name("peers"))


@peers.command("list", shows=PEERS, watches=True)
async def list_peers(client: ControllerClient) -> tuple[Peer, ...]:
    """List the peers and their state.

    Known ones are no peers yet: another console of yours has told of them.
    """
    told = [one.peer for one in await client.peers_to_pick() if one.told_by]
    return (*await client.settled_peers(), *told)


@peers.command(
    "show",
    shows=lambda found: (line for peer in found for line in _lines(peer)),
    watches=True,
)
@click.argument("names", nargs=-1, metavar="[NAME]…", type=Name("peers"))
async def show_peers(
    client: ControllerClient, names: tuple[str, ...]
) -> tuple[Peer, ...]:
    """Probe peers now, and show what they have.

    Without NAME it probes all of them.
    """
    known = {peer.name for peer in await client.settled_peers()}
    results = await asyncio.gather(
        *(client.probe_peer(name) for name in names or sorted(known)),
        return_exceptions=True,
    )
    for result in results:
        if isinstance(result, BaseException) and (
            names or not isinstance(result, DllmError)
        ):
            raise result
    chosen = names or known
    return tuple(peer for peer in await client.peers() if peer.name in chosen)


def _lines(peer: Peer) -> Iterator[str]:
    yield safe_line(peer.name)
    for label, text in peer_rows(peer, time.time(), hints=False):
        yield f"  {label:10}{safe_line(text)}"


# --- add -----------------------------------------------------------------------------


@peers.command("add", shows=lambda peer: _lines(peer), stays=True)
@click.argument("destination", type=Name("hosts"))
@options(
    ("--name", None, "Name of the peer; its host name by default."),
    ("--bare", "HOST:PORT", "Address of an rpc-server that is already running."),
    ("--accept-host-key trusted", "SHA256:…", "Trust a host key of this fingerprint."),
    ("--via", "HOST", "SSH host that a lent machine is reached through, if need be."),
)
async def add_peer(
    client: ControllerClient,
    destination: str,
    name: str | None,
    bare: str | None,
    trusted: str | None,
    via: str | None,
) -> Peer:
    """Add and probe a peer.

    DESTINATION is what you would pass to ssh, or the name of a known machine. It can be
    a token of a lent machine, too; with - that is read from standard input. If a
    dllm-tui worker listens at HOST:PORT, you and its owner compare six digits.
    """
    destination = read_secret(destination)
    if is_token(destination):
        refuse_with("a token", "--bare", "--accept-host-key")
        before = {peer.name for peer in await client.peers()}
        added = await client.add_peer(name or "", token=destination, via=via)
        return await _settled_lent(client, added, before)
    refuse_without("a token", "--via")
    if bare:
        refuse_with("--bare", "--accept-host-key")
    elif is_place(destination):
        pairing = await client.begin_pairing(name or "", destination)
        if pairing.digits:
            return await _paired(client, pairing)
    keys: tuple[str, ...] = (trusted,) if trusted else ()
    told = {one.name: one for one in await client.peers_to_pick() if one.told_by}
    if (known := told.get(destination)) and not bare:
        name, destination = name or known.name, known.address
        say(f"{known.name} is {destination}, as {known.told_by} told.")
        keys = keys or known.fingerprints
    name = name or suggested_name(destination)
    ssh = None if bare else destination
    waits = any(
        peer.name == name and peer.address == ssh and peer.question is not None
        for peer in await client.peers()
    )
    if not waits:
        await client.add_peer(name, ssh=ssh, bare=bare, trusted=keys)
    try:
        peer = await _answered(client, name, keys)
    except (click.Abort, KeyboardInterrupt):
        # It is not to wait for ever for what was just refused.
        await client.remove_peer(name)
        say(f"{name} was not added.")
        raise
    if peer.state is PeerState.UNREACHABLE:
        why = peer.note.rstrip(".")
        raise MachineError(f"Added {name}, but it cannot be reached: {why}")
    return peer


async def _paired(client: ControllerClient, pairing: PeerPairing) -> Peer:
    its_name = safe_line(pairing.name)
    say(f"{its_name} and this machine are to show the same digits:")
    say(f"  {format_digits(pairing.digits)}")
    # Once both agree it is added at any moment.
    before = {peer.name for peer in await client.peers()}
    agrees = False
    try:
        with prompting():
            agrees = click.confirm(f"Does {its_name} show them?", err=True)
    finally:
        # A worker whose user went away is told so, too.
        await client.decide_pairing(pairing.digits, agrees=agrees)
    if not agrees:
        raise MachineError(f"{its_name} was not added", "Use a token: dllm-tui worker.")
    say(f"Waiting for the owner of {its_name}.")
    added = await client.pairing_outcome(pairing.digits)
    return await _settled_lent(client, added, before)


FOUND = Table(
    columns=[
        Column("NAME", lambda one: one.name),
        Column("ADDRESS", lambda one: one.address),
        Column("VERSION", lambda one: one.version),
        Column("PEER", lambda one: one.peer),
        Column("KEY", lambda one: one.id, wide=True),
    ],
    name=lambda one: one.address,
    none=lambda _: "No lent machines on this network. There: dllm-tui worker.",
)


@peers.command("discover", shows=FOUND, watches=True)
async def discover_peers(client: ControllerClient) -> tuple[FoundWorker, ...]:
    """List the lent machines that announce themselves on this network.

    Add one: dllm-tui peers add ADDRESS. You and its owner compare six digits.
    """
    found = await client.settled_workers()
    if found.problem:
        say(found.problem)
    return found.workers


@peers.command("invite", quiet=True, stays=True)
@options(
    ("--name", None, "Name of the peer; as it calls itself by default."),
    ("--address", None, "Address at which it dials this machine (repeatable)."),
    ("--no-wait", bool, "Return at once; the token stays good."),
)
@invite_options
async def invite_peer(
    client: ControllerClient,
    name: str | None,
    address: tuple[str, ...],
    no_wait: bool,
    life: str,
    qr: bool,
    as_json: bool,
) -> Peer | None:
    """Make a token for a machine that dials this one.

    Use it there: dllm-tui join TOKEN. Meanwhile this waits for it.
    """
    known = {peer.name for peer in await client.peers()}
    made = await client.invite_peer(name or "", life_s=life_s(life), addresses=address)
    if as_json:
        emit_json(made)
    else:
        for line in token_lines(made.token, made.expires_at, qr):
            show(line)
    if no_wait:
        return None
    say(f"Waiting at port {made.port} for it to join. Ctrl-C ends only the waiting.")
    while True:
        if joined := await client.joined_peer(made.id):
            peer = await _settled_lent(client, joined, known)
            for line in () if as_json else _lines(peer):
                show(line)
            return None
        await asyncio.sleep(POLL_S)


async def _answered(
    client: ControllerClient, name: str, trusted: Sequence[str]
) -> Peer:
    while True:
        peer = await settled_peer(client, name)
        if peer.question is None:
            return peer
        answer = _answer(peer.question, trusted)
        with contextlib.suppress(DllmError):
            await client.answer_peer(name, answer)


async def _settled_lent(
    client: ControllerClient, added: Peer, known: Collection[str]
) -> Peer:
    if added.name in known:
        say(f"It is {added.name}, which was known already: its place is the new one.")
    return await settled_peer(client, added.name)


async def settled_peer(client: ControllerClient, name: str) -> Peer:
    while True:
        known = {peer.name: peer for peer in await client.peers()}
        if name not in known:
            raise MachineError(*unknown_peer(name, known))
        if known[name].state is not PeerState.PROBING:
            return known[name]
        await asyncio.sleep(POLL_S)


def _answer(question: PeerQuestion, trusted: Sequence[str]) -> PeerAnswer:
    host_key = question.kind is QuestionKind.HOST_KEY
    if host_key and trusted:
        if question.fingerprint not in trusted:
            raise MachineError(
                f"Its host key is {question.fingerprint}, not {' or '.join(trusted)}",
                "Find out why before you trust it.",
            )
        return PeerAnswer(kind=question.kind, text=question.fingerprint)
    if not sys.stdin.isatty():
        hint = "Add it again in a terminal, or give an agent the key: ssh-add."
        if host_key:
            hint = "If it is, add it with --accept-host-key " + question.fingerprint
        raise MachineError(question.text, hint)
    with prompting():
        if host_key:
            click.confirm(safe(question.text), abort=True, err=True)
            return PeerAnswer(kind=question.kind, text=question.fingerprint)
        text = click.prompt(safe(question.text), hide_input=True, err=True)
    return PeerAnswer(kind=question.kind, text=text)


# --- work at a peer ------------------------------------------------------------------

peers.add_command(measure)


@peers.command("setup", shows=lambda peer: _lines(peer), quiet=True)
@name_argument
@options(
    (
        "--mode",
        click.Choice([mode.value for mode in ProvisionMode]),
        "Copy this machine's build, build there, or choose automatically.",
        ProvisionMode.AUTO.value,
    )
)
async def setup_peer(client: ControllerClient, name: str, mode: str) -> Peer:
    """Install engine and relay on a peer.

    They go into your cache directory there. Ctrl-C stops it; the next run resumes.
    """
    wanted = ProvisionMode(mode)
    async with _watching(client, [name], _show_work):
        return await client.provision_peer(name, wanted)


@peers.command("reset", shows=lambda told: [_freed_text(told)])
@name_argument
async def reset_peer(client: ControllerClient, name: str) -> dict[str, object]:
    """Remove what setup installed on a peer; models stay."""
    return {"name": name, "freed_bytes": await client.clean_peer(name)}


def _freed_text(told: dict[str, object]) -> str:
    return f"Freed {format_bytes(int(str(told['freed_bytes'])))} on {told['name']}."


@peers.command("remove")
@name_argument
async def remove_peer(client: ControllerClient, name: str) -> dict[str, str]:
    """Forget a peer; what is installed there stays (see reset)."""
    await client.remove_peer(name)
    say(f"Removed {name}.")
    return {"removed": name}


@peers.command("rename")
@name_argument
@click.argument("new")
async def rename_peer(client: ControllerClient, name: str, new: str) -> dict[str, str]:
    """Give a peer another name here, while no cluster uses it.

    Its measured speeds stay known, and saved plans follow. Cluster files do not.
    """
    await client.rename_peer(name, new)
    say(f"{name} is called {new} now.")
    return {"renamed": name, "name": new}


@asynccontextmanager
async def _watching(
    client: ControllerClient,
    names: Sequence[str],
    show: Callable[[ProgressLine, list[Peer]], None],
) -> AsyncIterator[None]:
    """Show the work at some peers meanwhile; Ctrl-C ends that work too."""
    for name in names:
        await settled_peer(client, name)

    async def follow() -> None:
        line = ProgressLine()
        async with ticking(line):
            async for snapshot in client.snapshots():
                show(line, [peer for peer in snapshot.peers if peer.name in names])

    showing = asyncio.create_task(follow())
    try:
        yield
    except asyncio.CancelledError:
        for name in names:
            with contextlib.suppress(DllmError):
                await client.cancel_work(name)
        raise
    finally:
        await end_tasks(showing)


def _show_work(line: ProgressLine, peers: list[Peer]) -> None:
    for work in (peer.work for peer in peers if peer.work):
        line.show(work.title, work.progress, work.detail)


async def delivered(
    client: ControllerClient, source: str, parts: dict[str, str]
) -> list[Delivered]:
    """Have peers get a model, all at the same time, each the layers it is named for.

    Who fails does not hold up the others.
    """

    async def one(name: str, layers: str) -> Delivered:
        try:
            return await client.deliver(name, source, layers)
        except DllmError as error:
            return Delivered(peer=name, problem=str(error))

    try:
        async with _watching(client, tuple(parts), _show_works):
            return await asyncio.gather(*(one(*part) for part in parts.items()))
    except asyncio.CancelledError:
        say("What has come stays; the same command resumes.")
        raise


def _show_works(line: ProgressLine, peers: list[Peer]) -> None:
    works = {peer.name: peer.work for peer in peers if peer.work}
    told = [f"{name} {work.detail}" for name, work in works.items()]
    done = sum(work.progress or 0.0 for work in works.values())
    if told:
        line.show("getting", done / len(peers), " · ".join(told))
