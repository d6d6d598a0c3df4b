"""Machines that other consoles of our owner have told of, and what they are told."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.errors import MachineError
from backends.machines import gossip
from backends.machines.gossip import (
    BYTES_MAX,
    KEPT_S,
    Gossip,
    encoded,
    known_machine,
    read_told,
)
from backends.machines.ssh.authentication import fingerprint
from backends.mesh.identity import key_of_line, line_of_raw
from backends.state import Device, KnownMachine, ModelFile, Peer, PeerFacts

GIB = 1 << 30
KEY = line_of_raw(bytes([5] * 32))
CPU = Device(id="box/CPU", name="CPU", total_bytes=8 * GIB, free_bytes=GIB)
MODEL = ModelFile(path="/m.gguf", name="m", size_bytes=GIB, source="models")
MAC = known_machine("mac", "ada@", [CPU], [MODEL])
BOX = known_machine("box", "ada@10.0.0.8:2222", [CPU], [MODEL], ("SHA256:k",))


def written(folder: Path, name: str, *machines: KnownMachine, at: str = "") -> Path:
    """A file, as the console of another machine leaves it."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}.json"
    file.write_text(f"{at or '10.0.0.2'}\n{encoded(list(machines))}")
    return file


class Ran:
    """The connection to a peer that is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    async def run(self, script: str, *args: str, **_: float) -> None:
        self.told.append(args)


def ssh_peer(name: str, address: str, at: float = 1.0) -> Any:
    facts = PeerFacts(at=at, devices=(CPU,), models=(MODEL,))
    peer = Peer(name=name, address=address, facts=facts)
    return SimpleNamespace(
        name=name, peer=peer, facts=facts, connected=True, connection=Ran()
    )


def gossip_of(
    folder: Path, *peers: Any, serves: tuple[str, ...] = (), is_on: bool = True
) -> Gossip:
    known = SimpleNamespace(
        of_owner=lambda: list(peers),
        values=lambda: tuple(one.peer for one in peers),
        own_id=lambda: "0a1b2c3d",
    )
    return Gossip(
        cast("Any", known),
        folder,
        own=lambda: MAC,
        serves=serves.__contains__,
        is_on=lambda: is_on,
    )


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    ssh = tmp_path / ".ssh"
    ssh.mkdir()
    (ssh / "config").write_text(
        "Host box\n HostName 10.0.0.8\n Port 2222\n User ada\n"
        "Host far\n HostName 10.0.0.9\n ProxyJump box\n"
        "Host tunnel\n HostName 127.0.0.1\n Port 2200\n"
    )
    (ssh / "known_hosts").write_text(f"[10.0.0.8]:2222 {KEY}\n")
    return tmp_path


def test_what_is_told_is_read_and_only_the_reader_knows_from_where(
    tmp_path: Path,
) -> None:
    mac, box = read_told(written(tmp_path, "a", MAC, BOX))
    assert (mac.name, mac.address, mac.told_by) == ("mac", "ada@10.0.0.2", "mac")
    assert (box.name, box.address, box.told_by) == ("box", BOX.address, "mac")
    assert box.fingerprints == BOX.fingerprints
    # What changes while it works is not told.
    assert [(d.total_bytes, d.free_bytes) for d in box.devices] == [(8 * GIB, 0)]
    assert [model.name for model in box.models] == ["m"]
    assert box.peer.note == "told by mac: dllm-tui peers add box"
    # It came through a tunnel, so that its own address says nothing.
    assert [m.name for m in read_told(written(tmp_path, "b", MAC, BOX, at="::1"))] == [
        "box"
    ]


def test_a_file_is_bounded() -> None:
    many = [
        known_machine(f"m{n}", f"ada@m{n}", [CPU] * 99, [MODEL] * 999)
        for n in range(99)
    ]
    assert len(many[0].devices) == gossip.DEVICES_MAX
    assert len(many[0].models) == gossip.MODELS_MAX
    assert len(encoded(many)) <= BYTES_MAX


@pytest.mark.parametrize("address", ["-oProxyCommand=x", "a b", "$(id)", "", "::1"])
def test_an_address_that_is_none_is_passed_over(tmp_path: Path, address: str) -> None:
    wrong = known_machine("eve", address, [], [])
    found = list(read_told(written(tmp_path, "a", MAC, wrong, BOX)))
    assert [one.name for one in found] == ["mac", "box"]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(junk=st.binary(max_size=200) | st.just(b'10.0.0.2\n{"machines":[]}'))
def test_junk_is_passed_over(junk: bytes, tmp_path: Path) -> None:
    file = tmp_path / "junk.json"
    file.write_bytes(junk)
    assert list(read_told(file)) == []


async def test_a_file_that_is_none_hides_no_other(tmp_path: Path) -> None:
    told = tmp_path / "told"
    far = known_machine("far", f"ada@10.0.0.4:{'9' * 5000}", [], [])
    written(told, "a", MAC, far)
    (told / "b.json").symlink_to(tmp_path / "nothing")
    os.mkfifo(told / "c.json")
    assert [one.name for one in await gossip_of(told).known([])] == ["mac"]


async def test_a_key_that_is_revoked_is_not_told_as_trusted(
    home: Path, tmp_path: Path
) -> None:
    with (home / ".ssh/known_hosts").open("a") as file:
        file.write(f"@revoked [10.0.0.8]:2222 {KEY}\n")
    box, nuc = ssh_peer("box", "box"), ssh_peer("nuc", "ada@10.0.0.7")
    await gossip_of(tmp_path, box, nuc).tell_all()
    ((_, text),) = nuc.connection.told
    (tmp_path / "t.json").write_text(f"10.0.0.2\n{text}")
    assert [one.fingerprints for one in read_told(tmp_path / "t.json")] == [(), ()]


async def test_known_are_those_that_are_no_peers_and_have_names_of_their_own(
    tmp_path: Path,
) -> None:
    told = tmp_path / "told"
    nuc = known_machine("nuc", "ada@10.0.0.7", [], [])
    hostile = known_machine("\x1b[2J local", "ada@10.0.0.6", [], [])
    written(told, "a", MAC, BOX, nuc, hostile)
    written(told, "b", known_machine("mac", "ada@", [], []), nuc, at="10.0.0.3")
    ours = gossip_of(told, ssh_peer("mine", "ada@10.0.0.8:2222"))
    found = await ours.known(["nuc"])
    # Two machines are called mac, and nuc is a name of the ssh config.
    named = {one.name: one.address for one in found}
    assert named == {
        "mac": "ada@10.0.0.2",
        "mac-2": "ada@10.0.0.3",
        "nuc-2": "ada@10.0.0.7",
        "2J-local": "ada@10.0.0.6",
    }
    # What the ssh config reaches by the same name is not told twice.
    assert "box" not in {one.name for one in await gossip_of(told).known(["box"])}
    assert "box" in {one.name for one in await gossip_of(told).known([])}


async def test_who_says_nothing_for_a_month_is_not_believed(tmp_path: Path) -> None:
    file = written(tmp_path / "told", "a", MAC, BOX)
    old = time.time() - KEPT_S - 60
    os.utime(file, (old, old))
    assert await gossip_of(tmp_path / "told").known([]) == []
    assert not file.exists()
    assert await gossip_of(tmp_path / "none").known([]) == []


async def test_each_is_told_of_the_others_once_after_each_probe(tmp_path: Path) -> None:
    box, far = ssh_peer("box", "box"), ssh_peer("far", "far")
    nuc, tunnel = ssh_peer("nuc", "ada@10.0.0.7"), ssh_peer("tunnel", "tunnel")
    new = ssh_peer("new", "ada@10.0.0.5", at=0.0)
    peers = (box, far, nuc, tunnel, new)
    ours = gossip_of(tmp_path, *peers, serves=("far",))

    await ours.tell_all()
    await ours.tell_all()
    assert [len(one.connection.told) for one in peers] == [1, 0, 1, 1, 1]
    ((who, text),) = nuc.connection.told
    assert who == "0a1b2c3d"
    (tmp_path / "t.json").write_text(f"10.0.0.2\n{text}")
    told = {one.name: one for one in read_told(tmp_path / "t.json")}
    # Not those that only we reach, nor those that nobody has looked at.
    assert set(told) == {"mac", "box"}
    assert told["box"].address == "ada@10.0.0.8:2222"
    assert told["box"].fingerprints == (fingerprint(key_of_line(KEY)),)
    # What comes through a machine between is seen at the address of that.
    ((_, text),) = tunnel.connection.told
    (tmp_path / "t.json").write_text(f"10.0.0.1\n{text}")
    assert "mac" not in {one.name for one in read_told(tmp_path / "t.json")}


async def test_what_was_told_is_withdrawn_from_a_peer_that_is_removed(
    tmp_path: Path,
) -> None:
    box, away = ssh_peer("box", "box"), ssh_peer("away", "ada@10.0.0.7")
    away.connected = False
    ours = gossip_of(tmp_path, box, away, serves=("far",))
    await ours.tell_all()
    for name in ("box", "away", "nobody"):
        await ours.withdraw(name)
    assert [len(one) for one in box.connection.told] == [2, 1]
    assert away.connection.told == []


async def test_switched_off_nothing_is_told_or_heard(tmp_path: Path) -> None:
    written(tmp_path, "a", MAC, BOX)
    nuc = ssh_peer("nuc", "ada@10.0.0.7")
    off = gossip_of(tmp_path, nuc, is_on=False)
    assert await off.known([]) == []
    await off.tell_all()
    await off.tell_all()
    # What was told before is withdrawn, once.
    assert nuc.connection.told == [("0a1b2c3d",)]


async def test_who_cannot_be_told_is_left_until_the_next_probe(tmp_path: Path) -> None:
    tries = []

    async def run(*_: str) -> None:
        tries.append(1)
        raise MachineError("The disk is full")

    full = ssh_peer("full", "ada@10.0.0.7")
    full.connection.run = run
    ours = gossip_of(tmp_path, full)
    await ours.tell_all()
    await ours.tell_all()
    assert len(tries) == 1
    full.facts = PeerFacts(at=2.0)
    await ours.tell_all()
    assert len(tries) == 2


def test_who_is_lent_is_not_told_and_nobody_is_told_of_it(tmp_path: Path) -> None:
    from backends.config import PeerConfig
    from backends.machines.peers import Peers
    from tests.kit.clusters import paths_in

    none = cast("Any", None)
    peers = Peers(
        none, none, paths_in(tmp_path), show=lambda _: None, serves=lambda _: False
    )
    peers._settle = none
    lent = PeerConfig(worker="10.0.0.7:50080", host_key=KEY)
    bare = PeerConfig(bare="10.0.0.7:50052")
    for name, config in {"lent": lent, "bare": bare, "own": PeerConfig()}.items():
        peers._known[name] = peers._made(name, config)
    assert [one.name for one in peers.of_owner()] == ["own"]
