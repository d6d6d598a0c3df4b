"""Pairing by six digits: what both screens show, and who is not let in."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncssh
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.errors import DllmError, MachineError
from backends.mesh import digits
from backends.mesh.connection_limits import LINES_MAX
from backends.mesh.digits import (
    NEWCOMERS_MAX,
    NEWCOMERS_OF_ONE_MAX,
    DigitsPairing,
    begin_pairing,
    commitment,
    digits_of,
)
from backends.mesh.identity import public_line, raw_of
from backends.mesh.messages import (
    AGENT,
    HELLO,
    LINE_BYTES_MAX,
    NOISE,
    PAIR,
    SFTP,
    USER_BY_DIGITS,
    DigitsStep,
)
from backends.mesh.server import WorkerServer
from tests.kit.waiting import until
from tests.unit.mesh.lent import LentMachine, lent

A, B, M = (bytes([one]) * 32 for one in (1, 2, 3))
N1, N2 = bytes(16), bytes([7]) * 16


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[LentMachine]:
    async with lent(tmp_path, announces=True) as made:
        yield made


async def begun(machine: LentMachine, name: str = "studio") -> DigitsPairing:
    made = await begin_pairing(
        machine.places[0], machine.console.console_key_file, name
    )
    assert made is not None
    await until(lambda: machine.pairings.read().asking is not None, "the question")
    return made


def said(machine: LentMachine) -> str:
    return "\n".join(machine.tenants.lines)


async def nobody_is_let_in(machine: LentMachine, pairing: DigitsPairing) -> None:
    pairing.close()
    await until(lambda: machine.pairings.read().asking is None, "its end")
    assert not machine.pairings.read().consoles
    with pytest.raises(asyncssh.PermissionDenied):
        async with machine.login():
            pass


# --- the digits ----------------------------------------------------------------------


def test_digits_depend_on_both_keys_and_both_nonces() -> None:
    same = digits_of(A, B, N1, N2)
    assert len(same) == 6
    assert same.isdigit()
    others = [
        digits_of(M, B, N1, N2),
        digits_of(A, M, N1, N2),
        digits_of(A, B, N2, N2),
        digits_of(A, B, N1, N1),
        digits_of(B, A, N1, N2),
    ]
    assert same not in others
    promised = {commitment(*one) for one in ((A, B, N1), (A, B, N2), (M, B, N1))}
    assert len(promised) == 3, "a commitment binds keys and nonce"
    assert len(set(others)) == len(others)


async def test_both_sides_agree_and_keep_each_others_key(machine: LentMachine) -> None:
    pairing = await begun(machine)
    asking = machine.pairings.read().asking
    assert asking is not None
    assert asking.digits == pairing.digits
    assert (asking.name, asking.address) == ("studio", "127.0.0.1")
    assert pairing.name == "nuc"
    outcome = asyncio.create_task(pairing.outcome())
    machine.pairings.decide(pairing.digits)
    await asyncio.sleep(0.5)
    # Its owner alone is not enough.
    assert not outcome.done()
    assert not machine.pairings.read().consoles
    pairing.decide(True)
    await outcome
    assert pairing.host_key == machine.host_key
    (console,) = machine.pairings.read().consoles
    assert console.name == "studio"
    async with machine.login():
        pass
    pairing.close()
    await until(lambda: not machine.worker.acceptor.strangers, "its end")


async def test_who_is_in_between_shows_other_digits(
    machine: LentMachine, tmp_path: Path
) -> None:
    """Towards each side it has a key of its own, and no choice of its nonces."""
    async with lent(tmp_path / "eve", announces=True) as eve:
        near = await begun(eve)
        far = await begin_pairing(
            machine.places[0], eve.console.console_key_file, "studio"
        )
        assert far is not None
        await until(lambda: machine.pairings.read().asking is not None, "the question")
        assert near.digits != far.digits
        with pytest.raises(MachineError, match="digits here are others"):
            machine.pairings.decide(near.digits)
        with pytest.raises(MachineError, match="The owner of nuc sees other digits"):
            await far.outcome()
        near.close()
        await nobody_is_let_in(machine, far)


# --- who is refused ------------------------------------------------------------------


async def test_the_owner_refuses(machine: LentMachine) -> None:
    pairing = await begun(machine)
    pairing.decide(True)
    machine.pairings.decide(pairing.digits, accepts=False)
    with pytest.raises(MachineError, match="The owner of nuc refused"):
        await pairing.outcome()
    assert "studio (127.0.0.1) was not paired: The owner of nuc refused" in said(
        machine
    )
    await nobody_is_let_in(machine, pairing)


async def test_the_user_of_the_console_refuses(machine: LentMachine) -> None:
    pairing = await begun(machine)
    machine.pairings.decide(pairing.digits)
    pairing.decide(False)
    with pytest.raises(MachineError, match="studio refused, or went away"):
        await pairing.outcome()
    await nobody_is_let_in(machine, pairing)


async def test_a_console_that_goes_away_is_not_paired(machine: LentMachine) -> None:
    pairing = await begun(machine)
    machine.pairings.decide(pairing.digits)
    await nobody_is_let_in(machine, pairing)
    assert "studio refused, or went away" in said(machine)


async def test_nobody_waits_for_ever(
    machine: LentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digits, "COMPARE_S", 0.5)
    pairing = await begun(machine)
    pairing.decide(True)
    with pytest.raises(MachineError, match="Nobody compared the digits in time"):
        await pairing.outcome()
    with pytest.raises(MachineError, match="No console asks to be paired now"):
        machine.pairings.decide(pairing.digits)
    assert "Nobody compared the digits in time" in said(machine)
    await nobody_is_let_in(machine, pairing)


async def test_one_at_a_time(machine: LentMachine) -> None:
    first = await begun(machine)
    with pytest.raises(MachineError, match="nuc is being paired with another console"):
        await begun(machine, "eve")
    asking = machine.pairings.read().asking
    assert asking is not None
    assert asking.digits == first.digits
    first.close()


async def test_tries_are_few_also_those_that_nobody_saw(machine: LentMachine) -> None:
    """Who hangs up once it knows that the digits differ has had its try."""
    for _ in range(digits.TRIES_OF_ONE_MAX):
        assert "nonce" in await has_a_try(machine, "127.0.0.1")
    with pytest.raises(MachineError, match="nuc was asked too often"):
        await begun(machine)
    # Who has another address may still, until all together had too many.
    for number in range(digits.TRIES_MAX - digits.TRIES_OF_ONE_MAX):
        assert "nonce" in await has_a_try(machine, f"127.0.1.{number}")
    assert "nuc was asked too often" in await has_a_try(machine, "127.0.2.1")


async def test_a_nonce_that_was_not_promised_is_refused(machine: LentMachine) -> None:
    async with newcomer(machine) as link:
        process = await link.create_process(subsystem=PAIR, encoding=None)
        process.stdin.write(b'{"name":"eve","commitment":"00"}\n')
        await process.stdout.readline()
        process.stdin.write(msgspec.json.encode(DigitsStep(nonce=N1.hex())) + b"\n")
        assert b"changed its nonce" in await process.stdout.readline()
    assert machine.pairings.read().asking is None


@contextlib.asynccontextmanager
async def newcomer(machine: LentMachine) -> AsyncIterator[Any]:
    key = asyncssh.generate_private_key("ssh-ed25519")
    login = {"username": USER_BY_DIGITS, "client_keys": [key]}
    async with machine.login(**login) as link:
        yield link


async def has_a_try(machine: LentMachine, come_from: str) -> str:
    """Ask for a nonce, and hang up; the first answer."""
    told = Told([b'{"name":"eve","commitment":"00"}'])
    keys = ("", machine.host_key)
    await machine.tenants.by_digits.serve(told, told, come_from, keys)
    return told.said[0].decode()


async def test_a_newcomer_may_do_nothing_else(machine: LentMachine) -> None:
    refused: list[dict[str, Any]] = [{"command": "id"}, {"command": None}]
    refused += [{"subsystem": one} for one in (AGENT, SFTP, HELLO, NOISE)]
    for asked in refused:
        async with newcomer(machine) as link:
            with pytest.raises(asyncssh.Error):
                await link.create_process(**asked, encoding=None)
            await link.wait_closed()


async def test_a_newcomer_gets_one_session_and_for_more_is_sent_away_with_one_line(
    machine: LentMachine,
) -> None:
    async with newcomer(machine) as link:
        process = await link.create_process(subsystem=PAIR, encoding=None)
        assert process.channel._send_window <= LINE_BYTES_MAX
        with pytest.raises(asyncssh.ChannelOpenError):
            await link.create_process(subsystem=PAIR, encoding=None)
    async with newcomer(machine) as link:
        asked = [
            link.create_connection(asyncssh.SSHTCPSession, "127.0.0.1", 22)
            for _ in range(50)
        ]
        told = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(one, asyncssh.Error) for one in told)
        await link.wait_closed()
    assert said(machine).count("asked for") == 1


async def test_a_newcomer_without_a_pairing_does_not_stay(
    machine: LentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as impatient:
        impatient.setattr("backends.mesh.server.PAIR_S", 0.1)
        async with newcomer(machine) as link:
            await until(link.is_closed, "its end")
    async with newcomer(machine) as link:
        process = await link.create_process(subsystem=PAIR, encoding=None)
        process.stdin.write(b"{}\n{}\n")
        # It is over, and its answer came.
        assert b"without sense" in (await process.stdout.read()).splitlines()[-1]
        await until(link.is_closed, "its end")


async def test_newcomers_are_few_and_strangers_still(machine: LentMachine) -> None:
    """A login that anybody has gives nobody a place."""
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(NEWCOMERS_OF_ONE_MAX):
            await stack.enter_async_context(newcomer(machine))
        assert machine.worker.acceptor.strangers.total() == NEWCOMERS_OF_ONE_MAX
        with pytest.raises(MachineError, match="lets nobody in by digits now"):
            await begun(machine)
    await until(lambda: not machine.tenants.by_digits.newcomers, "their end")


@pytest.mark.parametrize(
    "addresses",
    [("2001:db8::1", "2001:db8::2", "2001:db8::3"), ("10.0.0.1", "::ffff:10.0.0.1")],
)
async def test_one_network_is_one_address_however_it_is_written(
    machine: LentMachine, addresses: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digits, "NEWCOMERS_OF_ONE_MAX", len(addresses) - 1)
    servers = [
        WorkerServer(machine.tenants, "", host_key=machine.host_key, come_from=one)
        for one in addresses
    ]
    let_in = [one.validate_public_key(USER_BY_DIGITS, machine.key) for one in servers]
    assert let_in == [*[True] * (len(addresses) - 1), False]


async def test_newcomers_of_all_addresses_are_few(machine: LentMachine) -> None:
    server = machine.tenants.by_digits
    comers = [object() for _ in range(NEWCOMERS_MAX + 1)]
    let_in = [server.lets_in(one, f"10.0.0.{n}") for n, one in enumerate(comers)]
    assert let_in == [*[True] * NEWCOMERS_MAX, False]
    # Whoever has a place may ask for it again.
    assert server.lets_in(comers[0], "10.0.0.0")


async def test_without_announcing_nobody_comes_by_digits(tmp_path: Path) -> None:
    async with lent(tmp_path) as machine:
        with pytest.raises(MachineError, match="lets nobody in by digits"):
            await begun(machine)


async def test_without_a_host_key_nobody_comes_by_digits(machine: LentMachine) -> None:
    server = WorkerServer(machine.tenants, "")
    assert not server.validate_public_key(USER_BY_DIGITS, machine.key)
    own = WorkerServer(machine.tenants, "", host_key=machine.host_key)
    assert own.validate_public_key(USER_BY_DIGITS, machine.key)


async def test_another_server_is_no_worker(tmp_path: Path) -> None:
    async def greets(_: Any, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2p1\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(greets, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert await begin_pairing(f"127.0.0.1:{port}", tmp_path / "key", "a") is None
    server.close()
    await server.wait_closed()
    assert await begin_pairing(f"127.0.0.1:{port}", tmp_path / "key", "a") is None


# --- data ----------------------------------------------------------------------------


async def test_names_are_data(machine: LentMachine) -> None:
    pairing = await begun(machine, "\x1b[2Jst\nudio" + "x" * 100)
    asking = machine.pairings.read().asking
    assert asking is not None
    assert asking.name.isprintable()
    assert len(asking.name) <= digits.NAME_MAX
    pairing.close()


LINES = st.one_of(
    st.binary(max_size=200),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=40),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["name", "commitment", "nonce", "agrees", "problem"]),
                inner,
                max_size=5,
            )
        ),
        max_leaves=8,
    ).map(msgspec.json.encode),
)


class Told:
    """Reads what a machine at the other end says; ``said`` is what it is told."""

    def __init__(self, lines: list[bytes]) -> None:
        self._left = b"".join(one + b"\n" for one in lines)
        self.said: list[bytes] = []

    async def read(self, n: int) -> bytes:
        data, self._left = self._left[:1], self._left[1:]
        return data

    def write(self, data: bytes) -> None:
        self.said.append(data)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(lines=st.lists(LINES, max_size=3))
def test_junk_pairs_nobody_and_ends_that_try_alone(
    lines: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    from backends.mesh.identity import line_of_raw
    from backends.mesh.pairings import PairingFile

    pairings = PairingFile(tmp_path_factory.mktemp("worker") / "consoles.json")
    heard: list[str] = []
    server = digits.DigitsServer(pairings, "nuc", heard.append)
    told, keys = Told(lines), (line_of_raw(A), line_of_raw(B))
    asyncio.run(server.serve(told, told, "127.0.0.1", keys))
    assert not pairings.read().consoles
    assert pairings.read().asking is None
    assert "was not paired" in heard[-1]
    assert all(one.isprintable() for one in heard)


async def test_junk_does_not_fill_the_log(machine: LentMachine) -> None:
    for number in range(100):
        told = Told([b"junk\n"])
        keys = ("", machine.host_key)
        await machine.tenants.by_digits.serve(told, told, f"10.0.0.{number}", keys)
    lines = [one for one in machine.tenants.lines if "was not paired" in one]
    assert len(lines) == LINES_MAX


async def test_a_console_keeps_its_nonce_until_that_of_the_worker_came() -> None:
    """Whoever is in between could choose its own by it."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    said: list[DigitsStep] = []

    class Worker:
        async def read(self, n: int) -> bytes:
            (first,) = said
            assert first.commitment
            assert not first.nonce
            return b'{"name":"nuc","nonce":"' + N2.hex().encode() + b'"}\n'

        def write(self, data: bytes) -> None:
            said.append(msgspec.json.decode(data, type=DigitsStep))

    process = SimpleNamespace(stdin=Worker(), stdout=Worker())
    link: Any = SimpleNamespace(get_server_host_key=lambda: key)
    pairing = DigitsPairing("10.0.0.7:50080", link, process)
    await pairing.agree_on_digits(key, "studio")
    promised, told = said
    nonce = bytes.fromhex(told.nonce)
    raw = raw_of(key)
    assert promised.commitment == commitment(raw, raw, nonce)
    assert pairing.digits == digits_of(raw, raw, nonce, N2)
    # Another key that the link has later is not the one that was compared.
    link.get_server_host_key = lambda: asyncssh.generate_private_key("ssh-ed25519")
    assert pairing.host_key == public_line(key)


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(LINES, max_size=3))
def test_junk_of_a_worker_is_told_in_a_sentence(lines: list[bytes]) -> None:
    async def asked() -> None:
        told = Told(lines)
        process = type("Process", (), {"stdin": told, "stdout": told})()
        link = type("Link", (), {"get_server_host_key": lambda self: key})()
        pairing = DigitsPairing("10.0.0.7:50080", link, process)
        await pairing.agree_on_digits(key, "studio")
        assert pairing.name.isprintable()
        await pairing.outcome()

    key = asyncssh.generate_private_key("ssh-ed25519")
    with pytest.raises((DllmError, ValueError)):
        asyncio.run(asked())
