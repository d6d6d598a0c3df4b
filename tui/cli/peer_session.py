"""Following a peer through the controller: questions, progress, results."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

import click

from backends.client.client import ControllerClient
from backends.errors import DllmError, HostError
from backends.state import PeerAnswer, PeerState, QuestionKind
from tui.cli.output import prompting, say
from tui.cli.progress import show_work
from tui.kit.safe_text import safe

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from backends.state import Peer, PeerQuestion, PeerWork, ProvisionMode

T = TypeVar("T")

POLL_S = 0.1


async def added(
    name: str,
    *,
    ssh: str | None,
    bare: str | None,
    trusted: str | None,
    interactive: bool,
) -> Peer:
    """Add a peer and answer what its connection asks, also one asked for earlier.

    Raises:
        DllmError: it cannot be added, or asks what nobody is there to answer.
    """
    client = ControllerClient()
    if not await _waits(client, name, ssh):
        await client.add_peer(name, ssh=ssh, bare=bare)
    try:
        return await _answered(client, name, trusted, interactive=interactive)
    except (click.Abort, KeyboardInterrupt):
        # It is not to wait for ever for what was just refused.
        await client.remove_peer(name)
        say(f"{name} was not added.")
        raise


async def _waits(client: ControllerClient, name: str, ssh: str | None) -> bool:
    """Whether that very machine is known, and waits for an answer."""
    return any(
        peer.name == name and peer.address == ssh and peer.question is not None
        for peer in await client.peers()
    )


async def _answered(
    client: ControllerClient, name: str, trusted: str | None, *, interactive: bool
) -> Peer:
    """A peer once its connection has been told all that it asks."""
    while True:
        peer = await _settled(client, name)
        if peer.question is None:
            return peer
        answer = _answer(peer.question, trusted, interactive=interactive)
        with contextlib.suppress(DllmError):
            await client.answer_peer(name, answer)


async def _settled(client: ControllerClient, name: str) -> Peer:
    """A peer once it is no longer being reached."""
    while True:
        for peer in await client.peers():
            if peer.name == name and peer.state is not PeerState.PROBING:
                return peer
        await asyncio.sleep(POLL_S)


def _answer(
    question: PeerQuestion, trusted: str | None, *, interactive: bool
) -> PeerAnswer:
    """The user's answer, or the one given beforehand.

    Raises:
        HostError: nobody is there to answer, or the key is another.
        click.Abort: the user said no.
    """
    host_key = question.kind is QuestionKind.HOST_KEY
    if host_key and trusted:
        if trusted != question.fingerprint:
            raise HostError(
                f"Its host key is {question.fingerprint}, not {trusted}",
                "Find out why before you trust it.",
            )
        return PeerAnswer(kind=question.kind, text=trusted)
    if not interactive:
        raise HostError(question.text, _unattended(question))
    with prompting():
        if host_key:
            click.confirm(safe(question.text), abort=True, err=True)
            return PeerAnswer(kind=question.kind, text=question.fingerprint)
        text = click.prompt(safe(question.text), hide_input=True, err=True)
    return PeerAnswer(kind=question.kind, text=text)


def _unattended(question: PeerQuestion) -> str:
    """What to do where nobody is there to answer."""
    if question.kind is QuestionKind.HOST_KEY:
        return f"If that is right, add it with --accept-host-key {question.fingerprint}"
    return "Add it again in a terminal, or give an agent the key: ssh-add."


async def probed(names: tuple[str, ...]) -> tuple[Peer, ...]:
    """Look at peers now, all at the same time.

    Raises:
        DllmError: one of those named cannot be looked at.
    """
    client = ControllerClient()
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


async def provisioned(name: str, mode: ProvisionMode) -> Peer:
    """Install engine and helper on a peer, showing how far it is.

    Raises:
        DllmError: it cannot be done.
    """
    client = ControllerClient()
    return await _watched(client, name, lambda: client.provision_peer(name, mode))


async def copied(name: str, path: str) -> str:
    """Copy a model to a peer, showing how far it is.

    Raises:
        DllmError: it cannot be done.
    """
    client = ControllerClient()
    return await _watched(client, name, lambda: client.copy_model(name, path))


async def _watched(
    client: ControllerClient, name: str, work: Callable[[], Awaitable[T]]
) -> T:
    """Wait for long work at a peer and show it; Ctrl-C ends the work too."""
    await _settled(client, name)
    showing = asyncio.create_task(show_work(_works(client, name)))
    try:
        return await work()
    except asyncio.CancelledError:
        with contextlib.suppress(DllmError):
            await client.cancel_work(name)
        raise
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


async def _works(client: ControllerClient, name: str) -> AsyncIterator[PeerWork]:
    """What goes on at a peer, as it changes."""
    async for snapshot in client.snapshots():
        for peer in snapshot.peers:
            if peer.name == name and peer.work is not None:
                yield peer.work
