"""Consoles of one owner know each other's machines, devices and models."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from tests.engine.conftest import wait_for
from tests.hosts.user import HeadUser

if TYPE_CHECKING:
    from tests.hosts.network import Network

STATE = ".local/state/dllm-tui"


def test_the_console_of_a_peer_is_told_of_the_others(
    network: Network, user: HeadUser
) -> None:
    ada, bob = network.peer("ada"), network.peer("bob")
    # As a console on ada leaves it.
    (ada.home / STATE).mkdir(parents=True)
    (ada.home / STATE / "controller.log").touch()
    user.run("peers", "add", "ada")
    user.run("peers", "add", "bob")
    folder = ada.home / STATE / "told"
    wait_for(
        lambda: any(bob.address in file.read_text() for file in folder.glob("*.json")),
        "ada is told of bob",
    )
    assert [file.suffix for file in folder.iterdir()] == [".json"]
    assert folder.stat().st_mode & 0o077 == 0
    # No console was ever on bob, which is only worked with.
    assert not (bob.home / STATE / "told").exists()

    # The console of ada: no name for bob, and no host key that it trusts.
    network.config_file.write_text(
        f"Host *\n IdentityFile {network.key}\n"
        f" UserKnownHostsFile {network.known_hosts}\n"
    )
    network.known_hosts.write_text("")
    other = HeadUser(network, user.cache, state=network.home / "other")
    shutil.copytree(folder, other.paths.told_dir)

    def known() -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in other.json("peers", "list")}

    try:
        told = known()["bob"]
        assert (told["state"], told["address"]) == ("known", f"root@{bob.address}")
        assert f"@{network.address}" in str([m["address"] for m in known().values()])
        other.run("peers", "add", "bob")
        assert known()["bob"]["state"] == "no engine"
        assert bob.host_key in network.known_hosts.read_text()
    finally:
        other.run("stop")
