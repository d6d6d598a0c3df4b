"""Looking after the peers of the settings, also after an error of our own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from backends.config import PeerConfig
from backends.errors import ControllerError, DllmError, HostError
from backends.machines.peers import Peers
from backends.paths import Paths
from backends.state import Peer, PeerState

if TYPE_CHECKING:
    from pathlib import Path


class Clumsy:
    """A peer whose looking after fails a few times, for no good reason."""

    def __init__(self, failures: int) -> None:
        self.peer = Peer(name="ada", state=PeerState.READY)
        self.runs = 0
        self.closed = False
        self.fine = asyncio.Event()
        self._failures = failures

    async def run(self) -> None:
        self.runs += 1
        if self.runs <= self._failures:
            raise KeyError("what")
        self.fine.set()
        try:
            await asyncio.Event().wait()
        finally:
            # As closing a connection takes a moment.
            await asyncio.sleep(0.01)
            self.closed = True

    async def look(self) -> None:
        pass

    def fail(self, note: str) -> None:
        self.peer = msgspec.structs.replace(
            self.peer, state=PeerState.FAILED, note=note
        )


class Config:
    peers = {"ada": PeerConfig(ssh="ada")}


class Readers:
    def settings(self) -> Config:
        return Config()


def peers_with(known: Clumsy, home: Path, serves: bool = False) -> Peers:
    paths = Paths(config_dir=home, state_dir=home, cache_dir=home, runtime_dir=home)
    made = Peers(
        cast("Any", None),
        cast("Any", Readers()),
        paths,
        show=lambda _: None,
        serves=lambda _: serves,
    )
    made._made = lambda name, config: cast("Any", known)  # type: ignore[method-assign]
    return made


async def nothing(_: object) -> None:
    pass


async def test_an_error_of_ours_is_shown_and_the_peer_looked_after_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    known = Clumsy(failures=6)
    sleep = asyncio.sleep

    async def short(seconds: float) -> None:
        assert known.peer.state is PeerState.FAILED
        assert "KeyError: 'what'" in known.peer.note
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("backends.machines.peers.asyncio.sleep", short)
    peers = peers_with(known, tmp_path)
    peers.start(nothing)
    async with asyncio.timeout(10):
        await known.fine.wait()
    assert known.runs == 7
    assert pauses == [1, 4, 15, 60, 60, 60]
    await peers.close()


async def test_a_peer_that_serves_cannot_be_removed(tmp_path: Path) -> None:
    peers = peers_with(Clumsy(0), tmp_path, serves=True)
    peers.start(nothing)
    with pytest.raises(ControllerError, match="part of the cluster"):
        await peers.remove("ada")
    await peers.close()


async def test_a_peer_removed_twice_at_once_is_closed_once(tmp_path: Path) -> None:
    known = Clumsy(0)
    peers = peers_with(known, tmp_path)
    peers.start(nothing)
    await known.fine.wait()
    await asyncio.gather(peers.remove("ada"), peers.remove("ada"))
    assert known.closed
    with pytest.raises(HostError, match="There is no peer ada"):
        await peers.remove("ada")


async def test_a_peer_that_cannot_be_removed_from_the_settings_stays(
    tmp_path: Path,
) -> None:
    known = Clumsy(0)
    peers = peers_with(known, tmp_path)
    peers.start(nothing)
    await known.fine.wait()
    # No file can be written there, whoever runs this.
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(DllmError, match="Cannot write"):
        await peers.remove("ada")
    assert peers.known("ada").peer is known.peer
    assert not known.closed
    await peers.close()


async def test_peers_of_changed_settings_come_go_and_are_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy: set[str] = set()
    peers = peers_with(Clumsy(0), tmp_path)
    monkeypatch.setattr(peers, "_serves", busy.__contains__)
    monkeypatch.setattr(peers, "_made", lambda name, config: Clumsy(0))
    peers.start(cast("Any", None))
    ada = peers.known("ada")
    try:
        assert await peers.follow(Config.peers)
        assert peers.known("ada") is ada
        two = {**Config.peers, "bob": PeerConfig(ssh="bob")}
        assert await peers.follow(two)
        assert peers.known("ada") is ada
        bob = peers.known("bob")
        busy.add("bob")
        assert not await peers.follow(Config.peers)
        assert peers.known("bob") is bob
        busy.clear()
        assert await peers.follow(Config.peers)
        with pytest.raises(HostError):
            peers.known("bob")
        assert await peers.follow({"ada": PeerConfig(ssh="ada@elsewhere")})
        assert peers.known("ada") is not ada
    finally:
        await peers.close()
