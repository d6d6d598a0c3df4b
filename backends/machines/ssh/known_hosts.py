"""Files of trusted host keys, read and appended to as OpenSSH does."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import asyncssh

from backends.errors import HostError
from backends.state import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from backends.machines.ssh.settings import Settings

    Trusted = tuple[list[asyncssh.SSHKey], list[asyncssh.SSHKey], list[asyncssh.SSHKey]]


class KnownLine(Value, frozen=True, kw_only=True):
    """Where a key of a host was found."""

    path: str
    number: int
    algorithm: str


def fingerprint(key: asyncssh.SSHKey) -> str:
    """As OpenSSH prints it: ``SHA256:…``."""
    return key.get_fingerprint()


def key_type(key: asyncssh.SSHKey) -> str:
    """``ssh-ed25519``, as in known_hosts."""
    return key.algorithm.decode("ascii")


def matcher(settings: Settings) -> Callable[[str, str, int | None], Trusted]:
    """Trusted, certifying and revoked keys of a host, in the form asyncssh asks for.

    Only the name counts, never the address: else a name that was redirected to another
    known machine would be let through. Reads the files at once; blocks.
    """
    known = asyncssh.SSHKnownHosts()
    for _, _, line in _lines(settings):
        _load(known, line)

    def match(host: str, _address: str, port: int | None) -> Trusted:
        named_port = None if settings.alias else port
        found = known.match(host.lower(), "", named_port)
        return list(found[0]), list(found[1]), list(found[2])

    return match


def known_lines(settings: Settings) -> list[KnownLine]:
    """Where other keys of exactly this name stand; blocks."""
    return list(_known_lines(settings))


def remember(settings: Settings, key: asyncssh.SSHKey) -> None:
    """Append a key to the first known_hosts file; blocks.

    Raises:
        HostError: the file cannot be written.
    """
    if not settings.known_hosts:
        return
    path = settings.known_hosts[0]
    public = key.export_public_key("openssh").decode("ascii").split()
    line = f"{settings.known_name} {public[0]} {public[1]}\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _append(path, line.encode())
    except OSError as error:
        raise HostError(
            f"The host key of {settings.label} cannot be remembered: {path} cannot be "
            f"written ({error.strerror})",
            "Make the file writable, or add the key with ssh itself.",
        ) from error


def _append(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        end = os.fstat(descriptor).st_size
        unfinished = end and os.pread(descriptor, 1, end - 1) != b"\n"
        # One write: two consoles may remember something at the same moment.
        os.write(descriptor, b"\n" + line if unfinished else line)
    finally:
        os.close(descriptor)


def _lines(settings: Settings) -> Iterator[tuple[Path, int, str]]:
    for path in settings.known_hosts:
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            yield path, number, line


def _known_lines(settings: Settings) -> Iterator[KnownLine]:
    for path, number, line in _lines(settings):
        one = asyncssh.SSHKnownHosts()
        _load(one, line)
        for key in one.match(settings.known_name, "", None)[0]:
            yield KnownLine(path=str(path), number=number, algorithm=key_type(key))


def _load(known: asyncssh.SSHKnownHosts, line: str) -> None:
    # A line that OpenSSH would pass over must not lock anybody out, whatever a broken
    # key makes its decoder raise (OverflowError, UnsupportedAlgorithm, …).
    with contextlib.suppress(Exception):
        known.load(line)
