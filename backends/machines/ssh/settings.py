"""What the ssh config says about a destination."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncssh

from backends.errors import HostError, PeerUnreachable, UsageError
from backends.machines.ssh.destination import DEFAULT_PORT, Destination
from backends.state import Value

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    """Whether it is reached by plain TCP, without a ProxyCommand or the like."""
    has_ciphers: bool
    """Whether the user chose; then we do not."""
    has_host_key_algorithms: bool

    @property
    def known_name(self) -> str:
        """What known_hosts calls it: ``mini``, ``[mini]:2222``, its HostKeyAlias."""
        if self.alias:
            return self.alias
        host = self.host.lower()
        return host if self.port == DEFAULT_PORT else f"[{host}]:{self.port}"

    @property
    def label(self) -> str:
        """What a message calls it: the name the user knows, and the address."""
        host, name = self.host, self.destination.host
        port = "" if self.port == DEFAULT_PORT else f" port {self.port}"
        return f"{name} ({host}{port})" if host != name or port else host


def resolve(
    destination: Destination,
    config_file: Path | None = None,
    known_hosts: Path | None = None,
) -> Settings:
    """Read the ssh config (None: the user's own) for one destination; blocks.

    Raises:
        HostError: the config cannot be read or understood.
    """
    config = _config_files(config_file)
    options = _read(destination, config)
    return Settings(
        destination=destination,
        host=options.host,
        port=options.port,
        user=options.username,
        alias=options.host_key_alias or "",
        jumps=_jumps(destination, options.tunnel),
        identities=_identities(options.config),
        identities_only=bool(options.config.get("IdentitiesOnly")),
        known_hosts=_known_hosts_files(options.config, known_hosts),
        config=config,
        family=options.family,
        is_dialled=not any(options.config.get(name) for name in _INDIRECT),
        has_ciphers=options.config.get("Ciphers") is not None,
        has_host_key_algorithms=options.config.get("HostKeyAlgorithms") is not None,
    )


def _config_files(config_file: Path | None) -> tuple[Path, ...]:
    if config_file is not None:
        return (config_file,)
    own = Path.home() / ".ssh" / "config"
    return (own,) if own.is_file() else ()


def _read(
    destination: Destination, config: Iterable[Path]
) -> asyncssh.SSHClientConnectionOptions:
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
        raise HostError(
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


def _identities(config: Any) -> tuple[Path, ...]:
    named = config.get("IdentityFile")
    if named is not None:
        return tuple(Path(name).expanduser() for name in named)
    return tuple(Path.home() / ".ssh" / name for name in DEFAULT_IDENTITIES)


def _known_hosts_files(config: Any, given: Path | None) -> tuple[Path, ...]:
    if given is not None:
        return (given,)
    named = config.get("UserKnownHostsFile")
    if named is None:
        named = [str(Path.home() / ".ssh" / "known_hosts")]
    shared = config.get("GlobalKnownHostsFile", [str(GLOBAL_KNOWN_HOSTS)])
    return tuple(Path(name).expanduser() for name in [*named, *shared])
