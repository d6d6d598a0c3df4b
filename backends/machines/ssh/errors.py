"""Why a machine cannot be reached, in one sentence with what to do about it."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Sequence

import asyncssh

from backends.errors import MachineError, PeerUnreachable
from backends.machines.ssh.config import KnownLine, Settings
from backends.mesh.messages import LENDS_NO

_UNROUTED = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


def connect_error(
    error: BaseException, where: Settings, timeout_s: float
) -> MachineError:
    """The failure of a connection attempt; an error that explains itself stays."""
    if isinstance(error, MachineError):
        return error
    if isinstance(error, TimeoutError):
        return _silent(where, timeout_s)
    if isinstance(error, socket.gaierror):
        return PeerUnreachable(
            f"No machine named {where.host} is known here (DNS)",
            "Check the spelling, or give its address.",
        )
    if isinstance(error, asyncssh.ChannelOpenError):
        jump = where.jumps[-1].host if where.jumps else "The machine in between"
        if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
            return PeerUnreachable(
                f"{jump} does not let connections through to {where.label}",
                f"Set AllowTcpForwarding yes in the sshd_config of {jump}.",
            )
        return PeerUnreachable(
            f"{jump} cannot reach {where.label} ({error.reason})",
            f"Is it switched on, and does {jump} know it by that name?",
        )
    if isinstance(error, asyncssh.DisconnectError):
        return _explain_protocol(error, where)
    if isinstance(error, OSError):
        return _explain_network(error, where, timeout_s)
    return PeerUnreachable(
        f"The connection to {where.label} failed ({reason_of(error)})"
    )


def host_key_changed(where: Settings, lines: Sequence[KnownLine]) -> PeerUnreachable:
    """The machine identifies itself with another key than the remembered one."""
    places = ", ".join(f"line {line.number} of {line.path}" for line in lines)
    return PeerUnreachable(
        f"REMOTE HOST IDENTIFICATION HAS CHANGED: {where.label} offers another host "
        f"key than {places or 'known_hosts'} says. Somebody may be listening in, or "
        "the machine was set up anew",
        f"If you know that it was: ssh-keygen -R '{where.known_name}'"
        + (f" -f '{lines[0].path}'" if lines else "")
        + ", then connect again.",
    )


def host_key_revoked(where: Settings) -> PeerUnreachable:
    return PeerUnreachable(
        f"{where.label} uses a host key that is marked @revoked in known_hosts",
        "Do not connect to it; ask who runs it.",
    )


def login_refused(where: Settings, tried: Sequence[str]) -> PeerUnreachable:
    """No way to log in is left, and none that the user could be asked for."""
    methods = ", ".join(tried) or "none"
    return PeerUnreachable(
        f"{where.label} refuses to let {where.user} in (tried: {methods})",
        "Copy your key there (ssh-copy-id), or name another user or key in "
        "~/.ssh/config.",
    )


def no_commands(where: Settings, output: str) -> PeerUnreachable:
    """Logged in, but the account cannot run anything."""
    said = f" ({output.strip().splitlines()[-1]})" if output.strip() else ""
    return PeerUnreachable(
        f"{where.label} let {where.user} in but runs no commands for it{said}",
        "Its login shell, or a command= in its authorized_keys, forbids it.",
    )


def forwarding_forbidden(name: str, what: str) -> MachineError:
    return MachineError(
        f"The sshd of {name} forbids forwarding to {what}",
        "Set AllowTcpForwarding yes and AllowStreamLocalForwarding yes in its "
        "sshd_config.",
    )


def forwarding_failed(
    name: str, what: str, error: asyncssh.ChannelOpenError
) -> MachineError:
    if LENDS_NO in error.reason:
        return MachineError(
            f"{name} lends no way to its {what}",
            "Its workers are reached through relays only: up --relay auto.",
        )
    if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
        return forwarding_forbidden(name, what)
    return MachineError(f"{name} could not connect to its {what} ({error.reason})")


def connection_lost(name: str, error: BaseException | None) -> PeerUnreachable:
    if error is not None and "keepalive" in str(error):
        return PeerUnreachable(
            f"{name} did not answer for a minute: connection given up"
        )
    told = error is not None and not hung_up(error)
    detail = f" ({reason_of(error)})" if error is not None and told else ""
    return PeerUnreachable(f"The connection to {name} broke{detail}")


def hung_up(error: BaseException) -> bool:
    """True if the other side has closed it, and has not said why."""
    kinds = (BrokenPipeError, ConnectionResetError, asyncssh.ConnectionLost)
    return isinstance(error, kinds)


def _silent(where: Settings, timeout_s: float) -> PeerUnreachable:
    return PeerUnreachable(
        f"{where.label} did not answer within {timeout_s:g} s",
        "Is it switched on, on this network, and not behind a firewall?",
    )


def _explain_network(
    error: OSError, where: Settings, timeout_s: float
) -> PeerUnreachable:
    number = _errno(error)
    if number == errno.ECONNREFUSED:
        return PeerUnreachable(
            f"{where.label} refuses connections: nothing listens on port {where.port}",
            "Start its SSH server (macOS: Remote Login), or give the right port.",
        )
    if number in _UNROUTED:
        return PeerUnreachable(
            f"There is no way to {where.label} from here "
            f"({os.strerror(number).lower()})",
            "Is it switched on, and on this network?",
        )
    if number == errno.ETIMEDOUT:
        return _silent(where, timeout_s)
    if number in (errno.ECONNRESET, errno.EPIPE):
        return _hung_up(where)
    return PeerUnreachable(f"{where.label} cannot be reached ({reason_of(error)})")


def _explain_protocol(
    error: asyncssh.DisconnectError, where: Settings
) -> PeerUnreachable:
    text = reason_of(error)
    if "too many authentication" in text.lower():
        return PeerUnreachable(
            f"{where.label} gave up before the right key was tried ({text})",
            "Set IdentityFile and IdentitiesOnly yes for it in ~/.ssh/config.",
        )
    if isinstance(error, asyncssh.KeyExchangeFailed):
        return PeerUnreachable(
            f"{where.label} and this console share no algorithm ({text})",
            "Update its SSH server.",
        )
    if isinstance(error, asyncssh.ProtocolNotSupported | asyncssh.ProtocolError):
        return PeerUnreachable(
            f"Port {where.port} of {where.label} is not an SSH server ({text})",
            "Give the right port: machine:port.",
        )
    if isinstance(error, asyncssh.ConnectionLost):
        return _hung_up(where)
    return PeerUnreachable(f"{where.label} ended the connection ({text})")


def _hung_up(where: Settings) -> PeerUnreachable:
    return PeerUnreachable(
        f"{where.label} closed the connection before anybody logged in: port "
        f"{where.port} is not an SSH server, or it has too many logins at once",
        "Give the right port, or try again.",
    )


def _errno(error: OSError) -> int:
    if error.errno is not None:
        return error.errno
    # What asyncio raises when a name has several addresses and none answered.
    found = re.search(r"\[Errno (\d+)\]", str(error))
    return int(found[1]) if found else 0


def reason_of(error: BaseException) -> str:
    """The reason in the words of the system, or of the other side."""
    words = (getattr(error, name, "") for name in ("reason", "strerror"))
    reason = next(filter(None, words), None) or str(error) or type(error).__name__
    return str(reason).rstrip(".")
