"""TLS for clients: a certificate and its private key, checked before any start."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

from backends.errors import DllmError

log = logging.getLogger(__name__)

_FOR_OTHERS = 0o077


def server_context(certificate: str, private_key: str) -> ssl.SSLContext:
    """What speaks TLS with this certificate.

    Raises:
        DllmError: one of the files cannot be used; the sentence says why.
    """
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
    try:
        with open(file, "rb"):
            return
    except OSError as error:
        raise DllmError(
            f"Cannot read the {what} {file} ({error.strerror})",
            f"Mend {setting} in config.toml, or the file.",
        ) from error


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
        """``context`` speaks with the files as they are now."""
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
