"""Destinations, as one gives them to ``ssh``, with what the ssh config adds."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends.errors import MachineError, PeerUnreachable, UsageError
from backends.machine_names import bracketed
from backends.state import Value

if TYPE_CHECKING:
    import asyncssh


DEFAULT_PORT = 22

_SCHEME = "ssh://"
_HINT = "Give what you would give to ssh: mini, ada@mini, ada@10.0.0.7:2222."
# OpenSSH refuses these too: a ProxyCommand may hand a name to a shell.
_FORBIDDEN = re.compile(r"[\s\x00-\x1f\x7f'\"`$\\;&<>|(){}*?!,/#]")
_INCLUDE_DEPTH = 16


class Destination(Value, frozen=True, kw_only=True):
    """A host, or an alias of the ssh config, with what overrides the config."""

    host: str
    """Name or address, without brackets."""
    user: str = ""
    """Empty: as the config says, else the local user."""
    port: int | None = None

    def __str__(self) -> str:
        host = self.host if self.port is None else bracketed(self.host)
        user = f"{self.user}@" if self.user else ""
        return f"{user}{host}" + ("" if self.port is None else f":{self.port}")

    @classmethod
    def parse(cls, text: str) -> Destination:
        """Read ``[ssh://][user@]host[:port]``; IPv6 with a port needs brackets."""
        rest = text.strip()
        if rest.lower().startswith(_SCHEME):
            rest = rest[len(_SCHEME) :].removesuffix("/")
        user, at, place = rest.rpartition("@")
        if at:
            _check(text, user, "user")
        host, port = _split_port(text, place)
        _check(text, host, "host")
        return cls(host=host, user=user, port=port)


def configured_names(config_file: Path | None = None) -> list[str]:
    """Aliases of an ssh config in its order, for a pick list; patterns are left out.

    Follows ``Include`` as OpenSSH does; what cannot be read is passed over. Blocks for
    as long as reading a few small files takes.
    """
    start = config_file or Path.home() / ".ssh" / "config"
    names = (name for words in _host_lines(start, _INCLUDE_DEPTH) for name in words)
    return list(
        dict.fromkeys(
            name
            for name in names
            if name and not name.startswith("-") and not _FORBIDDEN.search(name)
        )
    )


def _split_port(text: str, place: str) -> tuple[str, int | None]:
    if place.startswith("["):
        host, closing, rest = place[1:].partition("]")
        if not closing or (rest and not rest.startswith(":")):
            raise _cannot_be(text, "the bracket is not closed")
        return host, _port(text, rest[1:]) if rest else None
    if place.count(":") == 1:
        host, _, digits = place.partition(":")
        return host, _port(text, digits)
    return place, None


def _port(text: str, digits: str) -> int:
    if not (digits.isascii() and digits.isdigit() and 0 < int(digits) < 65536):
        raise _cannot_be(text, f"{digits!r} is no port")
    return int(digits)


def _check(text: str, part: str, what: str) -> None:
    if not part:
        raise _cannot_be(text, f"it names no {what}")
    if part.startswith("-"):
        raise _cannot_be(text, f"a {what} cannot start with a dash")
    if found := _FORBIDDEN.search(part):
        raise _cannot_be(text, f"{found[0]!r} cannot be in a {what}")


def _cannot_be(text: str, why: str) -> UsageError:
    return UsageError(f"{text!r} cannot be a machine: {why}", _HINT)


def _host_lines(path: Path, depth: int) -> Iterator[list[str]]:
    for keyword, values in _settings(path):
        if keyword == "host":
            yield values
        elif keyword == "include" and depth:
            for included in _included(values):
                yield from _host_lines(included, depth - 1)


def _settings(path: Path) -> Iterator[tuple[str, list[str]]]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        words = _words(line)
        if words:
            yield words[0].lower(), words[1:]


def _words(line: str) -> list[str]:
    found = re.match(r"\s*([A-Za-z]+)(?:\s*=\s*|\s+)(.*)", line)
    if found is None:
        return []
    try:
        return [found[1], *shlex.split(found[2], comments=True)]
    except ValueError:
        return []


def _included(patterns: list[str]) -> Iterator[Path]:
    for pattern in patterns:
        path = Path(pattern).expanduser()
        absolute = path if path.is_absolute() else Path.home() / ".ssh" / path
        yield from (Path(found) for found in sorted(glob(str(absolute))))


DEFAULT_IDENTITIES = (
    *("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk", "id_xmss"),
)
# With one of these asyncssh is left to connect by itself.
_INDIRECT = ("ProxyCommand", "BindAddress", "CanonicalizeHostname")
GLOBAL_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")


class Settings(Value, frozen=True, kw_only=True):
    """A destination with everything the ssh config adds to it."""

    destination: Destination
    host: str
    """Name or address to look up."""
    port: int
    user: str
    alias: str
    """Name to look for in known_hosts; empty: the host itself."""
    jumps: tuple[Destination, ...]
    """Hosts to go through, the first one first."""
    identities: tuple[Path, ...]
    """Private keys to try, if they are there."""
    identities_only: bool
    known_hosts: tuple[Path, ...]
    """Files with trusted keys; new ones go to the first."""
    config: tuple[Path, ...]
    family: int
    """``socket.AF_…``, by AddressFamily."""
    is_dialled: bool
    """True if it is reached by plain TCP, without a ProxyCommand or the like."""
    has_ciphers: bool
    """True if the user chose; then we do not."""
    has_host_key_algorithms: bool

    @property
    def known_name(self) -> str:
        """Its name in known_hosts: ``mini``, ``[mini]:2222``, its HostKeyAlias."""
        if self.alias:
            return self.alias
        host = self.host.lower()
        return host if self.port == DEFAULT_PORT else f"[{host}]:{self.port}"

    @property
    def label(self) -> str:
        """Its name in messages: the one the user knows, and the address."""
        host, name = self.host, self.destination.host
        port = "" if self.port == DEFAULT_PORT else f" port {self.port}"
        return f"{name} ({host}{port})" if host != name or port else host


class KnownLine(Value, frozen=True, kw_only=True):
    """The place of a host's key in a known_hosts file."""

    path: str
    number: int
    algorithm: str


def resolve(
    destination: Destination,
    config_file: Path | None = None,
    known_hosts: Path | None = None,
) -> Settings:
    """Read the ssh config (None: the user's own) for one destination; blocks."""
    own = config_file or Path.home() / ".ssh" / "config"
    config = (own,) if config_file or own.is_file() else ()
    options = _read(destination, config)
    usual = [f"~/.ssh/{name}" for name in DEFAULT_IDENTITIES]
    identities: Any = options.config.get("IdentityFile", usual)
    return Settings(
        destination=destination,
        host=options.host,
        port=options.port,
        user=options.username,
        alias=options.host_key_alias or "",
        jumps=_jumps(destination, options.tunnel),
        identities=tuple(Path(name).expanduser() for name in identities),
        identities_only=bool(options.config.get("IdentitiesOnly")),
        known_hosts=_known_hosts_files(options.config, known_hosts),
        config=config,
        family=options.family,
        is_dialled=not any(options.config.get(name) for name in _INDIRECT),
        has_ciphers=options.config.get("Ciphers") is not None,
        has_host_key_algorithms=options.config.get("HostKeyAlgorithms") is not None,
    )


def _read(
    destination: Destination, config: Iterable[Path]
) -> asyncssh.SSHClientConnectionOptions:
    # Not above: completing the name of a host needs nothing of it, and it loads slowly.
    import asyncssh

    given: dict[str, Any] = {}
    if destination.user:
        given["username"] = destination.user
    if destination.port is not None:
        given["port"] = destination.port
    try:
        return asyncssh.SSHClientConnectionOptions(
            host=destination.host,
            config=[str(path) for path in config],
            client_keys=None,
            known_hosts=None,
            **given,
        )
    except (OSError, ValueError, asyncssh.Error) as error:
        raise MachineError(
            f"The ssh config cannot be used for {destination.host} ({error})",
            "Try it with ssh itself, and mend the file.",
        ) from error


def _jumps(destination: Destination, text: object) -> tuple[Destination, ...]:
    if not isinstance(text, str):
        return ()
    try:
        return tuple(Destination.parse(jump) for jump in text.split(","))
    except UsageError as error:
        raise PeerUnreachable(
            f"ProxyJump of {destination.host}: {error.what}", "Mend your ssh config."
        ) from error


def _known_hosts_files(config: Any, given: Path | None) -> tuple[Path, ...]:
    if given is not None:
        return (given,)
    named = config.get("UserKnownHostsFile")
    if named is None:
        named = [str(Path.home() / ".ssh" / "known_hosts")]
    shared = config.get("GlobalKnownHostsFile", [str(GLOBAL_KNOWN_HOSTS)])
    return tuple(Path(name).expanduser() for name in [*named, *shared])
