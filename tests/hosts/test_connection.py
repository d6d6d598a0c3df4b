"""Connections to real sshds: keys, questions, refusals."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from backends.errors import MachineError, PeerUnreachable
from backends.machines.ssh import sessions
from backends.state import QuestionKind
from tests.hosts.reaching import question, reach, reached, refusal, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hosts.machine import Machine
    from tests.hosts.network import Network


async def test_known_key_and_the_fast_cipher(network: Network) -> None:
    network.write_ssh_config()
    async with reached("ada") as ada:
        assert ada.connected
        home = network.peer("ada").remote_home
        assert (await ada.run("hostname; echo ~")).stdout == f"ada\n{home}\n"
        assert await ada.ping_ms() > 0
        assert ada._link is not None
        cipher = ada._link.get_extra_info("send_cipher")
        assert cipher == "aes128-gcm@openssh.com"
    assert not ada.connected


async def test_unknown_key_is_asked_and_remembered(network: Network) -> None:
    network.write_ssh_config(known=False)
    peer = network.peer("ada")
    ada = reach("ada")
    asked = (await question(ada)).question
    assert asked.kind is QuestionKind.HOST_KEY
    assert (asked.fingerprint, asked.key_type) == (peer.fingerprint, "ssh-ed25519")
    assert peer.address in asked.text
    assert (await question(ada, host_key="SHA256:other")).question == asked
    assert network.known_hosts.read_text() == ""
    await ada.connect({QuestionKind.HOST_KEY: asked.fingerprint})
    await ada.close()
    assert network.known_hosts.read_text() == f"{peer.address} {peer.host_key}\n"
    argv = ["ssh", "-F", str(network.config_file), "-oBatchMode=yes"]
    argv += ["-oGlobalKnownHostsFile=none", "ada", "true"]
    await asyncio.to_thread(subprocess.run, argv, check=True, env=network.env())
    async with reached("ada"):
        pass


async def test_host_key_alias_and_hashed_names(network: Network) -> None:
    options = {"ada": {"HostKeyAlias": "the-ada"}}
    network.write_ssh_config(known=False, options=options)
    ada = reach("ada")
    await ada.connect({QuestionKind.HOST_KEY: network.peer("ada").fingerprint})
    await ada.close()
    assert network.known_hosts.read_text().startswith("the-ada ")
    argv = ["ssh-keygen", "-H", "-f", str(network.known_hosts)]
    await asyncio.to_thread(subprocess.run, argv, check=True, capture_output=True)
    assert "the-ada" not in network.known_hosts.read_text()
    async with reached("ada"):
        pass


async def test_changed_key_is_refused_and_never_asked(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    peer.new_host_key()
    before = network.known_hosts.read_text()
    ada = reach("ada")
    for answers in ({}, {QuestionKind.HOST_KEY: peer.fingerprint}):
        with pytest.raises(PeerUnreachable) as caught:
            await ada.connect(answers)
        text = str(caught.value)
        assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in text
        assert f"line 1 of {network.known_hosts}" in text
        assert f"ssh-keygen -R '{peer.address}'" in text
    assert network.known_hosts.read_text() == before


async def test_another_known_machine_is_not_taken_for_it(network: Network) -> None:
    # ada's name now leads to bob, whose address and key are known too.
    ada, bob = network.peer("ada"), network.peer("bob")
    options = {"ada": {"HostName": bob.address, "HostKeyAlias": ada.address}}
    network.write_ssh_config(options=options)
    assert "HAS CHANGED" in await refusal(reach("ada"))


async def test_key_of_another_type_is_a_changed_key(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    peer.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", "/etc/ssh/other"])
    peer.configure(HostKey="/etc/ssh/other")
    assert "HAS CHANGED" in await refusal(reach("ada"))


async def test_refused_key(network: Network) -> None:
    network.write_ssh_config()
    network.peer("ada").authorize()
    text = await refusal(reach("ada"))
    assert "refuses to let root in (tried: publickey)" in text
    assert "ssh-copy-id" in text


async def test_ipv6_without_config(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    (network.home / ".ssh" / "id_ed25519").write_bytes(network.key.read_bytes())
    async with reached("ada", f"root@[{peer.address6}]:22") as ada:
        assert (await ada.run("hostname")).stdout == "ada\n"
    async with reached("ada", f"root@{peer.address6}"):
        pass


async def test_proxy_jump(network: Network) -> None:
    options = {"cy": {"ProxyJump": "bob"}}
    network.write_ssh_config(options=options, known=False)
    bob, cy = network.peer("bob"), network.peer("cy")
    there = reach("cy")
    first = (await question(there)).question
    assert first.fingerprint == bob.fingerprint
    assert "bob" in first.text
    second = (await question(there, host_key=bob.fingerprint)).question
    assert second.fingerprint == cy.fingerprint
    await there.connect({QuestionKind.HOST_KEY: cy.fingerprint})
    result = await there.run("hostname; echo $SSH_CONNECTION")
    assert result.stdout.startswith(f"cy\n{bob.address} ")
    async with there.files() as files:
        assert await files.exists(".ssh")
    await there.close()
    cy.stop_sshd()
    assert "bob cannot reach cy" in await refusal(there)
    bob.stop_sshd()
    assert "bob" in await refusal(there)
    await there.close()


async def test_two_jumps_and_a_jump_for_all(network: Network) -> None:
    # `Host *` holds for ada too, which is not reached through itself.
    options = {"cy": {"ProxyJump": "ada,bob"}}
    network.write_ssh_config(options=options)
    with network.config_file.open("a") as file:
        file.write("Host *\n    ProxyJump ada\n")
    async with reached("cy") as cy:
        assert (await cy.run("hostname")).stdout == "cy\n"
    async with reached("bob") as bob:
        assert (await bob.run("hostname")).stdout == "bob\n"
    # A shell that has answered may not have ended yet.
    await until(
        lambda: not any(peer.processes() for peer in network.peers),
        "the end of the last shell",
    )


async def test_jumps_in_circles(network: Network) -> None:
    network.write_ssh_config(
        options={"ada": {"ProxyJump": "bob"}, "bob": {"ProxyJump": "ada"}}
    )
    assert "in circles" in await refusal(reach("ada"))


async def test_a_jump_that_forwards_nothing(network: Network) -> None:
    network.write_ssh_config(options={"cy": {"ProxyJump": "bob"}})
    network.peer("bob").configure(AllowTcpForwarding="no")
    assert "bob does not let connections through to cy" in await refusal(reach("cy"))


async def test_proxy_command(network: Network) -> None:
    command = f"ssh -F {network.config_file} -oBatchMode=yes -W %h:%p bob"
    network.write_ssh_config(options={"ada": {"ProxyCommand": command}})
    async with reached("ada") as ada:
        assert (await ada.run("hostname")).stdout == "ada\n"


async def test_failures_are_explained(network: Network) -> None:
    peer = network.peer("ada")
    refused = {"HostName": "127.0.0.1", "Port": "1"}
    nowhere = {"HostName": network.address.rsplit(".", 1)[0] + ".200"}
    unknown = {"HostName": "no.such.machine.invalid"}
    network.write_ssh_config(
        options={"ada": refused, "bob": nowhere, "cy": unknown},
    )
    assert "refuses connections: nothing listens on port 1" in await refusal(
        reach("ada")
    )
    assert "There is no way to bob" in await refusal(reach("bob"))
    assert "No machine named no.such.machine.invalid" in await refusal(reach("cy"))
    network.write_ssh_config(options={"ada": {"Port": "not a number"}})
    with pytest.raises(MachineError, match="ssh config cannot be used"):
        await reach("ada").connect()
    network.write_ssh_config()
    peer.set_login_shell("/usr/sbin/nologin")
    text = await refusal(reach("ada"))
    assert "runs no commands" in text
    assert "not available" in text


async def test_a_login_shell_that_ends_before_it_is_written_to(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opened_late(*args: Any) -> sessions.Process:
        process = await open_session(*args)
        await asyncio.sleep(0.5)
        return process

    open_session = sessions.open_session
    monkeypatch.setattr(sessions, "open_session", opened_late)
    network.write_ssh_config()
    network.peer("ada").set_login_shell("/usr/sbin/nologin")
    text = await refusal(reach("ada"))
    assert "runs no commands" in text
    assert "not available" in text


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0"])
async def test_not_an_ssh_server(network: Network, greeting: bytes) -> None:
    async def answer(
        _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(greeting)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        text = await refusal(reach("web", f"127.0.0.1:{port}"))
    assert "not an SSH server" in text


async def test_a_silent_machine_is_given_up(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.machines.ssh.authentication.CONNECT_TIMEOUT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = await refusal(reach("mute", f"127.0.0.1:{port}"))
    assert "did not answer within 1 s" in text


async def test_reboot(network: Network) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    async with reached("ada") as ada:
        running = asyncio.create_task(ada.run("sleep 600", timeout_s=None))
        await until(lambda: "sleep 600" in peer.processes(), "the sleep")
        await asyncio.to_thread(peer.kill_everything)
        # A power cut says no goodbye: what we send next is answered with a reset.
        with pytest.raises(PeerUnreachable):
            async with asyncio.timeout(60):
                await ada.ping_ms()
        with pytest.raises(PeerUnreachable):
            await running
        with pytest.raises(PeerUnreachable, match="broke"):
            await ada.run("true")
        await ada.connect()
        assert (await ada.run("echo back")).stdout == "back\n"


async def test_cancelled_connect_leaves_nothing(network: Network) -> None:
    network.write_ssh_config()
    network.peer("ada").link_down()
    ada = reach("ada")
    task = asyncio.create_task(ada.connect())
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    network.peer("ada").link_up()
    await ada.connect()
    await ada.close()


async def test_files_use_their_own_connection(network: Network, tmp_path: Path) -> None:
    network.write_ssh_config()
    peer = network.peer("ada")
    data = bytes(range(256)) * 4096
    (tmp_path / "a file").write_bytes(data)
    async with reached("ada") as ada:
        before = peer.sshd_log.count("Accepted publickey")
        async with ada.files() as files:
            await files.put(str(tmp_path / "a file"), "it's here")
        async with ada.files() as files:
            assert await files.getsize("it's here") == len(data)
        assert peer.sshd_log.count("Accepted publickey") == before + 1
    assert (peer.home / "it's here").read_bytes() == data


async def test_the_files_connection_ends_when_unused(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.machines.ssh.connection.FILES_IDLE_S", 0.2)
    network.write_ssh_config()
    peer = network.peer("ada")
    async with reached("ada") as ada:
        async with ada.files() as files:
            assert len(_logins(peer)) == 2
            await files.listdir(".")
        await until(lambda: len(_logins(peer)) == 1, "its end")
        async with ada.files() as files:
            await files.listdir(".")
        assert ada.connected


def _logins(peer: Machine) -> list[str]:
    lines = peer.run(["ps", "-eo", "args"]).stdout.splitlines()
    return [line for line in lines if line == "sshd: root@notty"]


async def test_no_sftp(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.machines.ssh.files._SERVERS", "/nowhere/sftp-server")
    network.write_ssh_config()
    network.peer("ada").configure(Subsystem="other /bin/false")
    async with reached("ada") as ada:
        with pytest.raises(MachineError, match="offers no SFTP"):
            async with ada.files():
                pass


@pytest.mark.parametrize("servers", ["", "/nowhere/sftp-server"])
async def test_files_past_a_login_shell_that_talks(
    network: Network, monkeypatch: pytest.MonkeyPatch, servers: str
) -> None:
    """Where sshd runs the server by way of the login shell, or has one of its own."""
    if servers:
        monkeypatch.setattr("backends.machines.ssh.files._SERVERS", servers)
    network.write_ssh_config()
    peer = network.peer("ada")
    if not servers:
        peer.configure(Subsystem="sftp /usr/lib/openssh/sftp-server")
    (peer.home / ".bashrc").write_text("echo Welcome; printf 'no newline'\n" * 200)
    (peer.home / "here").write_text("found")
    async with reached("ada") as ada, ada.files() as files:
        async with files.open("here") as file:
            assert await file.read() == "found"
        await files.put(peer.inside("/etc/hostname"), "there")
    assert (peer.home / "there").exists()
