"""Connections kept up in the background, through outages."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any

from asyncssh.constants import MSG_IGNORE

from backends.machines.ssh.config import Destination
from backends.machines.ssh.connection import (
    HEARTBEAT_S,
    SUSPECT_AFTER_S,
    Connection,
    ConnectionPhase,
    ConnectionState,
)
from backends.state import QuestionKind
from tests.hosts.reaching import until
from tests.hosts.test_tunnels import echo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from tests.hosts.network import Network

OUTAGE_S = 12.0
LOST_AFTER_S = 6.0


class Watched:
    """A connection with all it ever told."""

    def __init__(self, name: str, **times: float) -> None:
        self.told: list[ConnectionState] = []
        options: dict[str, Any] = {"heartbeat_s": 0.2, **times}
        self.connection = Connection(name, Destination.parse(name), **options)
        self.connection.on_state = self.told.append

    async def phase(self, phase: ConnectionPhase) -> None:
        await until(
            lambda: self.connection.state.phase is phase,
            f"{phase} after {[state.phase for state in self.told]}",
        )


@contextlib.asynccontextmanager
async def kept(name: str, **times: float) -> AsyncIterator[Watched]:
    watched = Watched(name, **times)
    watched.connection.start()
    try:
        yield watched
    finally:
        await watched.connection.stop()
        assert watched.connection.state.phase is ConnectionPhase.STOPPED


async def test_it_connects_and_measures(network: Network) -> None:
    network.write_ssh_config()
    async with kept("ada") as ada:
        await ada.phase(ConnectionPhase.CONNECTED)
        await until(lambda: (ada.connection.state.rtt_ms or 0) > 0, "heartbeats")
        assert (await ada.connection.run("echo hi")).stdout == "hi\n"


async def test_sshd_killed_and_back(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    async with kept("ada") as ada:
        await ada.phase(ConnectionPhase.CONNECTED)
        await asyncio.to_thread(peer.stop_sshd)
        await ada.phase(ConnectionPhase.WAITING)
        since = ada.connection.state.since
        await until(lambda: "refuses" in ada.connection.state.note, "a refusal")
        assert ada.connection.state.since == since
        await asyncio.to_thread(peer.start_sshd)
        await ada.phase(ConnectionPhase.CONNECTED)


async def test_back_off_and_poke(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without luck: every pause as long as it may be.
    most: list[float] = []

    def longest(_least: float, greatest: float) -> float:
        most.append(greatest)
        return min(greatest, 0.05) if len(most) < 9 else 600.0

    monkeypatch.setattr("random.uniform", longest)
    network.write_ssh_config()
    peer = network.peer("ada")
    peer.stop_sshd()
    async with kept("ada") as ada:
        await until(lambda: len(most) == 9, "the ninth failure")
        assert most == [1, 2, 4, 8, 16, 32, 60, 60, 60]
        await ada.phase(ConnectionPhase.WAITING)
        assert (ada.connection.state.retry_at or 0) > time.time() + 300
        await asyncio.to_thread(peer.start_sshd)
        ada.connection.poke()
        await ada.phase(ConnectionPhase.CONNECTED)


async def test_a_question_stops_it(network: Network) -> None:
    network.write_ssh_config(known=False)
    async with kept("ada") as ada:
        await ada.phase(ConnectionPhase.ASKING)
        question = ada.connection.state.question
        assert question is not None
        ada.told.clear()
        ada.connection.poke()
        await until(lambda: bool(ada.told), "another attempt")
        await ada.phase(ConnectionPhase.ASKING)
        ada.connection.answer({QuestionKind.HOST_KEY: question.fingerprint})
        await ada.phase(ConnectionPhase.CONNECTED)
        assert ada.connection.state.question is None


async def test_a_question_that_is_out_of_date(network: Network) -> None:
    """The user connected with ssh meanwhile, or loaded the key."""
    network.write_ssh_config(known=False)
    async with kept("ada") as ada:
        await ada.phase(ConnectionPhase.ASKING)
        network.write_ssh_config()
        ada.connection.poke()
        await ada.phase(ConnectionPhase.CONNECTED)


async def test_at_most_a_heartbeat_a_second(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.write_ssh_config()
    async with kept("ada", heartbeat_s=HEARTBEAT_S) as ada:
        await ada.phase(ConnectionPhase.CONNECTED)
        link = ada.connection._link
        assert link is not None
        sent: list[int] = []
        send = link.send_packet

        def counted(kind: int, *rest: bytes, **more: Any) -> None:
            sent.append(kind)
            send(kind, *rest, **more)

        monkeypatch.setattr(link, "send_packet", counted)
        began = time.monotonic()
        await asyncio.sleep(5.5)
        # asyncssh puts an empty one before each, against an attack of the past.
        messages = [kind for kind in sent if kind != MSG_IGNORE]
        assert 1 <= len(messages) <= time.monotonic() - began + 1


async def test_suspect_after_two_seconds_and_lost_after_a_minute(
    network: Network,
) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    async with kept("ada", heartbeat_s=HEARTBEAT_S, lost_after_s=LOST_AFTER_S) as ada:
        await until(lambda: ada.connection.state.rtt_ms is not None, "a heartbeat")
        await asyncio.to_thread(peer.link_down)
        await ada.phase(ConnectionPhase.WAITING)
        suspect = [state for state in ada.told if state.suspect]
        assert {state.phase for state in suspect} == {ConnectionPhase.CONNECTED}
        assert {state.rtt_ms for state in suspect} == {None}
        assert suspect[0].silent_for_s >= SUSPECT_AFTER_S
        # Held back, this process may miss the last looks before the end.
        assert LOST_AFTER_S / 2 < suspect[-1].silent_for_s <= LOST_AFTER_S
        assert "did not answer for a minute" in ada.connection.state.note
        # Away since its last answer, not since it was given up.
        assert ada.connection.state.since <= time.time() - suspect[-1].silent_for_s
        await asyncio.to_thread(peer.link_up)
        await ada.phase(ConnectionPhase.CONNECTED)
        await until(lambda: ada.connection.state.rtt_ms is not None, "fresh figures")


async def test_a_pulled_cable_only_pauses(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    async with kept("ada") as ada, echo(peer) as port:
        await ada.phase(ConnectionPhase.CONNECTED)
        tunnel = await ada.connection.forward(int(port))
        reader, writer = await asyncio.open_connection("127.0.0.1", tunnel.port)
        writer.write(b"ping")
        assert await reader.readexactly(4) == b"pong"
        peer.link_down()
        writer.write(b"ping")
        await asyncio.sleep(OUTAGE_S)
        silent_s = ada.connection.state.silent_for_s
        assert silent_s > OUTAGE_S / 2
        assert ada.connection.state.phase is ConnectionPhase.CONNECTED
        peer.link_up()
        async with asyncio.timeout(60):
            assert await reader.readexactly(4) == b"pong"
        writer.close()
        await until(lambda: ada.connection.state.silent_for_s == 0, "an answer")
        phases = {state.phase for state in ada.told}
        assert phases == {ConnectionPhase.CONNECTING, ConnectionPhase.CONNECTED}


async def test_many_that_do_not_answer_stop_at_once(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their attempts last as long as the test may: none of them is waited for."""
    monkeypatch.setattr("backends.machines.ssh.authentication.CONNECT_TIMEOUT_S", 3600)
    network.write_ssh_config()
    peer = network.peer("ada")
    with peer.frozen_sshd():
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(30):
                await stack.enter_async_context(kept("ada"))
            await until(peer.greeted, "attempts under way")
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    assert not tasks
