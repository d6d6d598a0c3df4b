"""Logging in to real sshds: passwords, locked keys, agents."""

from __future__ import annotations

import asyncio
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from backends.state import QuestionKind
from tests.hosts.reaching import question, reach, reached, refusal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.hosts.network import Network

PASSWORD = "correct horse"


@pytest.mark.parametrize("interactive", [False, True])
async def test_password(network: Network, interactive: bool) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    peer.authorize()
    peer.allow_password(PASSWORD, keyboard_interactive=interactive)
    ada = reach("ada")
    asked = (await question(ada)).question
    assert asked.kind is QuestionKind.PASSWORD
    assert "Password of root on ada" in asked.text
    assert "was refused" in (await question(ada, password="wrong")).question.text
    await ada.connect({QuestionKind.PASSWORD: PASSWORD})
    assert (await ada.run("echo in")).stdout == "in\n"
    async with ada.files() as files:
        assert await files.exists(".ssh")
    await ada.close()
    assert (await question(ada)).question.kind is QuestionKind.PASSWORD
    await ada.close()


@pytest.mark.parametrize(
    ("kind", "has_public"),
    [("ed25519", False), pytest.param("rsa", True, marks=pytest.mark.trial)],
)
async def test_locked_identity(network: Network, kind: str, has_public: bool) -> None:
    key = network.make_key("locked", "open sesame", kind)
    network.write_ssh_config(identity=key)
    public = key.with_name("locked.pub")
    network.peer("ada").authorize(public.read_text().strip())
    if not has_public:
        public.unlink()
    ada = reach("ada")
    asked = (await question(ada)).question
    assert asked.kind is QuestionKind.PASSPHRASE
    assert str(key) in asked.text
    assert "did not" in (await question(ada, passphrase="wrong")).question.text
    await ada.connect({QuestionKind.PASSPHRASE: "open sesame"})
    await ada.close()


async def test_a_locked_key_the_peer_refuses_is_not_asked_for(network: Network) -> None:
    key = network.make_key("locked", "open sesame")
    network.write_ssh_config(identity=key)
    assert "refuses to let root in" in await refusal(reach("ada"))


@pytest.fixture
def agent(network: Network, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = network.home / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=-3)
    while not path.exists():
        time.sleep(0.01)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    yield path
    process.terminate()
    process.wait()


async def test_agent(network: Network, agent: Path) -> None:
    network.write_ssh_config(identity=network.home / "nothing")
    assert "refuses to let root in" in await refusal(reach("ada"))
    env = network.env(SSH_AUTH_SOCK=str(agent))
    argv = ["ssh-add", "-q", str(network.key)]
    await asyncio.to_thread(subprocess.run, argv, check=True, env=env)
    async with reached("ada"):
        pass


async def test_agent_with_only_the_named_identity(
    network: Network, agent: Path
) -> None:
    env = network.env(SSH_AUTH_SOCK=str(agent))
    other = network.make_key("other")
    for key in (other, network.key):
        argv = ["ssh-add", "-q", str(key)]
        await asyncio.to_thread(subprocess.run, argv, check=True, env=env)
    # As where an agent holds the private half, and the disk only the public one.
    for name, public in (("right", network.key), ("wrong", other)):
        data = public.with_name(f"{public.name}.pub").read_text()
        (network.home / ".ssh" / f"{name}.pub").write_text(data)
    ssh = network.home / ".ssh"
    network.peer("ada").configure(MaxAuthTries="1")
    for identity in (ssh / "right", ssh / "right.pub"):
        only = {"ada": {"IdentitiesOnly": "yes"}}
        network.write_ssh_config(identity=identity, options=only)
        async with reached("ada"):
            pass
    network.write_ssh_config(identity=ssh / "wrong", options=only)
    await refusal(reach("ada"))
    network.write_ssh_config(identity=ssh / "nothing")
    assert "gave up before the right key" in await refusal(reach("ada"))


async def test_dead_agent_does_no_harm(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(network.home / "gone"))
    network.write_ssh_config()
    async with reached("ada"):
        pass


async def test_a_password_goes_only_to_who_asked(network: Network) -> None:
    network.write_ssh_config(options={"cy": {"ProxyJump": "bob"}})
    for name in ("bob", "cy"):
        network.peer(name).authorize()
        network.peer(name).allow_password(f"of {name}")
    cy = reach("cy")
    assert "on bob" in (await question(cy)).question.text
    asked = (await question(cy, password="of bob")).question
    assert "on cy" in asked.text
    assert "refused" not in asked.text
    assert "Failed password" not in network.peer("cy").sshd_log
    await cy.connect({QuestionKind.PASSWORD: "of cy"})
    await cy.close()
