"""The settings of a gateway: its addresses, certificate and file of keys."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
import ssl
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from backends.errors import DllmError, disk_errors
from backends.gateway.keys import KeyFile
from backends.machine_names import bracketed
from backends.state.base import Value

if TYPE_CHECKING:
    import argparse

    from backends.config import Config
    from backends.paths import Paths

log = logging.getLogger(__name__)
_FOR_OTHERS = 0o077
LOOPBACK = "127.0.0.1"
MIB = 1 << 20
BODY_MIB_MAX = 16
"""llama-server takes some sixty times the size of a request in memory."""


def server_context(certificate: str, private_key: str) -> ssl.SSLContext:
    _require_readable(certificate, "certificate", "api_certificate")
    _require_readable(private_key, "private key", "api_private_key")
    if Path(private_key).stat().st_mode & _FOR_OTHERS:
        raise DllmError(
            f"Others can read the private key {private_key} (api_private_key)",
            f"Only you should: chmod 600 {private_key}.",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, certificate, private_key)
    return context


def _require_readable(file: str, what: str, setting: str) -> None:
    hint = f"Mend {setting} in config.toml, or the file."
    with disk_errors(f"read the {what}", file, hint), open(file, "rb"):
        pass


def _load(context: ssl.SSLContext, certificate: str, private_key: str) -> None:
    try:
        # Without a password OpenSSL would ask for it on the terminal.
        context.load_cert_chain(certificate, private_key, password="")
    except (ssl.SSLError, OSError) as error:
        raise DllmError(
            f"The certificate {certificate} and the private key {private_key} cannot "
            f"be used: {_reason(error)}",
            "Both must be PEM files that belong together, the key without a password.",
        ) from error


def _reason(error: OSError) -> str:
    reason = getattr(error, "reason", "") or error.strerror or "unknown reason"
    return str(reason).replace("_", " ").lower()


class Renewal:
    """Takes a new certificate up when its files were replaced; connections go on."""

    def __init__(
        self, context: ssl.SSLContext, certificate: str, private_key: str
    ) -> None:
        self._context = context
        self._files = (certificate, private_key)
        self._seen = self._look()

    def look(self) -> None:
        """Use what the files say now, if that can be used."""
        seen = self._look()
        if seen == self._seen:
            return
        self._seen = seen
        try:
            # Half of a pair that is being replaced must not get into the real one.
            server_context(*self._files)
            _load(self._context, *self._files)
        except DllmError as error:
            log.warning("the certificate stays as it was: %s", error)
        else:
            log.info("took up the certificate anew")

    def _look(self) -> tuple[tuple[int, int], ...]:
        return tuple(map(_stamp, self._files))


def _stamp(file: str) -> tuple[int, int]:
    try:
        status = os.stat(file)
    except OSError:
        return (0, 0)
    return (status.st_ino, status.st_mtime_ns)


@lru_cache
def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a text is, as IPv4 if it is mapped into IPv6; else None."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_loopback(text: str) -> bool:
    address = address_of(text)
    return address is not None and address.is_loopback


class ListenSettings(Value, frozen=True, kw_only=True):
    """The way in: addresses, TLS, keys, longest request."""

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
        """True if nobody but this machine can reach it."""
        return is_loopback(self.host)

    @property
    def is_everywhere(self) -> bool:
        """True if it listens at every address of this machine."""
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
        scheme = "https" if self.certificate else "http"
        return f"{scheme}://{bracketed(host)}:{port}/v1"

    def argv(self) -> tuple[str, ...]:
        usual = ListenSettings()
        return tuple(
            part
            for name in self.__struct_fields__
            if (value := getattr(self, name)) != getattr(usual, name)
            for part in (_option(name), str(value))
        )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in ListenSettings.__struct_fields__:
        usual = getattr(ListenSettings(), name)
        parser.add_argument(_option(name), type=type(usual), default=usual)


def listen_settings_in(arguments: argparse.Namespace) -> ListenSettings:
    return ListenSettings(
        **{n: getattr(arguments, n) for n in ListenSettings.__struct_fields__}
    )


def listen_settings_of(config: Config, paths: Paths) -> ListenSettings:
    """As the settings want it; files count from the folder of ``config.toml``."""

    def file(name: str | None) -> str:
        return str(paths.config_dir / Path(name).expanduser()) if name else ""

    return ListenSettings(
        host=config.api_host,
        certificate=file(config.api_certificate),
        private_key=file(config.api_private_key),
        keys=str(paths.keys_file),
        body_bytes_max=config.api_request_mib * MIB,
    )


class ApiSettings(Value, frozen=True, kw_only=True):
    access: ListenSettings = ListenSettings()
    port: int | None = None
    """The port that is insisted on; None takes the first free one."""
    wait_s: float
    """Longest wait of a request while no model serves."""
    drain_s: float
    """Longest wait of a new split for answers that it would break."""


def api_settings(config: Config, paths: Paths) -> ApiSettings:
    return ApiSettings(
        access=listen_settings_of(config, paths),
        port=config.api_port,
        wait_s=config.api_wait_s,
        drain_s=config.api_drain_s,
    )


def require_safe(access: ListenSettings) -> None:
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


def require_address(access: ListenSettings) -> None:
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
    import psutil

    return tuple(
        address.address.partition("%")[0]
        for of_one in psutil.net_if_addrs().values()
        for address in of_one
        if address.family in (socket.AF_INET, socket.AF_INET6)
    )
