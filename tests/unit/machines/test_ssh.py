"""Every way to fail has a sentence with what to do."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import MachineError, PeerUnreachable, UsageError
from backends.machines.ssh import authentication as dial_module
from backends.machines.ssh import errors
from backends.machines.ssh.authentication import (
    dial,
    fingerprint,
    known_lines,
    lookup,
    matcher,
    remember,
)
from backends.machines.ssh.config import (
    Destination,
    KnownLine,
    Settings,
    configured_names,
    resolve,
)
from backends.machines.ssh.connection import HEARTBEAT_S, SUSPECT_AFTER_S, Connection
from tests.kit.virtual_time import in_virtual_time

WHERE = Settings(
    destination=Destination(host="mini"),
    host="10.0.0.7",
    port=2222,
    user="ada",
    alias="",
    jumps=(Destination(host="gate"),),
    identities=(),
    identities_only=False,
    known_hosts=(Path("/home/ada/.ssh/known_hosts"),),
    config=(),
    family=0,
    is_dialled=True,
    has_ciphers=False,
    has_host_key_algorithms=False,
)


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "what", "hint"),
    [
        (TimeoutError(), "did not answer within 15 s", "switched on"),
        (socket.gaierror(-2, "unknown"), "No machine named 10.0.0.7", "spelling"),
        (os_error(errno.ECONNREFUSED), "nothing listens on port 2222", "SSH server"),
        (os_error(errno.EHOSTUNREACH), "no way to mini", "on this network"),
        (os_error(errno.ENETUNREACH), "no way to mini", "on this network"),
        (os_error(errno.ETIMEDOUT), "did not answer", "firewall"),
        (os_error(errno.ECONNRESET), "not an SSH server", "right port"),
        (os_error(errno.EMFILE), "cannot be reached (", ""),
        (
            OSError("Multiple exceptions: [Errno 111] Connect call failed"),
            "nothing listens",
            "right port",
        ),
        (asyncssh.ConnectionLost("x"), "closed the connection", "right port"),
        (
            asyncssh.ProtocolError("Too many authentication failures"),
            "gave up before the right key",
            "IdentitiesOnly",
        ),
        (asyncssh.ProtocolError("x"), "not an SSH server", "right port"),
        (asyncssh.ProtocolNotSupported("x"), "not an SSH server", "right port"),
        (asyncssh.KeyExchangeFailed("none"), "share no algorithm (none)", "Update"),
        (asyncssh.ServiceNotAvailable("no"), "ended the connection (no)", ""),
        (asyncssh.ChannelOpenError(1, "no"), "gate does not let", "AllowTcpForwarding"),
        (asyncssh.ChannelOpenError(2, "no"), "gate cannot reach mini", "switched on"),
        (ValueError("odd"), "failed (odd)", ""),
    ],
)
def test_failures(error: Exception, what: str, hint: str) -> None:
    explained = errors.connect_error(error, WHERE, 15.0)
    assert isinstance(explained, PeerUnreachable)
    assert what in explained.what
    assert hint in explained.hint


def test_an_explained_error_stays() -> None:
    error = MachineError("said")
    assert errors.connect_error(error, WHERE, 15.0) is error
    assert isinstance(UsageError("x"), Exception)


def test_a_changed_key_names_line_file_and_command() -> None:
    line = KnownLine(path="/home/ada/.ssh/known_hosts", number=7, algorithm="x")
    text = str(errors.host_key_changed(WHERE, [line]))
    assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in text
    assert "line 7 of /home/ada/.ssh/known_hosts" in text
    assert "ssh-keygen -R '[10.0.0.7]:2222' -f '/home/ada/.ssh/known_hosts'" in text


def test_refusals() -> None:
    assert "tried: publickey, password" in str(
        errors.login_refused(WHERE, ["publickey", "password"])
    )
    assert "(go away)" in str(errors.no_commands(WHERE, "hello\ngo away\n"))
    assert "revoked" in str(errors.host_key_revoked(WHERE))


def test_broken_connections() -> None:
    silent = asyncssh.ConnectionLost("Server not responding to keepalive")
    assert "for a minute" in str(errors.connection_lost("mini", silent))
    broke = "The connection to mini broke"
    pipe = BrokenPipeError(errno.EPIPE, "Broken pipe")
    for error in (None, pipe, asyncssh.ConnectionLost("Connection lost")):
        assert str(errors.connection_lost("mini", error)) == broke
    gone = OSError(errno.ENETUNREACH, "Network is unreachable")
    assert str(errors.connection_lost("mini", gone)).endswith(
        "(Network is unreachable)"
    )


def test_silence_is_told_within_three_seconds() -> None:
    """Of the last sign of life, wherever in a heartbeat that was."""
    told: list[tuple[float, bool]] = []
    answers = iter((1.0, 2.0))

    async def ping_ms() -> float:
        if (answer := next(answers, None)) is None:
            await asyncio.Event().wait()
        return answer or 0.0

    async def watched() -> None:
        connection = Connection("mini", Destination.parse("mini"))
        connection.on_state = lambda state: told.append(
            (time.monotonic(), state.suspect)
        )
        connection.ping_ms = ping_ms  # type: ignore[method-assign]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10.0):
                await connection._watch()

    in_virtual_time(watched)
    last_answer_s = max(at for at, suspect in told if not suspect)
    first_told_s = min(at for at, suspect in told if suspect)
    assert SUSPECT_AFTER_S <= first_told_s - last_answer_s <= 3.0
    assert SUSPECT_AFTER_S + HEARTBEAT_S <= 3.0


def test_tunnels() -> None:
    forbidden = errors.forwarding_failed(
        "mini", "port 1", asyncssh.ChannelOpenError(1, "")
    )
    assert "forbids forwarding to port 1" in str(forbidden)
    refused = errors.forwarding_failed(
        "mini", "port 1", asyncssh.ChannelOpenError(2, "x")
    )
    assert str(refused) == "mini could not connect to its port 1 (x)"


# --- Trusted keys: found as OpenSSH finds them, appended as it reads them ---

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from backends.machines.ssh.config import Settings


@pytest.fixture(scope="module")
def key() -> asyncssh.SSHKey:
    return asyncssh.generate_private_key("ssh-ed25519").convert_to_public()


@pytest.fixture(scope="module")
def other() -> asyncssh.SSHKey:
    return asyncssh.generate_private_key("ssh-ed25519").convert_to_public()


@pytest.fixture
def where(tmp_path: Path) -> Settings:
    return msgspec.structs.replace(WHERE, known_hosts=(tmp_path / "ssh" / "known",))


def text_of(key: asyncssh.SSHKey) -> str:
    return " ".join(key.export_public_key("openssh").decode().split()[:2])


def test_remembered_and_found(where: Settings, key: asyncssh.SSHKey) -> None:
    assert known_lines(where) == []
    remember(where, key)
    path = where.known_hosts[0]
    assert path.read_text() == f"[10.0.0.7]:2222 {text_of(key)}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [line.number for line in known_lines(where)] == [1]
    assert matcher(where)("10.0.0.7", "10.0.0.7", 2222)[0] == [key]
    assert matcher(where)("10.0.0.7", "10.0.0.7", None)[0] == []
    argv = ["ssh-keygen", "-F", "[10.0.0.7]:2222", "-f", str(path)]
    assert subprocess.run(argv, check=False, capture_output=True).returncode == 0


def test_appended_behind_what_is_there(where: Settings, key: asyncssh.SSHKey) -> None:
    path = where.known_hosts[0]
    path.parent.mkdir()
    path.write_text("# mine\nbroken line\nx ssh-ed25519 AAAA")
    remember(where, key)
    assert path.read_text().splitlines()[:3] == [
        "# mine",
        "broken line",
        "x ssh-ed25519 AAAA",
    ]
    assert [line.number for line in known_lines(where)] == [4]


def test_only_the_name_counts(
    where: Settings, key: asyncssh.SSHKey, other: asyncssh.SSHKey
) -> None:
    path = where.known_hosts[0]
    path.parent.mkdir()
    path.write_text(f"mini {text_of(key)}\n10.0.0.9 {text_of(other)}\n")
    assert matcher(where)("MINI", "10.0.0.9", None)[0] == [key]


def test_hashed_revoked_and_certifying(
    where: Settings, key: asyncssh.SSHKey, other: asyncssh.SSHKey
) -> None:
    path = where.known_hosts[0]
    path.parent.mkdir()
    path.write_text(f"mini {text_of(key)}\n")
    argv = ["ssh-keygen", "-H", "-f", str(path)]
    subprocess.run(argv, check=True, capture_output=True)
    with path.open("a") as file:
        file.write(f"@revoked * {text_of(other)}\n@cert-authority * {text_of(other)}\n")
    assert matcher(where)("mini", "", None) == ([key], [other], [other])


@pytest.mark.parametrize(
    "line", ["x", "@odd * y z", "|1|x|y ssh-rsa AAAA", "* ssh-rsa ////", "\xff \0 \t"]
)
def test_broken_lines_lock_nobody_out(
    where: Settings, key: asyncssh.SSHKey, line: str
) -> None:
    path = where.known_hosts[0]
    path.parent.mkdir()
    path.write_text(f"{line}\nmini {text_of(key)}\n", encoding="latin-1")
    assert matcher(where)("mini", "", None)[0] == [key]
    assert known_lines(where) == []


def test_an_alias_stands_without_port(where: Settings, key: asyncssh.SSHKey) -> None:
    aliased = msgspec.structs.replace(where, alias="the-mini")
    remember(aliased, key)
    assert where.known_hosts[0].read_text().startswith("the-mini ssh-ed25519 ")
    assert matcher(aliased)("the-mini", "", 2222)[0] == [key]


def test_a_file_that_cannot_be_written(where: Settings, key: asyncssh.SSHKey) -> None:
    where.known_hosts[0].mkdir(parents=True)
    with pytest.raises(MachineError, match="cannot be remembered"):
        remember(where, key)


def test_no_file_to_remember_in(where: Settings, key: asyncssh.SSHKey) -> None:
    remember(msgspec.structs.replace(where, known_hosts=()), key)


def test_fingerprint_as_openssh_prints_it(tmp_path: Path, key: asyncssh.SSHKey) -> None:
    path = tmp_path / "key.pub"
    path.write_text(text_of(key))
    argv = ["ssh-keygen", "-l", "-f", str(path)]
    assert subprocess.check_output(argv, text=True).split()[1] == fingerprint(key)


def test_settings_of_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = tmp_path / "config"
    config.write_text(
        "Host mini\n  HostName 10.0.0.7\n  User ada\n  Port 2222\n"
        "  ProxyJump gate,eve@far:22\n  IdentityFile ~/.ssh/special\n"
        "  HostKeyAlias the-mini\n  UserKnownHostsFile ~/.ssh/a ~/.ssh/b\n"
    )
    found = resolve(WHERE.destination, config)
    assert (found.host, found.user, found.port) == ("10.0.0.7", "ada", 2222)
    assert [str(jump) for jump in found.jumps] == ["gate", "eve@far:22"]
    assert found.identities == (tmp_path / ".ssh" / "special",)
    assert found.known_name == "the-mini"
    assert found.known_hosts[:2] == (tmp_path / ".ssh" / "a", tmp_path / ".ssh" / "b")
    assert found.label == "mini (10.0.0.7 port 2222)"


def test_settings_of_no_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    found = resolve(WHERE.destination)
    assert (found.host, found.port, found.jumps) == ("mini", 22, ())
    assert found.known_hosts[0] == tmp_path / ".ssh" / "known_hosts"
    assert tmp_path / ".ssh" / "id_ed25519" in found.identities
    assert found.label == "mini"


# --- What a user may type for a machine, and the pick list ---


@pytest.mark.parametrize(
    ("text", "host", "user", "port"),
    [
        ("mini", "mini", "", None),
        (" mini ", "mini", "", None),
        ("ada@mini", "mini", "ada", None),
        ("ada@10.0.0.7:2222", "10.0.0.7", "ada", 2222),
        ("mini:22", "mini", "", 22),
        ("ssh://ada@mini:2222", "mini", "ada", 2222),
        ("SSH://mini/", "mini", "", None),
        ("[fd00::1]:22", "fd00::1", "", 22),
        ("[fd00::1]", "fd00::1", "", None),
        ("fd00::1", "fd00::1", "", None),
        ("ada@fe80::1%eth0", "fe80::1%eth0", "ada", None),
        ("ada@home@mini", "mini", "ada@home", None),
    ],
)
def test_parsed(text: str, host: str, user: str, port: int | None) -> None:
    assert Destination.parse(text) == Destination(host=host, user=user, port=port)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "@mini", "ada@", ":22", "[fd00::1", "[fd00::1]22", "[]:22"),
        *("-oProxyCommand=x", "-v@mini", "ada@-mini", "ssh://-x"),
        *("two words", "mi\nni", "mi\x00ni", "mi;ni", "$(x)", "`x`", "a|b", "a/b"),
        *("mini:", "mini:0", "mini:65536", "mini:x", "mini:-1", "mini:٣"),
        *("*.lan", "ssh://mini/path", "'mini'"),
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be a machine"):
        Destination.parse(text)


@given(
    host=st.from_regex(r"[a-z0-9][a-z0-9.-]{0,20}|fd00::[0-9a-f]{1,4}", fullmatch=True),
    user=st.from_regex(r"([a-z][a-z0-9_-]{0,9})?", fullmatch=True),
    port=st.none() | st.integers(1, 65535),
)
def test_text_and_back(host: str, user: str, port: int | None) -> None:
    destination = Destination(host=host, user=user, port=port)
    assert Destination.parse(str(destination)) == destination


def test_names_of_a_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    ssh = tmp_path / ".ssh"
    (ssh / "more").mkdir(parents=True)
    (ssh / "config").write_text(
        "Include more/*.conf missing\n"
        "# Host commented\n"
        "Host mini studio *.lan !secret\n"
        "    HostName 10.0.0.7\n"
        "    Hostname 10.0.0.8\n"
        'host="quoted" # why not\n'
        "HOST mini\n"
        "Host *\n"
        "Match host x\n"
        "Host 'unfinished\n"
        "    Include ~/.ssh/config\n"
    )
    (ssh / "more" / "a.conf").write_text("Host first\nHost -dash\n")
    expected = ["first", "mini", "studio", "quoted"]
    assert configured_names() == expected
    assert configured_names(ssh / "config") == expected


def test_no_config(tmp_path: Path) -> None:
    assert configured_names(tmp_path / "none") == []


# --- Connecting to a name with several addresses ---


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


async def test_dialled(listening: int) -> None:
    with await dial("127.0.0.1", listening) as made:
        assert made.getpeername() == ("127.0.0.1", listening)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_nobody_there() -> None:
    with pytest.raises(ConnectionRefusedError):
        await dial("127.0.0.1", 1)


async def test_unknown_names() -> None:
    for name in ("no.such.machine.invalid", "x" * 300):
        with pytest.raises(socket.gaierror):
            await dial(name, 22)


@pytest.fixture
def silent() -> Iterator[int]:
    """A port whose queue is full: who connects to it hears nothing."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = int(server.getsockname()[1])
        for _ in range(8):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        yield port


async def test_a_silent_address_does_not_hold_up_the_next(
    listening: int, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(*_: object) -> list[object]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("127.0.0.1", port)) for port in (silent, 1, listening)]

    monkeypatch.setattr(dial_module, "lookup", found)
    async with asyncio.timeout(60):
        with await dial("any", 1) as made:
            assert made.getpeername() == ("127.0.0.1", listening)
    assert not asyncio.all_tasks() - {asyncio.current_task()}


async def test_a_silent_address_alone_is_left_when_told(silent: int) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await dial("127.0.0.1", silent)
    assert not asyncio.all_tasks() - {asyncio.current_task()}


async def test_a_lookup_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(*_: object) -> list[object]:
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(10)
        raise OSError("late")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await lookup("x", 1, 0)
    release.set()
    await asyncio.sleep(0.05)
