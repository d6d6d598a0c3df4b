"""The Ed25519 keys by which machines know each other."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import struct
from pathlib import Path

import asyncssh

from backends.errors import MachineError
from backends.writing import write_private

KIND = "ssh-ed25519"
_FOR_OTHERS = 0o077


def own_key(file: Path) -> asyncssh.SSHKey:
    """Our key; made at its first use."""
    try:
        if not file.exists():
            made = asyncssh.generate_private_key(KIND)
            write_private(file, made.export_private_key())
        require_private(file)
        return asyncssh.read_private_key(file)
    except (OSError, asyncssh.KeyImportError) as error:
        raise MachineError(
            f"The key {file} cannot be used ({error})",
            "Mend the file, or remove it: then all machines must be paired anew.",
        ) from error


def require_private(file: Path) -> None:
    """Raises: MachineError: others can read a key."""
    if stat.S_IMODE(os.stat(file).st_mode) & _FOR_OTHERS:
        raise MachineError(
            f"Others can read the key {file}", f"Only you should: chmod 600 {file}."
        )


def public_line(key: asyncssh.SSHKey) -> str:
    """``ssh-ed25519 AAAA…``."""
    return f"{KIND} {base64.b64encode(key.public_data).decode()}"


def raw_of(key: asyncssh.SSHKey) -> bytes:
    return key.public_data[-32:]


def line_of_raw(raw: bytes) -> str:
    """The line of a public key that is in a token."""
    data = b"".join(struct.pack(">I", len(p)) + p for p in (KIND.encode(), raw))
    return f"{KIND} {base64.b64encode(data).decode()}"


def key_of_line(line: str) -> asyncssh.SSHKey:
    """Read a public key; only Ed25519 counts."""
    try:
        key = asyncssh.import_public_key(line)
    except (ValueError, OverflowError) as error:
        raise MachineError(f"{line[:40]!r} is no public key") from error
    if key.algorithm != KIND.encode() or len(key.public_data) != 51:
        raise MachineError(f"{line[:40]!r} is no Ed25519 key")
    return key


def quic_seed(key: asyncssh.SSHKey) -> bytes:
    """The secret of the key by which QUIC knows us; it tells nothing about ``key``."""
    return hashlib.sha256(b"dllm-tui quic\0" + key.private_data).digest()
