"""The peers that are lent: known by their keys, whatever their names and places."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import asyncssh
import msgspec
import pytest
from msgspec.structs import replace

from backends.config import PeerConfig, load_config
from backends.errors import ControllerError, DllmError
from backends.machines.join_listener import JoinListener
from backends.machines.lent_peer import LentPeer, moved_to
from backends.machines.peers import Peers
from backends.machines.ssh.lent import LentConnection
from backends.mesh.discovery import Browser
from backends.mesh.identity import own_key, public_line, raw_of
from backends.mesh.messages import PROTOCOL, WorkerHello
from backends.mesh.quic_place import QuicPlace
from backends.mesh.token import Token, TokenKind, new_token
from backends.state import Peer
from backends.writing import write_private
from tests.kit.clusters import paths_in
from tests.kit.waiting import until
from tests.unit.mesh.lent import lent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from backends.mesh.dialling import Dial

KEY = asyncssh.generate_private_key("ssh-ed25519")
OTHER_KEY = asyncssh.generate_private_key("ssh-ed25519")


class StillPeer:
    """A peer that is neither reached nor probed."""

    def __init__(self, name: str, config: PeerConfig, *_: object) -> None:
        self.peer = Peer(name=name, address=config.worker or "")

    async def run(self) -> None:
        await asyncio.Event().wait()


class Known:
    """Peers that are looked after, with the settings they are written to."""

    def __init__(self, folder: Path) -> None:
        self.paths = paths_in(folder)
        self.serving: set[str] = set()
        readers: Any = type("", (), {"settings": lambda _: load_config(self.paths)})()
        self.peers = Peers(
            cast("Any", None),
            readers,
            self.paths,
            show=lambda _: None,
            serves=self.serving.__contains__,
        )
        made = cast("Callable[..., Any]", StillPeer)
        self.peers._made = made  # type: ignore[method-assign]

    @property
    def settings(self) -> dict[str, PeerConfig]:
        return load_config(self.paths).peers

    @property
    def shown(self) -> dict[str, str]:
        return {peer.name: peer.address for peer in self.peers.values()}


@pytest.fixture
async def known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Known]:
    async def paired(*_: object) -> str:
        return "nuc"

    monkeypatch.setattr("backends.machines.ssh.lent.pair", paired)
    made = Known(tmp_path)
    yield made
    await made.peers.close()


def token(*addresses: str, key: asyncssh.SSHKey = KEY, name: str = "nuc") -> str:
    made: Token = new_token(TokenKind.ADD, name, addresses, 50080, raw_of(key))
    return made.text


async def test_a_machine_that_comes_again_is_one_peer(known: Known) -> None:
    """Its memory would count as often as it is a peer."""
    peers, line = known.peers, public_line(KEY)
    assert (await peers.add_by_token("box", token("10.0.0.7"))).name == "box"
    kept = replace(known.settings["box"], memory_gib={"CPU": 2.0})
    peers._configs["box"] = kept
    for name in ("", "box", "other"):
        assert await peers._joined(name, "nuc", line) == "box"
        assert known.shown == {"box": "dials"}
        assert (await peers.add_by_token(name, token("10.0.0.8"))).name == "box"
        assert known.shown == {"box": "10.0.0.8:50080"}
    assert known.settings == {"box": replace(kept, worker="10.0.0.8:50080")}
    # Another machine is another peer, and gets no name that is taken.
    other = token("10.0.0.9", key=OTHER_KEY)
    with pytest.raises(ControllerError, match="There is a peer box already"):
        await peers.add_by_token("box", other)
    assert (await peers.add_by_token("", other)).name == "nuc"


async def test_no_token_is_used_in_vain(known: Known) -> None:
    """Neither for a name without a letter, nor for another peer's wrong settings."""
    known.peers.add("old", PeerConfig(worker="10.0.0.6:1", host_key="ssh-ed25519 x"))
    for key, named in ((KEY, "peer"), (OTHER_KEY, "peer-2")):
        text = token("10.0.0.7", key=key, name="書斎")
        assert (await known.peers.add_by_token("", text)).name == named


async def test_a_peer_that_serves_gets_its_new_place_afterwards(known: Known) -> None:
    peers = known.peers
    await peers.add_by_token("", token("10.0.0.7"))
    known.serving.add("nuc")
    assert (await peers.add_by_token("", token("10.0.0.8"))).name == "nuc"
    assert known.shown == {"nuc": "10.0.0.7:50080"}
    assert not await peers.follow(known.settings)
    known.serving.clear()
    assert await peers.follow(known.settings)
    assert known.shown == {"nuc": "10.0.0.8:50080"}


async def test_who_was_invited_before_a_restart_is_listened_for(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    listens: list[JoinListener] = []
    monkeypatch.setattr(JoinListener, "listen", lambda one: listens.append(one))
    known.peers.start(cast("Any", None))
    assert not listens
    file = known.paths.invitations_file
    write_private(file, msgspec.json.encode({"hash": (time.time() + 60, "nuc")}))
    known.peers.start(cast("Any", None))
    assert listens
    assert known.peers.invites


async def test_a_peer_is_renamed_unless_it_serves(known: Known) -> None:
    peers = known.peers
    await peers.add_by_token("", token("10.0.0.7"))
    await peers.add_by_token("box", token("10.0.0.8", key=OTHER_KEY))
    config = known.settings["nuc"]
    for new, why in (("box", "There is a peer box"), ("a b", "cannot be a peer's")):
        with pytest.raises(DllmError, match=why):
            await peers.rename("nuc", new)
    known.serving.add("nuc")
    with pytest.raises(ControllerError, match="nuc is part of the cluster"):
        await peers.rename("nuc", "ada")
    known.serving.clear()
    assert (await peers.rename("nuc", "ada")).name == "ada"
    assert known.settings["ada"] == config
    assert list(known.shown) == ["box", "ada"]
    assert await peers.follow(known.settings)
    # It is known by its key as before.
    assert (await peers.add_by_token("", token("10.0.0.9"))).name == "ada"


async def test_who_goes_away_meanwhile_leaves_no_peer_that_nobody_looks_after(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = known.peers
    goes_on, ends = asyncio.Event(), asyncio.Event()

    async def run(_: StillPeer) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.set()
            await goes_on.wait()

    monkeypatch.setattr(StillPeer, "run", run)
    await peers.add_by_token("", token("10.0.0.7"))
    await asyncio.sleep(0)
    before = peers._tasks["nuc"]
    asking = asyncio.create_task(peers.add_by_token("", token("10.0.0.8")))
    await ends.wait()
    asking.cancel()
    await asyncio.wait([asking])
    goes_on.set()
    await asyncio.wait([before])
    await asyncio.sleep(0.01)
    assert known.shown == {"nuc": "10.0.0.8:50080"}


# --- machines that move ---------------------------------------------------------------

LENT = PeerConfig(worker="10.0.0.7:50080", host_key=public_line(KEY))
NODE, OTHER_NODE = bytes(32), bytes([1]) * 32


def told(*places: str, quic: QuicPlace | None = None) -> WorkerHello:
    return WorkerHello(protocol=PROTOCOL, places=places, quic=quic)


@pytest.mark.parametrize(
    ("known", "hello", "used", "places"),
    [
        # As a router leases addresses.
        ("10.0.0.7:1", ("10.0.0.9:1",), "", "10.0.0.9:1"),
        ("10.0.0.7:1", ("10.0.0.9:1",), "10.0.0.7:1", "10.0.0.7:1 10.0.0.9:1"),
        # It knows no name, and no address that a router of its has.
        ("nuc.lan:1 8.8.8.8:7", ("10.0.0.9:1",), "", "10.0.0.9:1 nuc.lan:1 8.8.8.8:7"),
        ("10.0.0.7:1 [fd00::7]:1", ("[fd00::7]:1", "10.0.0.7:1"), "", "="),
        # Our own loopback is no place of its.
        ("10.0.0.7:1", ("127.0.0.1:1", "[::1]:1"), "", "="),
        ("10.0.0.7:1", ("x" * 999, "a b:1", "nuc:1", "10.0.0.9"), "", "="),
        (
            "10.0.0.7:1",
            ("[::ffff:10.0.0.9]:1", "[FD00:0::9]:01"),
            "",
            "10.0.0.9:1 [fd00::9]:1",
        ),
        *(
            ("10.0.0.7:1", (nowhere,), "", "=")
            for nowhere in (
                *("0.0.0.0:22", "[::]:22", "[::ffff:127.0.0.1]:22", "224.0.0.1:5"),
                *("10.0.0.9:5\n", "10.0.0.9:5\x1b[2J", "10.0.0.9:99999", "10.0.0.9:0"),
                *("10.0.0.9:٣", f"[fe80::1%{'x' * 300}]:5", "fd00::9:5:"),
            )
        ),
        # However much it tells, the name that the user wrote stays.
        (
            "nuc.lan:1 8.8.8.8:7",
            tuple(f"10.0.0.{n}:1" for n in range(11, 19)),
            "10.0.0.9:1",
            " ".join(f"10.0.0.{n}:1" for n in (9, *range(11, 17))) + " nuc.lan:1",
        ),
        # An older one tells nothing.
        ("10.0.0.7:1", (), "10.0.0.7:1", "="),
        ("10.0.0.7:1", (), "10.0.0.9:1", "10.0.0.9:1 10.0.0.7:1"),
    ],
)
def test_the_places_that_a_worker_tells_replace_those_that_can_be_others(
    known: str, hello: tuple[str, ...], used: str, places: str
) -> None:
    config = replace(LENT, worker=known)
    moved = moved_to(config, told(*hello), used)
    assert moved == replace(config, worker=known if places == "=" else places)


def test_a_place_of_quic_is_kept_without_the_key_of_its_relay() -> None:
    quic = QuicPlace(
        node=NODE, addresses=("10.0.0.9:5",), relay="http://8.8.8.8:9", relay_key="k"
    )
    moved = moved_to(LENT, told(quic=quic), "")
    assert moved.quic == f"{NODE.hex()} 10.0.0.9:5 http://8.8.8.8:9"
    # Its own network tells sooner what it is there than how it looks from outside.
    public = replace(quic, addresses=("10.0.0.7:5", "8.8.4.4:41"))
    early = replace(quic, relay="", addresses=("10.0.0.9:5",))
    moved = moved_to(replace(LENT, quic=public.text), told(quic=early), "")
    assert moved.quic == f"{NODE.hex()} 10.0.0.9:5 8.8.4.4:41 http://8.8.8.8:9"
    nowhere = replace(early, addresses=("127.0.0.1:5", "0.0.0.0:5", "10.0.0.9:0"))
    assert moved_to(moved, told(quic=nowhere), "") == moved
    other = replace(early, node=OTHER_NODE)
    assert moved_to(moved, told(quic=other), "").quic == other.text
    for nothing in (None, replace(quic, node=b"x")):
        assert moved_to(moved, told(quic=nothing), "") == moved


def test_no_place_of_quic_without_sense_is_learnt() -> None:
    learnt: list[QuicPlace | None] = []
    place = QuicPlace(node=NODE, relay="http://8.8.8.8:9", relay_key="k")
    for quic in (place, replace(place, node=b"x")):
        one = SimpleNamespace(
            name="nuc",
            _dials=False,
            _config=LENT,
            _places=(),
            _heard=(),
            _invited=Mock(hello=told("10.0.0.9:1", quic=quic), place=""),
            _dial=lambda: None,
            _show=lambda **_: None,
            _moved=lambda _, config, quic: learnt.append(quic),
        )
        LentPeer._learn_places(cast("LentPeer", one))
    assert learnt == [place, None]


async def test_a_machine_at_another_address_is_found_by_its_announcement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The announcement proves nothing; its key does, and then it is kept."""
    async with lent(tmp_path) as machine:
        await machine.pair()
        (here,) = machine.places
        known = Known(tmp_path / "ours")
        del known.peers._made
        known.peers._settle = cast("Any", None)
        known.paths.console_key_file.parent.mkdir(parents=True)
        machine.console.console_key_file.rename(known.paths.console_key_file)
        asked: list[str] = []

        async def announced(_: Browser, key_id: str) -> tuple[str, ...]:
            asked.append(key_id)
            return (here,)

        async def unseen(_: LentPeer) -> None:
            pass

        labels: list[str] = []
        dial_by = LentConnection.dial_by

        def dialled_by(one: LentConnection, dial: Dial, **how: bool) -> None:
            labels.append(dial.label)
            dial_by(one, dial, **how)

        monkeypatch.setattr(LentConnection, "dial_by", dialled_by)
        monkeypatch.setattr(Browser, "places_of", announced)
        monkeypatch.setattr(LentPeer, "look", unseen)
        gone = PeerConfig(worker="127.0.0.1:9", host_key=machine.host_key)
        known.peers.add("nuc", gone)
        try:
            await until(lambda: known.settings["nuc"] != gone, "its new place")
            assert known.settings["nuc"].worker == f"{here} 127.0.0.1:9"
            assert await known.peers.follow(known.settings)
            assert known.shown == {"nuc": f"{here} 127.0.0.1:9"}
            assert cast("Any", known.peers.ssh("nuc")).connection.connected
        finally:
            await known.peers.close()
        key = own_key(machine.paths.worker_key_file)
        assert set(asked) == {key.get_fingerprint()}
        # A forged announcement does not stand before the place that is known.
        assert labels[0] == f"127.0.0.1:9 or {here}"


async def test_a_worker_tells_the_addresses_that_it_has_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lent(tmp_path) as machine:
        port = machine.pairings.read().port
        assert machine.tenants.hello().places == (f"127.0.0.1:{port}",)
        monkeypatch.setattr("backends.mesh.worker.reachable", lambda _: ["10.0.0.9"])
        await until(lambda: machine.pairings.read().addresses == ("10.0.0.9",))
        assert machine.tenants.hello().places == (f"10.0.0.9:{port}",)
        assert machine.token().addresses == ("10.0.0.9",)
