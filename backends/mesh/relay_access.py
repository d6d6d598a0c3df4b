"""The relays that machines behind routers meet at: their addresses and keys."""

from __future__ import annotations

import asyncio
import base64
import importlib
import logging
import re
import secrets
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from backends.errors import MachineError, UsageError
from backends.state import NOT_JSON, Value
from backends.writing import write_private

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

log = logging.getLogger(__name__)

RELAY_PORT = 50090
KEY_BYTES = 16
TRY_S = 5.0
_KEY = re.compile(r"[A-Za-z0-9_-]{0,64}")
_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]_-]{1,255}/?")


class RelayAccess(Value, frozen=True, kw_only=True):
    """A relay, and the key with which it serves."""

    url: str
    key: str = ""

    @property
    def text(self) -> str:
        return f"{self.url}#{self.key}" if self.key else self.url

    def __repr__(self) -> str:
        return f"RelayAccess(url={self.url!r})"

    @property
    def place(self) -> tuple[str, int]:
        """Host and port, of its address reflector, too."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or (443, 80)[parts.scheme == "http"]

    @property
    def reflector_seed(self) -> bytes:
        """The secret of the reflector's key: who has the relay's key knows it."""
        return sha256(b"dllm-tui address reflector\0" + self.key.encode()).digest()


def is_relay_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        # A label may be neither empty nor too long.
        has_host = bool((parts.hostname or "").encode("idna"))
        return bool(_URL.fullmatch(text)) and has_host and parts.port != 0
    except ValueError:
        return False


def parse_access(text: str) -> RelayAccess:
    """``http://203.0.113.5:50090#KEY``, as ``relay access`` shows it."""
    url, _, key = text.strip().partition("#")
    if not is_relay_url(url) or not _KEY.fullmatch(key):
        raise UsageError(
            "That is no relay", "One looks like http://203.0.113.5:50090#KEY."
        )
    return RelayAccess(url=url.rstrip("/"), key=key)


async def try_relay(access: RelayAccess) -> None:
    """Ask a relay whether it takes this key.

    Raises:
        MachineError: it does not, or does not answer.
    """
    # It takes its time.
    await asyncio.to_thread(importlib.import_module, "aiohttp")
    import aiohttp

    headers = {"Authorization": f"Bearer {access.key}"} if access.key else {}
    limit = aiohttp.ClientTimeout(total=TRY_S)
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=limit) as session,
            session.get(f"{access.url}/relay", allow_redirects=False) as answer,
        ):
            status = answer.status
    except (OSError, TimeoutError, ValueError, aiohttp.ClientError) as error:
        log.info("%s does not answer: %r", access.url, error)
        raise MachineError(
            f"The relay {access.url} does not answer",
            "Is it running, and its port open for TCP?",
        ) from error
    if status in (401, 403):
        raise MachineError(
            f"The relay {access.url} refuses the key",
            "Take what dllm-tui relay access shows there: dllm-tui relay use -.",
        )
    # Without the words of a WebSocket a relay refuses the request itself.
    if status not in (400, 426):
        raise MachineError(
            f"The relay {access.url} serves nobody now (HTTP {status})",
            "It may be full, or something else than a relay answers there.",
        )


def own_relay_key(file: Path, *, anew: bool = False) -> str:
    """The key of the relay on this machine; made at its first use, or ``anew``."""
    # With it comes asyncssh, which takes as long to load as a whole command.
    from backends.mesh.identity import require_private

    try:
        if anew or not file.exists():
            made = base64.urlsafe_b64encode(secrets.token_bytes(KEY_BYTES))
            write_private(file, made.rstrip(b"="))
        require_private(file)
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise MachineError(f"The key {file} cannot be used ({error})") from error


class _Relays(Value, frozen=True, kw_only=True):
    own: str = ""
    keys: dict[str, str] = {}
    heard: tuple[str, ...] = ()
    """The URLs of relays whose key a machine told, and no token of the user."""


class RelayFile:
    """The relay that this machine uses, and the keys of all that it knows."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def own(self) -> RelayAccess | None:
        url = self._read().own
        return self.access(url) if url else None

    def access(self, url: str) -> RelayAccess:
        return RelayAccess(url=url, key=self._read().keys.get(url, ""))

    def use(self, access: RelayAccess | None) -> None:
        """Meet others there from now on; None: nowhere."""
        if access is None:
            self._write(msgspec.structs.replace(self._read(), own=""))
            return
        known = self._read()
        self._write(msgspec.structs.replace(_with(known, access), own=access.url))

    def learn(self, access: RelayAccess, *, heard: bool = False) -> None:
        """Keep the key that a token told, unless one is known for that relay.

        ``heard``: a machine told it, by itself: the key of a token replaces it.
        """
        known, url = self._read(), access.url
        replaces = not heard and url in known.heard
        is_own = heard and url == known.own
        if replaces or not (known.keys.get(url) or is_own):
            self._write(_with(known, access, heard))

    def is_heard(self, url: str) -> bool:
        """True if a token may tell another key for that relay."""
        return url in self._read().heard

    def forget_all_but(self, urls: Collection[str]) -> None:
        """Forget the keys of other relays, but never of our own."""
        known = self._read()
        kept = {u: key for u, key in known.keys.items() if u in (known.own, *urls)}
        if kept != known.keys:
            self._write(msgspec.structs.replace(known, keys=kept))

    def _read(self) -> _Relays:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=_Relays)
        except FileNotFoundError:
            return _Relays()
        except (OSError, *NOT_JSON) as error:
            raise MachineError(
                f"The relays in {self._path} cannot be read ({error})",
                "Mend the file, or remove it.",
            ) from error

    def _write(self, relays: _Relays) -> None:
        try:
            write_private(self._path, msgspec.json.encode(relays))
        except OSError as error:
            raise MachineError(
                f"{self._path} cannot be written ({error.strerror})",
                "Is the disk full, or its folder not yours?",
            ) from error


def _with(known: _Relays, access: RelayAccess, heard: bool = False) -> _Relays:
    others = tuple(url for url in known.heard if url != access.url)
    return msgspec.structs.replace(
        known,
        keys={**known.keys, access.url: access.key},
        heard=(*others, access.url) if heard else others,
    )
