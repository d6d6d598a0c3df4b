"""The user's private keys: read, tried, and unlocked only if the peer takes them."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import asyncssh

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Keys:
    """Key pairs to log in with, and which of them would need a passphrase.

    A locked key whose public half is readable is offered like any other; only when the
    peer would take it, its passphrase is wanted, as with ``ssh``.
    """

    def __init__(self, identities: Iterable[Path], passphrase: str | None) -> None:
        """Read the files that are there; blocks. The passphrase is kept until login."""
        self._passphrase = passphrase
        self.locked: list[str] = []
        """Files that could be used if they were unlocked."""
        self.pairs: list[asyncssh.SSHKeyPair] = []
        self.public: list[bytes] = []
        """Public halves, for an agent that is to offer nothing else."""
        for path in identities:
            public = _public_half(path)
            self.public += public
            if _is_private(path):
                self._load(path, public)

    def _load(self, path: Path, public: Sequence[bytes]) -> None:
        # A key without readable public half cannot be offered: unlock it first.
        passphrase = self._unlock if public else self._passphrase
        try:
            pairs = asyncssh.load_keypairs(
                str(path),
                passphrase,  # type: ignore[arg-type]
                ignore_encrypted=True,
            )
        except asyncssh.KeyEncryptionError:
            self.locked.append(str(path))
        except (OSError, ValueError):
            # Broken, or unreadable for us: like ssh, go on with the others.
            pass
        else:
            self.pairs += pairs
            if not pairs:
                self.locked.append(str(path))

    def _unlock(self, filename: str) -> str | None:
        # Called from a worker thread, when the peer has said that it takes the key.
        self.locked.insert(0, filename)
        return self._passphrase


def can_unlock() -> bool:
    """Whether OpenSSH's own format of locked keys can be read here."""
    return importlib.util.find_spec("bcrypt") is not None


def _is_private(path: Path) -> bool:
    # IdentityFile may also name a public key whose private half an agent holds.
    try:
        return b"PRIVATE KEY" in path.read_bytes()
    except OSError:
        return False


def _public_half(path: Path) -> Sequence[bytes]:
    for candidate in (Path(f"{path}.pub"), path):
        with contextlib.suppress(OSError, ValueError):
            return [asyncssh.read_public_key(candidate).public_data]
    return []
