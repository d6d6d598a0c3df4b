"""The peers that are lent: known by their keys, whatever their names and places."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import asyncssh
import pytest
from msgspec.structs import replace

from backends.config import PeerConfig, load_config
from backends.errors import ControllerError
from backends.machines.peers import Peers
from backends.mesh.identity import public_line, raw_of
from backends.mesh.token import Token, TokenKind, new_token
from backends.state import Peer
from tests.kit.clusters import paths_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

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
        self.peers._made = cast("Callable[..., Any]", StillPeer)  # type: ignore[method-assign]

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


def token(*addresses: str, key: asyncssh.SSHKey = KEY) -> str:
    made: Token = new_token(TokenKind.ADD, "nuc", addresses, 50080, raw_of(key))
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
