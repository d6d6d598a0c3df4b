"""Every way to fail has a sentence with what to do."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import asyncssh
import pytest

from backends.errors import HostError, PeerUnreachable, UsageError
from backends.machines.ssh import errors
from backends.machines.ssh.config import Destination, KnownLine, Settings

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
    explained = errors.explain(error, WHERE, 15.0)
    assert isinstance(explained, PeerUnreachable)
    assert what in explained.what
    assert hint in explained.hint


def test_an_explained_error_stays() -> None:
    error = HostError("said")
    assert errors.explain(error, WHERE, 15.0) is error
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
    assert str(errors.connection_lost("mini", None)) == "The connection to mini broke"


def test_tunnels() -> None:
    forbidden = errors.forwarding_failed(
        "mini", "port 1", asyncssh.ChannelOpenError(1, "")
    )
    assert "forbids forwarding to port 1" in str(forbidden)
    refused = errors.forwarding_failed(
        "mini", "port 1", asyncssh.ChannelOpenError(2, "x")
    )
    assert str(refused) == "mini could not connect to its port 1 (x)"
