"""Workers that dial a console: joining by its token, and coming back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from unittest.mock import Mock

import asyncssh
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backends.errors import MachineError
from backends.machines.join_listener import Awaited, JoinListener
from backends.machines.ssh.lent import LentConnection
from backends.mesh.dialling import Dial, dial_any
from backends.mesh.identity import own_key, public_line, raw_of
from backends.mesh.messages import DIALLED
from backends.mesh.owner_limits import OwnerLimits
from backends.mesh.pairings import PairingFile
from backends.mesh.quic import QuicSocket
from backends.mesh.quic_place import QuicPlace
from backends.mesh.tenants import Tenants
from backends.mesh.token import Token
from backends.mesh.worker import Worker
from backends.tasks import end_tasks
from tests.kit.clusters import paths_in
from tests.kit.waiting import until
from tests.unit.mesh.lent import asking


class Console:
    """A console that awaits workers."""

    def __init__(self, folder: Path) -> None:
        self.key_file = folder / "key"
        self.joined: list[tuple[str, str, str]] = []
        self.refuses = ""
        self.kept = folder / "invitations"
        self.bell = self.new_bell()
        self.connection: LentConnection | None = None

    def new_bell(self) -> JoinListener:
        own = self.key_file, "studio", lambda: 0, self._joined
        return JoinListener(*own, self.kept)

    async def _joined(self, name: str, its_name: str, host_key: str) -> str:
        if self.refuses:
            raise MachineError(self.refuses)
        self.joined.append((name, its_name, host_key))
        self.connection = LentConnection(
            its_name, self.bell.awaited(host_key, self._came), host_key, self.key_file
        )
        return name or its_name

    def _came(self) -> None:
        if self.connection is not None:
            self.connection.poke()

    def invite(self, life_s: float = 60.0, name: str = "") -> Token:
        return self.bell.invite(life_s, name, ["127.0.0.1"])


class Joiner:
    """A worker that dials."""

    def __init__(self, folder: Path) -> None:
        self.paths = paths_in(folder)
        self.pairings = PairingFile(self.paths.worker_pairings_file)
        self.tenants = Tenants(self.paths, self.pairings, OwnerLimits(), "nuc")
        self.worker = Worker(self.paths, self.pairings, self.tenants)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.worker.run())
        try:
            yield
        finally:
            await end_tasks(task)


@pytest.fixture
async def console(tmp_path: Path) -> AsyncIterator[Console]:
    made = Console(tmp_path / "console")
    yield made
    if made.connection is not None:
        await made.connection.stop()
    await made.bell.close()


async def test_a_token_is_waited_for_until_it_is_used_or_old(
    console: Console, tmp_path: Path
) -> None:
    console.invite(life_s=-1.0)
    assert not console.bell.invites
    token = console.invite()
    assert console.bell.invites
    assert not console.bell.joined_as(token.id)
    await Joiner(tmp_path / "nuc").worker.join(token)
    assert not console.bell.invites
    assert console.bell.joined_as(token.id) == "nuc"
    with pytest.raises(MachineError, match="Nobody joined in time"):
        console.bell.joined_as("0" * 16)


async def test_who_waits_for_a_joiner_is_told_while_it_joins_and_why_it_was_refused(
    console: Console, tmp_path: Path
) -> None:
    console.refuses = "There is a peer nuc already"
    token = console.invite()
    goes_on = asyncio.Event()
    joined = console.bell._joined

    async def slowly(*told: str) -> str:
        await goes_on.wait()
        return await joined(*told)

    console.bell._joined = slowly
    joining = asyncio.create_task(Joiner(tmp_path / "nuc").worker.join(token))
    await until(lambda: not console.bell.invites, "its use")
    assert console.bell.joined_as(token.id) == ""
    goes_on.set()
    with pytest.raises(MachineError, match="There is a peer nuc already"):
        await joining
    with pytest.raises(MachineError, match="There is a peer nuc already"):
        console.bell.joined_as(token.id)


async def test_it_joins_and_is_reached_by_its_own_connection(
    console: Console, tmp_path: Path
) -> None:
    joiner = Joiner(tmp_path / "nuc")
    assert await joiner.worker.join(console.invite(name="box")) == "studio"
    ((name, its_name, host_key),) = console.joined
    assert (name, its_name) == ("box", "nuc")
    assert host_key == public_line(own_key(joiner.paths.worker_key_file))
    (known,) = joiner.pairings.read().consoles
    assert known.key == public_line(own_key(console.key_file))
    assert console.connection is not None
    # Another console invites the same machine: it serves both.
    other = Console(tmp_path / "other")
    assert await joiner.worker.join(other.invite()) == "studio-2"
    assert [one.name for one in joiner.pairings.read().consoles] == [
        "studio",
        "studio-2",
    ]
    assert other.connection is not None
    async with joiner.running():
        await other.connection.connect()
        await console.connection.connect()
        for one in (console.connection, other.connection):
            agent = await asking(one._open_link())
            assert "total_bytes" in await agent.ask("memory")
        assert {one.name for one in joiner.tenants.known.values()} == {
            "studio",
            "studio-2",
        }
        await other.connection.stop()
        await other.bell.close()
        assert console.connection.hello.name == "nuc"
        link = console.connection._open_link()
        agent = await asking(link)
        assert "total_bytes" in await agent.ask("memory")
        # Files share that connection: there is no other.
        async with console.connection.files() as sftp:
            with pytest.raises(asyncssh.SFTPPermissionDenied):
                await sftp.stat("/etc/passwd")
        link.abort()
        connection = console.connection
        await until(lambda: not connection.connected, "the loss")
        # It dials again by itself.
        await console.connection.connect()


async def test_who_joins_anew_is_reached_without_a_restart(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The console is elsewhere now, and had removed it; the worker dials rarely."""
    for name in ("FIRST_REDIAL_S", "LAST_REDIAL_S"):
        monkeypatch.setattr(f"backends.mesh.worker.{name}", 6000.0)
    joiner, tried = Joiner(tmp_path / "nuc"), []
    dial_of = joiner.worker._dial_of

    def dialled(places: Sequence[str], quic: QuicPlace | None) -> Dial:
        tried.append(places)
        return dial_of(places, quic)

    await joiner.worker.join(console.invite())
    (known,) = joiner.pairings.read().consoles
    moved = replace(known, places=("127.0.0.1:1",))
    joiner.pairings.change(lambda pairings: replace(pairings, consoles=(moved,)))
    monkeypatch.setattr(joiner.worker, "_dial_of", dialled)
    async with joiner.running():
        await until(lambda: tried == [moved.places], "the first dial")
        ((_, _, host_key),) = console.joined
        console.bell.forget(host_key)
        await Joiner(tmp_path / "nuc").worker.join(console.invite())
        assert console.connection is not None
        await console.connection.connect()


async def test_a_token_is_good_for_one_worker(console: Console, tmp_path: Path) -> None:
    token = console.invite()
    await Joiner(tmp_path / "nuc").worker.join(token)
    console.invite()
    with pytest.raises(MachineError, match="used already"):
        await Joiner(tmp_path / "eve").worker.join(token)
    assert len(console.joined) == 1


async def test_a_token_outlives_the_controller_that_made_it(
    console: Console, tmp_path: Path
) -> None:
    good, used = console.invite(name="box"), console.invite()
    console.invite(life_s=-1.0)
    await Joiner(tmp_path / "eve").worker.join(used)
    # As after a kill.
    await console.bell.close()
    console.bell = bell = console.new_bell()
    assert bell.invites
    bell.listen()
    assert bell._listening is not None
    port = bell._listening.getsockname()[1]
    with pytest.raises(MachineError, match="used already"):
        await Joiner(tmp_path / "ada").worker.join(replace(used, port=port))
    await Joiner(tmp_path / "nuc").worker.join(replace(good, port=port))
    assert [name for name, *_ in console.joined] == ["", "box"]
    assert not console.new_bell().invites
    assert not console.kept.exists()
    token = console.invite()
    assert stat.S_IMODE(console.kept.stat().st_mode) == 0o600
    assert token.secret.hex() not in console.kept.read_text()
    console.kept.write_text("[7")
    assert not console.new_bell().invites


async def test_a_token_whose_use_cannot_be_kept_is_refused(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be good again after a restart."""
    token, joiner = console.invite(), Joiner(tmp_path / "nuc")
    with monkeypatch.context() as patch:
        full = Mock(side_effect=OSError(28, "No space left on device"))
        patch.setattr("backends.machines.join_listener.write_private", full)
        console.invite()
        with pytest.raises(MachineError, match="No space left"):
            await joiner.worker.join(token)
    assert not console.joined
    await joiner.worker.join(token)
    assert len(console.joined) == 1


async def test_silent_connections_keep_no_joiner_out(
    console: Console, tmp_path: Path
) -> None:
    token = console.invite()
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            made = stack.enter_context(socket.socket())
            made.bind(("127.0.0.2", 0))
            made.connect(("127.0.0.1", token.port))
        await asyncio.sleep(0.2)
        assert await Joiner(tmp_path / "nuc").worker.join(token) == "studio"


async def test_an_expired_token_is_refused(console: Console, tmp_path: Path) -> None:
    token = console.invite(life_s=1.0)
    console.invite()
    await until(lambda: time.time() >= token.expires_at, "the end of its time")
    with pytest.raises(MachineError, match="expired"):
        await Joiner(tmp_path / "nuc").worker.join(token)
    assert not console.joined


async def test_a_forged_secret_is_refused(console: Console, tmp_path: Path) -> None:
    joiner = Joiner(tmp_path / "nuc")
    with pytest.raises(MachineError, match="does not know this token"):
        await joiner.worker.join(replace(console.invite(), secret=bytes(16)))
    assert not console.joined
    assert not joiner.pairings.read().consoles


async def test_another_console_is_not_told_the_secret(
    console: Console, tmp_path: Path
) -> None:
    """Who does not have the key of the token is not let in at all."""
    other = asyncssh.generate_private_key("ssh-ed25519")
    joiner = Joiner(tmp_path / "nuc")
    with pytest.raises(MachineError, match="another key than the token says"):
        await joiner.worker.join(replace(console.invite(), key=raw_of(other)))
    assert not console.joined
    assert not joiner.pairings.read().consoles


async def test_a_console_that_takes_it_not_says_why(
    console: Console, tmp_path: Path
) -> None:
    console.refuses = "There is a peer nuc already"
    joiner = Joiner(tmp_path / "nuc")
    with pytest.raises(MachineError, match="There is a peer nuc already"):
        await joiner.worker.join(console.invite())
    assert not joiner.pairings.read().consoles


async def test_who_says_to_be_another_worker_is_found_out(
    console: Console, tmp_path: Path
) -> None:
    joiner, eve = Joiner(tmp_path / "nuc"), Joiner(tmp_path / "eve")
    token = console.invite()
    await joiner.worker.join(token)
    assert console.connection is not None
    made = await dial_any(token.places)
    hint = own_key(joiner.paths.worker_key_file).get_fingerprint()
    await asyncio.get_running_loop().sock_sendall(made, DIALLED + hint.encode() + b"\n")
    serving = asyncio.create_task(eve.worker.serve(made))
    with pytest.raises(MachineError, match="its key is not that of nuc"):
        await console.connection.connect()
    await end_tasks(serving)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(noise=st.binary(max_size=300) | st.binary(max_size=80).map(DIALLED.__add__))
def test_any_first_words_end_that_connection_alone(
    noise: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def said() -> None:
        console = Console(tmp_path_factory.mktemp("console"))
        token = console.invite()
        reader, writer = await asyncio.open_connection("127.0.0.1", token.port)
        writer.write(noise)
        writer.write_eof()
        with contextlib.suppress(OSError):
            await reader.read()
        writer.close()
        await console.bell.close()
        assert not console.joined

    asyncio.run(said())


@pytest.mark.parametrize("is_alive", [True, False])
async def test_one_that_waits_is_replaced_once_it_has_gone(is_alive: bool) -> None:
    came: list[int] = []
    awaited = Awaited(lambda: came.append(1), lambda: None)
    pairs = [socket.socketpair() for _ in range(2)]
    awaited.put(pairs[0][0])
    # As a worker does at once: it waits to be read.
    pairs[0][1].sendall(b"SSH-2.0-worker")
    if not is_alive:
        pairs[0][1].shutdown(socket.SHUT_WR)
    awaited.put(pairs[1][0])
    assert await awaited.connected() is pairs[not is_alive][0]
    with contextlib.suppress(ConnectionResetError):
        assert pairs[is_alive][1].recv(1) == b""
    assert len(came) == 1 + (not is_alive)
    for near, far in pairs:
        near.close()
        far.close()


async def test_tcp_takes_the_place_of_a_stream_of_quic_that_waits() -> None:
    awaited = Awaited(lambda: None, lambda: None)
    plain, far = socket.socketpair()
    tcp, near = socket.socketpair()
    with far, near, QuicSocket(fileno=plain.detach()) as quic, tcp:
        for made in (quic, tcp):
            made.setblocking(False)
            awaited.put(made)
        assert await awaited.better(None) is tcp


async def test_quic_that_does_not_go_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.machines.join_listener.RETRY_S", 0.01)
    tries: list[int] = []

    class Broken:
        async def waiting(self) -> None:
            tries.append(1)
            raise OSError("as under load")

    console = Console(tmp_path)
    console.bell._quic = Broken()  # type: ignore[assignment]
    console.bell.listen()
    await until(lambda: len(tries) > 1, "another try")
    await console.bell.close()
