"""Where a gateway listens, and what it demands of who comes: all from the settings."""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from backends.errors import DllmError
from backends.gateway.certificate import server_context
from backends.gateway.keys import KeyFile
from backends.state.base import Value

if TYPE_CHECKING:
    import argparse

    from backends.config import Config
    from backends.paths import Paths

LOOPBACK = "127.0.0.1"
MIB = 1 << 20
BODY_MIB_MAX = 16
"""llama-server takes some sixty times the size of a request in memory."""


@lru_cache
def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a text is, as IPv4 if it is mapped into IPv6; else None."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_loopback(text: str) -> bool:
    """Whether an address is of this machine alone."""
    address = address_of(text)
    return address is not None and address.is_loopback


class Access(Value, frozen=True, kw_only=True):
    """Who may reach a gateway, and how."""

    host: str = LOOPBACK
    """The address it listens at, besides the loopback."""
    certificate: str = ""
    """File of the certificate with its chain; without one it speaks plain HTTP."""
    private_key: str = ""
    keys: str = ""
    """File of the keys that clients on other machines need."""
    body_bytes_max: int = BODY_MIB_MAX * MIB
    """A longer request is refused."""

    @property
    def is_local(self) -> bool:
        """Whether nobody but this machine can reach it."""
        return is_loopback(self.host)

    @property
    def is_everywhere(self) -> bool:
        """Whether it listens at every address of this machine."""
        return ipaddress.ip_address(self.host).is_unspecified

    @property
    def hosts(self) -> tuple[str, ...]:
        """Each address to listen at; the loopback is always among them."""
        # Every address of IPv6 holds none of IPv4.
        if self.is_everywhere and ":" not in self.host:
            return (self.host,)
        return tuple(dict.fromkeys((LOOPBACK, self.host)))

    def url(self, port: int) -> str:
        """The base URL that clients are given.

        A certificate is for a name: at every address that of this machine is shown.
        """
        host = LOOPBACK if self.is_everywhere or self.is_local else self.host
        if self.certificate and self.is_everywhere:
            host = socket.gethostname()
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self.certificate else 'http'}://{shown}:{port}/v1"

    def argv(self) -> tuple[str, ...]:
        """The same as arguments; what is usual is left out."""
        usual = Access()
        options = (
            ("--host", self.host, usual.host),
            ("--certificate", self.certificate, usual.certificate),
            ("--private-key", self.private_key, usual.private_key),
            ("--keys", self.keys, usual.keys),
            ("--body-bytes-max", str(self.body_bytes_max), str(usual.body_bytes_max)),
        )
        return tuple(
            part
            for name, value, not_told in options
            if value != not_told
            for part in (name, value)
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Let a parser read what ``Access.argv`` gives."""
    usual = Access()
    parser.add_argument("--host", default=usual.host)
    parser.add_argument("--certificate", default="")
    parser.add_argument("--private-key", default="")
    parser.add_argument("--keys", default="")
    parser.add_argument("--body-bytes-max", type=int, default=usual.body_bytes_max)


def access_in(arguments: argparse.Namespace) -> Access:
    """What a parser has read."""
    told = vars(arguments)
    return Access(**{name: told[name] for name in Access.__struct_fields__})


def access_of(config: Config, paths: Paths) -> Access:
    """As the settings want it; files count from the folder of ``config.toml``."""

    def file(name: str | None) -> str:
        return str(paths.config_dir / Path(name).expanduser()) if name else ""

    return Access(
        host=config.api_host,
        certificate=file(config.api_certificate),
        private_key=file(config.api_private_key),
        keys=str(paths.keys_file),
        body_bytes_max=config.api_request_mib * MIB,
    )


class ApiSettings(Value, frozen=True, kw_only=True):
    """How a cluster gives out its API: settings that count from a launch on."""

    access: Access = Access()
    port: int | None = None
    """The port that is insisted on; None takes the first free one."""
    wait_s: float
    """Longest wait of a request while no model serves."""
    drain_s: float
    """Longest wait of a new split for answers that it would break."""


def api_settings(config: Config, paths: Paths) -> ApiSettings:
    """As the settings want it."""
    return ApiSettings(
        access=access_of(config, paths),
        port=config.api_port,
        wait_s=config.api_wait_s,
        drain_s=config.api_drain_s,
    )


def require_safe(access: Access) -> None:
    """See that a gateway may be reached like this.

    Raises:
        DllmError: there is no key, or no certificate that can be used.
    """
    if not access.is_local and not KeyFile(Path(access.keys)).read():
        raise DllmError(
            f"The API is to listen at {access.host} (api_host), and there is no API "
            "key: whoever reaches it could use it",
            "Make one with dllm-tui keys add NAME, or set api_host to 127.0.0.1.",
        )
    if bool(access.certificate) != bool(access.private_key):
        raise DllmError(
            "Of api_certificate and api_private_key only one is set",
            "Set both for TLS, or none.",
        )
    if access.certificate:
        server_context(access.certificate, access.private_key)


def require_address(access: Access) -> None:
    """See that this machine has the address now.

    Raises:
        DllmError: it has not.
    """
    host = access.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((host, 0))
    except OSError as error:
        raise DllmError(
            f"The API cannot listen at {host} (api_host): {error.strerror}",
            "Set api_host to an address of this machine: "
            f"{', '.join(('0.0.0.0 (all)', *own_addresses()))}.",
        ) from error


def own_addresses() -> tuple[str, ...]:
    """The addresses that this machine has now."""
    import psutil

    return tuple(
        address.address.partition("%")[0]
        for of_one in psutil.net_if_addrs().values()
        for address in of_one
        if address.family in (socket.AF_INET, socket.AF_INET6)
    )
