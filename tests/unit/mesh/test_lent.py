"""What a console may do on a machine that is lent, and what it may not."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import asyncssh
import msgspec
import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backends.errors import MachineError, Withheld
from backends.machines.agent import ProcessRecord
from backends.machines.shell import Greeting
from backends.machines.ssh.lent import LentConnection, pair, reaching
from backends.mesh import connection_limits
from backends.mesh.acceptor import STRANGERS_OF_ONE_MAX
from backends.mesh.dialling import Dialled
from backends.mesh.identity import own_key
from backends.mesh.messages import (
    AGENT,
    HELLO,
    PAIR,
    PROTOCOL,
    SERVER_VERSION,
    USER_BY_KEY,
    USER_BY_SECRET,
    WorkerHello,
)
from backends.mesh.owner_limits import OwnerLimits
from backends.mesh.pairings import PairedConsole, PairingFile, with_console
from backends.mesh.quic_place import QuicPlace
from backends.mesh.server import READ_BYTES_MAX, ModelFiles, WorkerServer
from backends.mesh.tenants import Tenant, Tenants
from backends.mesh.worker import Worker
from backends.mesh.worker_status import StatusFile, WorkerStatus
from backends.paths import ENGINE_DIR_VARIABLE
from backends.state.base import json_bytes
from backends.tasks import end_tasks, forever
from tests.kit.clusters import paths_in
from tests.kit.waiting import until
from tests.unit.mesh.lent import Asking, LentMachine, asking, lent
from tests.unit.mesh.test_request_policy import JSON

WITHIN_S = 20.0
MIB = 1 << 20


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[LentMachine]:
    async with lent(tmp_path) as made:
        yield made


@pytest.fixture
async def paired(machine: LentMachine) -> LentMachine:
    assert await machine.pair() == "nuc"
    return machine


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        return int(made.getsockname()[1])


async def worker_at(agent: Asking, machine: LentMachine) -> int:
    port = int((await agent.ask("free_port"))["port"])
    argv = [machine.rpc_server, "-H", "127.0.0.1", "-p", str(port), "-d", "CPU"]
    started = await agent.start(argv)
    assert "record" in started, started
    await listening(agent, started["record"]["pid"], port)
    return port


async def relay_at(agent: Asking, machine: LentMachine, worker: int) -> int:
    port = free_port()
    key = f"{agent.hello['run_dir']}/c/relay/private"
    argv = [machine.tenants.hello().relay, "worker", "--name", "w"]
    argv += ["--worker", f"127.0.0.1:{worker}", "--listen", f"127.0.0.1:{port}"]
    secret = "0" * 64
    started = await agent.start([*argv, "--key-file", key], "c/relay", private=secret)
    assert "record" in started, started
    await listening(agent, started["record"]["pid"], port)
    return port


async def listening(agent: Asking, pid: int, port: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        listens = False
        while not listens:
            told = await agent.ask("listens", pid=pid, port=port)
            listens = told["listens"]


# --- tokens --------------------------------------------------------------------------


async def test_a_token_pairs_once(machine: LentMachine) -> None:
    token = machine.token()
    await machine.pair(token)
    with pytest.raises(MachineError, match="used already"):
        await machine.pair(token)
    (console,) = machine.pairings.read().consoles
    assert console.name == "studio"
    async with machine.login():
        pass


async def test_a_forged_secret_lets_nobody_in(machine: LentMachine) -> None:
    with pytest.raises(MachineError, match="does not know this token"):
        await machine.pair(replace(machine.token(), secret=bytes(16)))
    assert not machine.pairings.read().consoles


async def test_another_machine_is_not_told_the_secret(
    machine: LentMachine, tmp_path: Path
) -> None:
    """Its key is not that of the token: the console hangs up before it logs in."""
    async with lent(tmp_path / "eve") as eve:
        token = machine.token()
        at_eve = replace(token, port=eve.pairings.read().port)
        with pytest.raises(MachineError, match="its key is not that of nuc"):
            await pair(at_eve, machine.console.console_key_file, "studio")
        assert not any("asked" in line for line in eve.tenants.lines)
    await machine.pair(token)


async def test_who_has_a_token_may_only_hand_over_a_key(machine: LentMachine) -> None:
    secret = machine.token().secret.hex()
    given = {"username": USER_BY_SECRET, "password": secret, "client_keys": None}
    asked: list[dict[str, Any]] = [
        *({"subsystem": one} for one in ("agent", "sftp", "hello", "noise")),
        {"command": "id"},
    ]
    for one in asked:
        async with machine.login(**given) as link:
            with pytest.raises(asyncssh.Error):
                await link.create_process(**one, encoding=None)
            await link.wait_closed()
    async with machine.login(**given) as link:
        with pytest.raises(asyncssh.Error):
            await link.create_connection(asyncssh.SSHTCPSession, "127.0.0.1", 22)
    async with machine.login(**given) as link:
        process = await link.create_process(subsystem=PAIR, encoding=None)
        process.stdin.write(b'{"name":"eve","key":"ssh-rsa AAAA"}\n')
        assert b"no public key" in await process.stdout.readline()
    assert not machine.pairings.read().consoles


async def test_only_ed25519_keys_of_paired_consoles_log_in(paired: LentMachine) -> None:
    for kind in ("ssh-ed25519", "ecdsa-sha2-nistp256"):
        other = asyncssh.generate_private_key(kind)
        with pytest.raises(asyncssh.PermissionDenied):
            async with paired.login(client_keys=[other]):
                pass
    for name in ("root", os.environ.get("USER", "me")):
        with pytest.raises(asyncssh.PermissionDenied):
            async with paired.login(username=name):
                pass


async def test_keys_are_readable_by_their_owners_only(paired: LentMachine) -> None:
    for file in (paired.paths.worker_key_file, paired.console.console_key_file):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    paired.console.console_key_file.chmod(0o644)
    with pytest.raises(MachineError, match="chmod 600"):
        assert paired.key


# --- no shell, no other file, no other port ------------------------------------------


async def test_it_gives_no_shell(paired: LentMachine) -> None:
    async with paired.login() as link:
        for command in (None, "id", "scp -f /etc/passwd"):
            for pty in ({}, {"term_type": "xterm"}):
                with pytest.raises(asyncssh.ChannelOpenError):
                    await link.create_process(command, **pty)
        with pytest.raises(asyncssh.ChannelOpenError):
            await link.create_process(subsystem="netconf")
    said = "\n".join(paired.tenants.lines)
    assert "studio asked for a shell: refused" in said
    assert "studio asked for a command: refused" in said


async def test_nothing_of_ssh_is_forwarded_back(paired: LentMachine) -> None:
    async with paired.login() as link:
        with pytest.raises(asyncssh.ChannelListenError):
            await link.forward_remote_port("127.0.0.1", 0, "127.0.0.1", 22)
        with pytest.raises(asyncssh.ChannelListenError):
            await link.start_unix_server(lambda *_: None, "/tmp/dllm-no-such.sock")


async def test_the_agent_runs_no_program_but_workers(
    paired: LentMachine, tmp_path: Path
) -> None:
    tool = tmp_path / "rpc-server"
    tool.write_text("#!/bin/sh\nid\n")
    tool.chmod(0o755)
    link = paired.models / "rpc-server"
    link.symlink_to("/bin/sh")
    server = paired.rpc_server.replace("rpc-server", "llama-server")
    at = ["-H", "127.0.0.1", "-p", str(free_port()), "-d", "CPU"]
    wrong = [
        ["/bin/sh", "-c", "id"],
        ["sh"],
        [],
        [str(tool), *at],
        [str(link), *at],
        [paired.rpc_server + "/../../../x/rpc-server", *at],
        [server, "-m", "x.gguf"],
        [paired.rpc_server, "-H", "0.0.0.0", "-p", str(free_port()), "-d", "CPU"],
        [paired.rpc_server, *at, "-c"],
        [paired.rpc_server, *at, "--evil", "1"],
        [paired.rpc_server, "-H", "127.0.0.1", "-p", "22", "-d", "CPU"],
        [paired.rpc_server, "-H", "127.0.0.1", "-p", str(free_port())],
    ]
    async with paired.agent() as agent:
        for argv in wrong:
            told = await agent.start(argv)
            assert "denied" in told, argv
            # A worker is tried for its banner, which needs no device.
            if "-d" in argv or len(argv) != 5:
                told = await agent.ask("run", argv=argv)
                assert "denied" in told, argv
        told = await agent.start(
            [paired.rpc_server, *at], env={"LD_PRELOAD": "/tmp/evil.so"}
        )
        assert "LD_PRELOAD" in told["denied"]
        told = await agent.start([paired.rpc_server, *at], cwd="/root", unset=["PATH"])
        assert "record" in told


async def test_a_relay_serves_only_the_consoles_own_worker(paired: LentMachine) -> None:
    async with paired.agent() as agent:
        relay = [paired.tenants.hello().relay, "worker", "--name", "w"]
        key = f"{agent.hello['run_dir']}/c/relay/private"
        port = await worker_at(agent, paired)
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = other.getsockname()[1]
            listen, ours = f"127.0.0.1:{free_port()}", f"127.0.0.1:{port}"
            for more in (
                ["--worker", f"127.0.0.1:{taken}"],
                ["--worker", "10.0.0.1:80"],
                ["--worker", ours, "--listen", "0.0.0.0:5000"],
                ["--worker", ours, "--listen", f"127.0.0.1:{taken}"],
                ["--worker", ours, "--listen", "unix:/tmp/x.sock"],
                ["--worker", ours, "--listen", listen, "--key-file", "/etc/shadow"],
                ["--worker", ours, "--listen", listen, "--model", "/etc/passwd"],
                ["--worker", ours, "--listen", listen, "--stats", "/tmp/x.sock"],
                ["--worker", ours],
            ):
                told = await agent.start([*relay, *more], "c/relay", private="0" * 64)
                assert "denied" in told, more
        told = await agent.start(
            [*relay, "--worker", ours, "--listen", listen, "--key-file", key],
            "c/relay",
            private="0" * 64,
        )
        assert "record" in told, told
        head = [relay[0], "head", "--name", "w", "--worker", ours, "--listen", listen]
        assert "denied" in await agent.start(head, "c/head")
        probe = [relay[0], "probe", "--connect", "10.0.0.1:80"]
        assert "denied" in await agent.ask("run", argv=probe)


async def test_a_way_leads_to_the_consoles_own_workers_only(
    paired: LentMachine,
) -> None:
    async with paired.login() as link:
        agent = await asking(link)
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            for host in ("127.0.0.1", "localhost", "10.0.0.1", "::1"):
                with pytest.raises(asyncssh.ChannelOpenError):
                    await link.open_connection(host, port, encoding=None)
        with pytest.raises(asyncssh.ChannelOpenError):
            await link.open_unix_connection("/run/dbus/system_bus_socket")
        behind = await worker_at(agent, paired)
        # It takes what would run code in it: only a relay keeps watch over that.
        with pytest.raises(asyncssh.ChannelOpenError):
            await link.open_connection("127.0.0.1", behind, encoding=None)
        port = await relay_at(agent, paired, behind)
        _, writer = await link.open_connection("127.0.0.1", port, encoding=None)
        writer.close()
        await agent.ask("stop", name="c/relay", grace_s=0.1)
        with (
            socket.create_server(("127.0.0.1", port)),
            pytest.raises(asyncssh.ChannelOpenError),
        ):
            await link.open_connection("127.0.0.1", port, encoding=None)


async def test_another_console_reaches_none_of_it(
    paired: LentMachine, tmp_path: Path
) -> None:
    async with paired.agent() as agent:
        port = await relay_at(agent, paired, await worker_at(agent, paired))
        file = tmp_path / "other" / "key"
        await pair(paired.token(), file, "other")
        async with paired.login(client_keys=[own_key(file)]) as link:
            with pytest.raises(asyncssh.ChannelOpenError):
                await link.open_connection("127.0.0.1", port, encoding=None)
            other = await asking(link)
            assert other.hello["run_dir"] != agent.hello["run_dir"]
            assert (await other.ask("records"))["records"] == []


async def test_files_outside_the_model_folders_are_not_told(
    paired: LentMachine, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (paired.models / "model.gguf").write_bytes(b"GGUF")
    (paired.models / "way-out").symlink_to(secret)
    (paired.models / "up").symlink_to(tmp_path)
    here = str(paired.models)
    outside = [
        str(secret),
        f"{here}/way-out",
        f"{here}/up/secret",
        f"{here}/../secret",
        f"{here}/./../secret",
        here + "-more/x",
        "secret",
        "../secret",
        "",
        "/etc/passwd",
        "/proc/self/environ",
        str(paired.paths.worker_key_file),
    ]
    async with paired.login() as link, link.start_sftp_client() as sftp:
        assert await sftp.getsize(f"{here}/model.gguf") == 4
        async with sftp.open(f"{here}/model.gguf", "rb") as file:
            told: object = await file.read()
            assert told == b"GGUF"
        for path in outside:
            with pytest.raises(asyncssh.SFTPError):
                await sftp.open(path, "rb")
            with pytest.raises(asyncssh.SFTPError):
                await sftp.stat(path)
        agent = await asking(link)
        for path in outside:
            for verb in ("read", "identity", "tensors"):
                assert "denied" in await agent.ask(verb, path=path), path
        told = await agent.ask("find", folders=["/etc", here], suffix="")
        names = {os.path.basename(found["path"]) for found in told["files"]}
        assert "model.gguf" in names
        assert not any(found["path"].startswith("/etc") for found in told["files"])
        assert names.isdisjoint(map(os.path.basename, outside))
        for verb in ("seed", "cached", "uncache", "nonsense"):
            assert "denied" in await agent.ask(verb, path=here, names=["x"], pids=[1])


async def test_models_are_only_read(paired: LentMachine) -> None:
    model = paired.models / "model.gguf"
    model.write_bytes(b"GGUF")
    path = str(model)
    async with paired.login() as link, link.start_sftp_client() as sftp:
        for change in (
            lambda: sftp.open(path, "wb"),
            lambda: sftp.open(path, "ab"),
            lambda: sftp.open(path, "r+b"),
            lambda: sftp.open(path + ".new", "xb"),
            lambda: sftp.remove(path),
            lambda: sftp.rename(path, path + "2"),
            lambda: sftp.posix_rename(path, path + "2"),
            lambda: sftp.chmod(path, 0o777),
            lambda: sftp.truncate(path, 0),
            lambda: sftp.mkdir(path + ".d"),
            lambda: sftp.symlink("/etc", path + ".link"),
            lambda: sftp.link(path, path + ".hard"),
        ):
            with pytest.raises(asyncssh.SFTPError):
                await change()
    assert model.read_bytes() == b"GGUF"
    assert [one.name for one in paired.models.iterdir()] == ["model.gguf"]


async def test_models_may_be_added_where_their_owner_lets_them(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    limits = OwnerLimits(models=(str(folder), str(tmp_path / "more")), writable=True)
    async with lent(tmp_path, limits) as machine:
        (folder / "old.gguf").write_bytes(b"GGUF old")
        (folder / "way.gguf.part").symlink_to(tmp_path / "made")
        (tmp_path / "more").mkdir()
        await machine.pair()
        here = str(folder)
        async with machine.login() as link, link.start_sftp_client() as sftp:
            async with sftp.open(f"{here}/new.gguf.part", "wb") as file:
                await file.write(b"GGUF new")
            await sftp.rename(f"{here}/new.gguf.part", f"{here}/new.gguf")
            async with sftp.open(f"{here}/old.gguf.part", "wb") as file:
                await file.write(b"GGUF bad")
            for change in (
                lambda: sftp.rename(f"{here}/old.gguf.part", f"{here}/old.gguf"),
                lambda: sftp.rename(f"{here}/old.gguf.part", f"{here}/x.gguf"),
                lambda: sftp.rename(f"{here}/old.gguf.part", f"{tmp_path}/old.gguf"),
                lambda: sftp.rename(f"{here}/new.gguf", f"{here}/new.gguf.part"),
                lambda: sftp.open(f"{here}/old.gguf", "wb"),
                lambda: sftp.open(f"{here}/way.gguf.part", "wb"),
                lambda: sftp.open(f"{here}/x.sh", "wb"),
                lambda: sftp.open(f"{here}/../x.gguf.part", "wb"),
                lambda: sftp.open(f"{tmp_path}/more/x.gguf.part", "wb"),
                lambda: sftp.open(f"{tmp_path}/x.gguf.part", "wb"),
                lambda: sftp.remove(f"{here}/new.gguf"),
            ):
                with pytest.raises(asyncssh.SFTPError):
                    await change()
    names = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
    assert names == {
        "old.gguf": b"GGUF old",
        "new.gguf": b"GGUF new",
        "old.gguf.part": b"GGUF bad",
    }
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "x.gguf.part").exists()


async def test_a_half_model_gets_no_name_while_it_may_be_written(
    tmp_path: Path,
) -> None:
    """Nor by a handle of another session: what is there is changed by nobody."""
    folder = tmp_path / "models"
    limits = OwnerLimits(models=(str(folder),), writable=True)
    async with lent(tmp_path, limits) as machine:
        await machine.pair()
        half, whole = f"{folder}/new.gguf.part", f"{folder}/new.gguf"
        async with (
            machine.login() as link,
            link.start_sftp_client() as sftp,
            machine.login() as other,
            other.start_sftp_client() as others,
        ):
            file = await sftp.open(half, "wb")
            await file.write(b"GGUF new")
            for one in (sftp, others):
                with pytest.raises(asyncssh.SFTPFailure, match="still being written"):
                    await one.rename(half, whole)
            await file.close()
            await others.rename(half, whole)
            # As a rename leaves it that breaks off in the middle.
            os.link(whole, half)
            with pytest.raises(asyncssh.SFTPPermissionDenied):
                await sftp.open(half, "r+b")
        assert (folder / "new.gguf").read_bytes() == b"GGUF new"
    assert not ModelFiles._written


async def test_lines_that_are_no_requests_end_nothing(paired: LentMachine) -> None:
    async with paired.agent() as agent:
        for line in (b"", b"[]", b"{", b"7", b'{"id":901}', b'{"do":"run"}', b"\xff"):
            agent.process.stdin.write(line + b"\n")
        odd = {"id": 902, "do": "start", "argv": "x", "env": 7, "name": ["y"]}
        agent.process.stdin.write(repr(odd).replace("'", '"').encode() + b"\n")
        assert "total_bytes" in await agent.ask("memory")


# --- the owner -----------------------------------------------------------------------


async def test_a_revoked_console_is_out_within_a_second_or_two(
    paired: LentMachine,
) -> None:
    async with paired.login() as link:
        agent = await asking(link)
        await worker_at(agent, paired)
        (tenant,) = paired.tenants.known.values()
        (record,) = await tenant.living()
        paired.pairings.revoke("studio")
        async with asyncio.timeout(WITHIN_S):
            await link.wait_closed()
        await until(lambda: not psutil.pid_exists(record.pid), "its worker's end")
    with pytest.raises(asyncssh.PermissionDenied):
        async with paired.login():
            pass


async def test_other_machines_at_some_of_its_places_keep_nobody_away(
    paired: LentMachine,
) -> None:
    """Another worker, another server of SSH that says no more, and a silent one."""
    other = asyncssh.generate_private_key("ssh-ed25519")
    async with contextlib.AsyncExitStack() as stack:
        worker = await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[other], server_version=SERVER_VERSION
        )
        await stack.enter_async_context(worker)
        hanging = await asyncio.start_server(
            lambda _, writer: writer.write(b"SSH-2.0-OpenSSH_9.9\r\n"), "127.0.0.1"
        )
        await stack.enter_async_context(hanging)
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ports = hanging.sockets[0], worker.sockets[0], silent
        places = [f"127.0.0.1:{one.getsockname()[1]}" for one in ports]
        key_file = paired.console.console_key_file
        dial = Dialled((*places, *paired.places))
        connection = LentConnection("nuc", dial, paired.host_key, key_file)
        await connection.connect()
        assert connection.place in paired.places
        await connection.close()


async def test_a_pause_ends_what_runs_and_says_so(paired: LentMachine) -> None:
    connection = LentConnection(
        "nuc", Dialled(paired.places), paired.host_key, paired.console.console_key_file
    )
    await connection.connect()
    async with paired.agent() as agent:
        await worker_at(agent, paired)
        (tenant,) = paired.tenants.known.values()
        (record,) = await tenant.living()
        paired.pairings.pause(True)
        await until(lambda: connection.lost is not None, "the connection's end")
        assert isinstance(connection.lost, Withheld)
        await until(lambda: not psutil.pid_exists(record.pid), "its worker's end")
    with pytest.raises(
        MachineError, match="nuc is not lent now: its owner has paused it"
    ):
        await connection.connect()
    paired.pairings.pause(False)
    await until(lambda: not paired.tenants.refusal, "the resumption")
    await connection.connect()
    await connection.close()


async def test_a_session_that_a_pause_refuses_tells_of_it(
    paired: LentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = LentConnection(
        "nuc", Dialled(paired.places), paired.host_key, paired.console.console_key_file
    )
    await connection.connect()
    monkeypatch.setattr(paired.tenants, "_end", AsyncMock(return_value=0))
    paired.pairings.pause(True)
    await until(lambda: paired.tenants.refusal, "the pause")
    with pytest.raises(Withheld, match="nuc is not lent now: its owner has paused it"):
        await connection.hold("agent")
    paired.tenants.refusal = ""
    monkeypatch.setattr(WorkerServer, "offers", lambda _, name: name == HELLO)
    with pytest.raises(MachineError, match="nuc refuses another session"):
        await connection.hold("agent")
    await connection.close()


async def test_who_hangs_up_is_told_in_words() -> None:
    for error in (BrokenPipeError(32, "Broken pipe"), asyncssh.ConnectionLost("x")):
        with pytest.raises(MachineError, match=r"nuc \(at\) .* \(it hung up\)\. Does"):
            async with reaching("nuc", "at", 5.0):
                raise error


async def test_hours_end_it_too(tmp_path: Path) -> None:
    hour = time.localtime().tm_hour
    later = ((hour + 2) % 24, (hour + 3) % 24 or 24)
    async with lent(tmp_path, OwnerLimits(hours=later)) as machine:
        await machine.pair()
        await until(lambda: machine.tenants.refusal, "the first look")
        connection = LentConnection(
            *("nuc", Dialled(machine.places), machine.host_key),
            machine.console.console_key_file,
        )
        with pytest.raises(MachineError, match="its owner lends it from"):
            await connection.connect()


async def test_memory_and_devices_are_those_that_are_lent(tmp_path: Path) -> None:
    limits = OwnerLimits(memory_bytes=256 * MIB, devices=("CUDA0",))
    async with lent(tmp_path, limits) as machine:
        await machine.pair()
        async with machine.agent() as agent:
            memory = await agent.ask("memory")
            # Its CPU is not lent at all.
            assert memory["limits"][-1]["limit_bytes"] == 0
            port = (await agent.ask("free_port"))["port"]
            argv = [machine.rpc_server, "-H", "127.0.0.1", "-p", str(port)]
            for devices in ("CPU", "CUDA0,CPU", "CUDA1", ""):
                told = await agent.start([*argv, "-d", devices])
                assert "does not lend" in told["denied"]
            assert "record" in await agent.start([*argv, "-d", "CUDA0"])


async def test_a_worker_gets_no_more_memory_than_is_lent(tmp_path: Path) -> None:
    async with lent(tmp_path, OwnerLimits(memory_bytes=256 * MIB)) as machine:
        machine.program("peer.close()", "peer.recv(1); kept = bytearray(1 << 30)")
        await machine.pair()
        async with machine.login() as link:
            agent = await asking(link)
            told = (await agent.ask("machine"))["memory"]["limits"][-1]
            assert told["limit_bytes"] == 256 * MIB
            port = await worker_at(agent, machine)
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"!")
            async with asyncio.timeout(WITHIN_S):
                alive = True
                while alive:
                    alive = (await agent.ask("records"))["records"][0]["alive"]
            log = await agent.ask("log", name="c/w", offset=0, limit=4096)
        assert b"MemoryError" in base64.b64decode(log["data"])


async def test_who_uses_more_than_is_lent_is_ended(tmp_path: Path) -> None:
    """Where the system does not refuse it, as with the driver of a GPU."""
    limits = OwnerLimits(memory_bytes=64 * MIB, devices=("CUDA0",))
    async with lent(tmp_path, limits) as machine:
        machine.program("while True", "kept = b'x' * (200 << 20)\n    while True")
        await machine.pair()
        async with machine.agent() as agent:
            port = (await agent.ask("free_port"))["port"]
            argv = [machine.rpc_server, "-H", "127.0.0.1", "-p", str(port)]
            started = await agent.start([*argv, "-d", "CUDA0"])
            pid = started["record"]["pid"]
            await until(lambda: not psutil.pid_exists(pid), "its end")
        await until(
            lambda: "its owner lends" in "\n".join(machine.tenants.lines), "the reason"
        )


async def left_working(machine: LentMachine) -> tuple[Tenant, ProcessRecord]:
    """A worker that a console has started before it left."""
    async with machine.agent() as agent:
        await worker_at(agent, machine)
    (tenant,) = machine.tenants.known.values()
    (record,) = await tenant.living()
    return tenant, record


async def test_a_killed_worker_is_cleared_up_after(tmp_path: Path) -> None:
    """What ran for a console that may come still goes on; for others it ends."""
    async with lent(tmp_path) as machine:
        await machine.pair()
        tenant, record = await left_working(machine)
        again = Tenants(machine.paths, machine.pairings, machine.tenants.limits, "nuc")
        await again.begin()
        assert [one.name for one in again.known.values()] == ["studio"]
        assert psutil.pid_exists(record.pid)
        await again.close()
        assert not psutil.pid_exists(record.pid)
        tenant, record = await left_working(machine)
        machine.tenants.known.clear()
        machine.pairings.revoke("studio")
        again = Tenants(machine.paths, machine.pairings, machine.tenants.limits, "nuc")
        await again.begin()
        assert not again.known
        await until(lambda: not psutil.pid_exists(record.pid), "its end")
        await tenant.close()


async def test_a_running_worker_tells_its_status(tmp_path: Path) -> None:
    async with lent(tmp_path) as machine:
        file = StatusFile(machine.paths.worker_status_file)
        await machine.pair()
        told: list[WorkerStatus] = []

        def measured() -> bool:
            with contextlib.suppress(MachineError):
                told[:] = [file.read(os.getpid())]
            consoles = told[0].consoles if told else ()
            return any(one.processes and one.rtt_ms for one in consoles)

        async with machine.agent() as agent:
            await worker_at(agent, machine)
            await until(measured, "its use")
        (status,) = told
        (console,) = status.consoles
        assert (console.name, console.way, console.address) == (
            *("studio", "tcp"),
            "127.0.0.1",
        )
        assert console.connected
        assert console.devices == ("CPU",)
        assert status.used_bytes == console.memory_bytes > 0
        assert status.ways[0].startswith("TCP at 127.0.0.1:")
        assert [entry.text for entry in status.log] == machine.tenants.lines
    with pytest.raises(MachineError):
        file.read(os.getpid())


async def test_what_goes_wrong_is_in_the_status(
    machine: LentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await until(machine.paths.worker_status_file.exists, "its status")
    wrong = AsyncMock(side_effect=MachineError("the disk is full"))
    monkeypatch.setattr(machine.tenants, "look", wrong)
    file = StatusFile(machine.paths.worker_status_file)

    def told() -> bool:
        return "the disk is full" in [e.text for e in file.read(os.getpid()).log]

    await until(told, "the reason")


async def test_the_log_tells_who_may_come_and_who_came(machine: LentMachine) -> None:
    other = machine.console.console_key_file.with_name("other")
    await machine.pair()
    await pair(machine.token(), other, "studio")
    async with machine.login():
        pass
    # As a command does, in another process.
    joined = PairedConsole(
        name="vm", key="ssh-ed25519 AAAA", added_at=1.0, places=("x",)
    )
    pairings = PairingFile(machine.pairings.path)
    pairings.change(lambda found: with_console(found, joined))
    told = ["studio is paired", "studio-2 is paired", "vm is paired, and is dialled"]
    told += ["studio has connected", "studio has disconnected"]

    def all_told() -> bool:
        text = "\n".join(machine.tenants.lines)
        return all(line in text for line in told)

    await until(all_told, "the log")
    pairings.revoke("studio-2")
    await until(lambda: "studio-2 is revoked" in machine.tenants.lines, "its end")


async def test_what_is_lent_but_not_here_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = str(tmp_path / "gone")
    limits = OwnerLimits(devices=("CUDA9", "CUDA0"), models=(gone, str(tmp_path)))
    machine = LentMachine(tmp_path, limits)
    server = Path(machine.rpc_server).with_name("llama-server")
    monkeypatch.setenv(ENGINE_DIR_VARIABLE, str(server.parent))
    server.write_text("#!/bin/sh\necho '  CUDA0: A (24209 MiB, 23000 MiB free)'\n")
    await machine.tenants.begin()
    await until(lambda: len(machine.tenants.lines) == 2, "its devices")
    assert machine.tenants.lines == [
        f"there is no folder {gone}: no model in it is lent",
        "no device here is called CUDA9; here are: CPU, CUDA0",
    ]
    server.write_text("#!/bin/sh\nexit 1\n")
    await machine.tenants.begin()
    unknown = "the devices here are not known"
    await until(lambda: unknown in machine.tenants.lines[-1], "what went wrong")
    await machine.tenants.close()


async def test_consoles_come_while_an_engine_does_not_tell_its_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()
    engine = paths_in(tmp_path / "lent").engines_dir / "some"

    async def never(*_: object) -> None:
        asked.set()
        await forever()

    monkeypatch.setattr("backends.mesh.tenants.list_devices", never)
    monkeypatch.setenv(ENGINE_DIR_VARIABLE, str(engine))
    async with lent(tmp_path, OwnerLimits(devices=("CUDA0",))) as machine:
        await asked.wait()
        await machine.pair()


async def test_an_end_while_it_begins_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = LentMachine(tmp_path)
    begun, closed = asyncio.Event(), AsyncMock()

    async def begin() -> None:
        begun.set()
        await forever()

    monkeypatch.setattr(machine.tenants, "begin", begin)
    monkeypatch.setattr(machine.tenants, "close", closed)
    machine.worker.listen("127.0.0.1", 0)
    running = asyncio.create_task(machine.worker.run())
    await begun.wait()
    await end_tasks(running)
    assert closed.called
    assert machine.pairings.read().port == 0
    assert not machine.pairings.lent


async def test_its_end_leaves_nothing_of_others(tmp_path: Path) -> None:
    async with lent(tmp_path) as machine:
        await machine.pair()
        _, record = await left_working(machine)
        # A console may come back to it.
        await asyncio.sleep(0.2)
        assert psutil.pid_exists(record.pid)
    await until(lambda: not psutil.pid_exists(record.pid), "its worker's end")
    assert not machine.pairings.read().pid


async def test_a_broken_file_of_relays_keeps_nobody_out(paired: LentMachine) -> None:
    place = QuicPlace(node=bytes(32), relay="http://10.0.0.5:50090")
    paired.paths.relays_file.write_text("{")
    paired.pairings.change(lambda found: replace(found, quic=place))
    assert paired.tenants.hello().quic == place
    connection = LentConnection(
        "nuc", Dialled(paired.places), paired.host_key, paired.console.console_key_file
    )
    connection.on_greeted = Mock(side_effect=MachineError("the relays are not read"))
    await connection.connect()
    assert connection.on_greeted.called
    await connection.close()


async def test_a_hello_without_sense_is_refused_in_a_sentence(
    paired: LentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = LentConnection(
        "nuc", Dialled(paired.places), paired.host_key, paired.console.console_key_file
    )
    good = msgspec.to_builtins(paired.tenants.hello())
    for wrong in (7, {**good, "name": "x" * 100_000}):
        monkeypatch.setattr(paired.tenants, "hello", lambda wrong=wrong: wrong)
        with pytest.raises(MachineError, match="nuc gave an answer without sense"):
            await connection.connect()
    other = {**good, "protocol": 99}
    monkeypatch.setattr(paired.tenants, "hello", lambda: other)
    with pytest.raises(MachineError, match="which this one does not understand"):
        await connection.connect()
    await connection.close()


GOOD = msgspec.to_builtins(WorkerHello(protocol=PROTOCOL, name="nuc", models=("/m",)))
HELLOS = st.fixed_dictionaries(
    {}, optional={name: st.just(value) | JSON for name, value in GOOD.items()}
)


@settings(max_examples=200)
@given(told=st.binary(max_size=100) | (HELLOS | JSON).map(json_bytes))
@example(told=b"[" * 100_000)
@example(told=json_bytes(GOOD))
@example(told=json_bytes({**GOOD, "protocol": PROTOCOL + 1}))
@example(told=json_bytes({**GOOD, "refusal": "its owner has paused it"}))
def test_any_hello_is_understood_or_refused_in_a_sentence(told: bytes) -> None:
    none = Path("/none")
    connection = LentConnection("nuc", Dialled(["127.0.0.1:1"]), "", none)

    async def says(*_: object) -> bytes:
        return told

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("backends.machines.ssh.lent._first_line", says)
        with contextlib.suppress(MachineError):
            asyncio.run(connection._be_greeted(cast("Any", None)))
    if connection.greeting == Greeting():
        return
    hello = msgspec.to_builtins(connection.hello)
    nested = {"models", "places", "quic"}
    plain = {
        name: value for name, value in json.loads(told).items() if name not in nested
    }
    assert hello == {**hello, **plain}
    assert hello["protocol"] == PROTOCOL
    assert not hello["refusal"]


# --- strangers -----------------------------------------------------------------------


async def lets_in(lent: LentMachine) -> bool:
    try:
        async with lent.login():
            return True
    except (asyncssh.Error, OSError):
        return False


async def test_thousands_of_connections_keep_nobody_out(
    paired: LentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of strangers only some are listened to; who has logged in stays."""
    place = ("127.0.0.1", paired.pairings.read().port)
    async with paired.agent() as agent:
        held: list[socket.socket] = []
        closed = most = 0
        crowd = paired.worker.acceptor._crowd
        came = Mock(wraps=crowd.enter)
        monkeypatch.setattr(crowd, "enter", came)
        with contextlib.ExitStack() as stack:
            for number in range(10_000):
                made = stack.enter_context(socket.socket())
                made.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    made.connect(place)
                held.append(made)
                # Let it be accepted before the next one comes.
                await asyncio.sleep(0)
                if number % 500 == 499:
                    assert "total_bytes" in await agent.ask("memory")
                    closed += len(held)
                    for one in held:
                        one.close()
                    held.clear()
                most = max(most, paired.worker.acceptor.strangers.total())
        assert "total_bytes" in await agent.ask("memory")
        assert closed == 10_000
        assert most == STRANGERS_OF_ONE_MAX
        assert came.call_count > 9_000
    # Those that wait to be accepted may still fill all places for a moment.
    for _ in range(round(WITHIN_S / 0.05)):
        if await lets_in(paired):
            break
        await asyncio.sleep(0.05)
    else:
        pytest.fail("nobody is let in any more")
    said = "\n".join(paired.tenants.lines)
    assert "refused: too many without a login" in said


async def test_noise_before_a_login_ends_that_connection_alone(
    paired: LentMachine,
) -> None:
    async with paired.agent() as agent:
        for noise in (
            b"GET / HTTP/1.0\r\n\r\n",
            b"\xff" * 4096 + b"\n",
            b"SSH-1.0-x\r\n",
        ):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", paired.pairings.read().port
            )
            writer.write(noise)
            with contextlib.suppress(OSError):
                async with asyncio.timeout(WITHIN_S):
                    await reader.read()
            writer.close()
        assert "total_bytes" in await agent.ask("memory")


async def test_a_second_worker_on_this_machine_is_refused(machine: LentMachine) -> None:
    await until(lambda: machine.pairings.read().pid, "its start")
    other = Worker(machine.paths, machine.pairings, machine.tenants)
    with pytest.raises(MachineError, match="lent already, by process"):
        other.listen("127.0.0.1", 0)


async def test_a_key_that_was_only_asked_about_proves_nothing(
    paired: LentMachine,
) -> None:
    server = WorkerServer(paired.tenants, "")
    server.link = cast("Any", SimpleNamespace(close=lambda: None))
    assert server.validate_public_key(USER_BY_KEY, paired.key)
    assert server.validate_password(USER_BY_SECRET, paired.token().secret.hex())
    server.auth_completed()
    assert server.offers(PAIR)
    assert not server.offers(AGENT)


async def test_a_console_has_so_many_connections(
    paired: LentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.mesh.server.LINKS_MAX", 1)
    async with paired.login() as first, paired.login() as second:
        async with asyncio.timeout(WITHIN_S):
            await second.wait_closed()
        await asking(first)


async def test_a_machine_that_is_paused_starts_nothing(
    paired: LentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even before its connections are closed."""

    async def later(*_: object) -> None:
        pass

    async with paired.login() as link:
        monkeypatch.setattr(paired.tenants, "_end", later)
        paired.pairings.pause(True)
        await paired.tenants.look()
        with pytest.raises(asyncssh.ChannelOpenError):
            await asking(link)


async def test_a_login_while_all_is_ended_disturbs_nothing(
    paired: LentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants = paired.tenants

    async def slow(self: Tenant) -> int:
        await asyncio.sleep(0.05)
        other = tenants.known[next(iter(tenants.known))]
        tenants.known.setdefault("another", other)
        return 2

    async with paired.login():
        monkeypatch.setattr(Tenant, "stop", slow)
        paired.pairings.pause(True)
        said = tenants.told
        await asyncio.gather(tenants.look(), tenants.look())
    assert any("paused" in line.text for line in tenants.log_after(said))


async def test_a_console_that_is_revoked_is_known_until_nothing_is_left(
    paired: LentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenants = paired.tenants
    async with paired.login():
        (key,) = tenants.known
    stop = Tenant.stop
    failed: list[bool] = []

    async def first_fails(self: Tenant) -> int:
        if not failed:
            failed.append(True)
            raise MachineError("busy")
        return await stop(self)

    monkeypatch.setattr(Tenant, "stop", first_fails)
    paired.pairings.revoke("studio")
    async with asyncio.timeout(WITHIN_S):
        while not failed:
            await tenants.look()
        assert key in tenants.known
        while key in tenants.known:
            await tenants.look()


async def test_the_screen_outlives_an_agent_that_does_not_answer(
    paired: LentMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with paired.login():
        monkeypatch.setattr(
            Tenant, "living", AsyncMock(side_effect=MachineError("late"))
        )
        await paired.tenants.look()
    (state,) = paired.tenants.status().consoles
    assert state.processes == 0


async def test_a_read_of_a_file_is_bounded(paired: LentMachine, tmp_path: Path) -> None:
    model = paired.models / "model.gguf"
    with model.open("wb") as file:
        file.truncate(5 * MIB)
    os.mkfifo(paired.models / "pipe.gguf")
    async with paired.login() as link, link.start_sftp_client() as sftp:
        with pytest.raises(asyncssh.SFTPError):
            await sftp.open(str(paired.models / "pipe.gguf"), "rb")
        async with sftp.open(str(model), "rb") as opened:
            whole: object = await opened.read()
    assert whole == bytes(5 * MIB)
    with model.open("rb") as file:
        files = ModelFiles.__new__(ModelFiles)
        assert len(await files.read(file, 0, 1 << 31)) == READ_BYTES_MAX


async def test_a_line_of_the_log_is_short(machine: LentMachine) -> None:
    machine.tenants.say("x" * 10**6)
    assert len(machine.tenants.lines[-1]) < 400


async def test_strangers_do_not_fill_the_log(machine: LentMachine) -> None:
    for number in range(100):
        server = WorkerServer(machine.tenants, "", come_from=f"10.0.0.{number}")
        server.link = cast("Any", SimpleNamespace(disconnect=lambda *_: None))
        server.refused("a shell")
        server.connection_lost(None)
    lines = [one for one in machine.tenants.lines if "asked for a shell" in one]
    assert len(lines) == connection_limits.LINES_MAX


def test_what_was_left_out_of_the_log_is_counted() -> None:
    now, said = 0.0, list[str]()
    tell = connection_limits.StrangerLog(said.append, lambda: now)
    for _ in range(connection_limits.LINES_MAX + 7):
        tell("no")
    assert said == ["no"] * connection_limits.LINES_MAX
    now = connection_limits.LINES_WITHIN_S
    tell("no")
    tell("no")
    assert said[-2:] == ["no (7 such lines before it were left out)", "no"]


async def test_a_machine_that_only_dials_gives_no_tokens(tmp_path: Path) -> None:
    """A listener that was killed leaves its port behind."""
    made = LentMachine(tmp_path)
    made.pairings.change(lambda pairings: replace(pairings, port=5))
    running = asyncio.create_task(made.worker.run())
    try:
        await until(lambda: made.pairings.read().pid == os.getpid())
        with pytest.raises(MachineError, match="No worker listens"):
            made.token()
    finally:
        await end_tasks(running)
