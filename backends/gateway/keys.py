"""The keys that clients on other machines need: named, hashed on disk, revocable."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from backends.errors import DllmError, UsageError, did_you_mean, disk_errors
from backends.state.base import NOT_JSON, Value
from backends.writing import write_private

log = logging.getLogger(__name__)

KEY_BYTES = 32
"""So much chance is in a key: none is found by trying, so a plain hash keeps it."""
PREFIX = "dllm-"
"""By it a key is known for what it is, wherever it turns up."""
REQUESTS_PER_MINUTE = 240
REQUESTS_AT_ONCE = 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_OTHERS_MAY_WRITE = 0o022
Limit = Annotated[int, Meta(ge=0)]


class Key(Value, frozen=True, kw_only=True):
    """A key as it is kept: by its hash."""

    name: str
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    created_at: float = 0.0
    """Unix seconds."""
    requests_per_minute: Limit = REQUESTS_PER_MINUTE
    """0: as many as one likes."""
    requests_at_once: Limit = REQUESTS_AT_ONCE
    """0: as many as one likes."""


class _Kept(Value, frozen=True, kw_only=True):
    keys: tuple[Key, ...] = ()


class KeyFile:
    """The file of one user's keys, which this user alone can read and write."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> tuple[Key, ...]:
        try:
            return read_keys(self._file)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise DllmError(f"Cannot read {self._file} ({error.strerror})") from error

    def add(
        self,
        name: str,
        *,
        requests_per_minute: int = REQUESTS_PER_MINUTE,
        requests_at_once: int = REQUESTS_AT_ONCE,
    ) -> str:
        """Make a key; it is returned this once and kept nowhere."""
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{name!r} cannot be the name of a key",
                "Use up to 32 letters, digits, dots, dashes and underscores.",
            )
        with self._turn():
            before = self.read()
            if any(key.name == name for key in before):
                raise UsageError(
                    f"There is a key {name} already",
                    "Choose another name, or remove that one first.",
                )
            secret = PREFIX + secrets.token_urlsafe(KEY_BYTES)
            key = Key(
                name=name,
                sha256=_hash(secret),
                created_at=round(time.time(), 3),
                requests_per_minute=requests_per_minute,
                requests_at_once=requests_at_once,
            )
            self._write((*before, key))
        return secret

    def remove(self, name: str) -> None:
        with self._turn():
            before = self.read()
            left = tuple(key for key in before if key.name != name)
            if left == before:
                guess = did_you_mean(name, [key.name for key in before])
                raise UsageError(
                    f"There is no key {name}", f"{guess}See dllm-tui keys list."
                )
            self._write(left)

    def _write(self, keys: Iterable[Key]) -> None:
        kept = _Kept(keys=tuple(sorted(keys, key=lambda key: key.name)))
        raw = msgspec.json.format(msgspec.json.encode(kept), indent=2)
        with disk_errors("write", self._file):
            write_private(self._file, raw + b"\n")

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        lock = self._file.with_suffix(".lock")
        with disk_errors("write", lock):
            lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def read_keys(file: Path) -> tuple[Key, ...]:
    """Read a file of keys.

    Raises:
        OSError: it cannot be read.
        DllmError: it says nothing that can be understood, or others could write it.
    """
    with file.open("rb") as stream:
        status = os.fstat(stream.fileno())
        if status.st_uid != os.getuid() or status.st_mode & _OTHERS_MAY_WRITE:
            raise DllmError(
                f"Others can write {file}, so its keys are not trusted",
                f"See who did; then chmod 600 {file}.",
            )
        raw = stream.read()
    try:
        return msgspec.json.decode(raw, type=_Kept).keys
    except NOT_JSON as error:
        raise DllmError(
            f"{file} cannot be understood: {error}",
            "Remove it and make the keys anew (dllm-tui keys add NAME).",
        ) from error


class KeyRing:
    """The keys as they are at this moment, for who lets clients in."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: tuple[int, int, int] | None = None
        self._keys: tuple[Key, ...] = ()

    def holder(self, given: Iterable[str]) -> Key | None:
        """The key that one of these is; the time it takes tells nothing of the keys."""
        self._look()
        found = None
        for secret in given:
            digest = _hash(secret)
            for key in self._keys:
                if hmac.compare_digest(digest, key.sha256):
                    found = key
        return found

    def _look(self) -> None:
        try:
            status = self._file.stat()
            seen = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
            if seen == self._seen:
                return
            self._keys = read_keys(self._file)
            self._seen = seen
        except FileNotFoundError:
            self._keys, self._seen = (), None
        except (DllmError, OSError) as error:
            self._keys, self._seen = (), None
            log.warning("no key is accepted: %s", error)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogateescape")).hexdigest()
