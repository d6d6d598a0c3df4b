"""Invitations as text: addresses, a public key, and a secret that is good once."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
import time
from enum import IntEnum

import msgspec

from backends.errors import UsageError
from backends.machine_names import TOKEN, bracketed
from backends.mesh.quic_place import QuicPlace
from backends.state import Value
from backends.units import format_age

VERSION = 1
PREFIX = f"dllm{VERSION}-"
LIFE_S = 3600.0
KEY_BYTES = 32
SECRET_BYTES = 16
ADDRESSES_MAX = 8
NAME_MAX = 64
TOKEN_CHARS_MAX = 2048
ID_CHARS = 16
_CHECK_BYTES = 4
_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,253}(%[A-Za-z0-9._-]{1,32})?")
_AGAIN = "Copy all of it, in one piece."


class TokenKind(IntEnum):
    """The side that is to dial."""

    ADD = 1
    """A worker listens; for ``peers add``."""
    JOIN = 2
    """A console listens; for ``join``."""


class Token(Value, frozen=True, kw_only=True, array_like=True):
    """An invitation of a worker or of a console."""

    kind: TokenKind
    name: str
    """The machine that made it, as it calls itself."""
    addresses: tuple[str, ...]
    port: int
    key: bytes
    """The Ed25519 public key of the machine that made it."""
    secret: bytes
    expires_at: int
    """Unix seconds."""
    quic: QuicPlace | None = None
    """Older programs pass over it."""

    def __repr__(self) -> str:
        return f"Token(kind={self.kind!r}, name={self.name!r})"

    @property
    def text(self) -> str:
        data = msgspec.msgpack.encode(self)
        return PREFIX + _text(data + _check(data))

    @property
    def id(self) -> str:
        """Tells this invitation from others, and opens nothing."""
        return secret_hash(self.secret)[:ID_CHARS]

    @property
    def places(self) -> tuple[str, ...]:
        return tuple(place(address, self.port) for address in self.addresses)


def place(address: str, port: int) -> str:
    return f"{bracketed(address)}:{port}"


def new_token(
    kind: TokenKind,
    name: str,
    addresses: tuple[str, ...],
    port: int,
    key: bytes,
    life_s: float = LIFE_S,
    quic: QuicPlace | None = None,
) -> Token:
    return Token(
        kind=kind,
        name=name[:NAME_MAX],
        addresses=addresses[:ADDRESSES_MAX],
        port=port,
        key=key,
        secret=secrets.token_bytes(SECRET_BYTES),
        expires_at=int(time.time() + life_s),
        quic=quic,
    )


def read_token(text: str, kind: TokenKind, now: float | None = None) -> Token:
    """Read a token that is to be of one kind."""
    token = _decoded(text.strip())
    if token.kind is not kind:
        raise UsageError(*_OTHER_SIDE[token.kind])
    over_s = (time.time() if now is None else now) - token.expires_at
    if over_s >= 0:
        raise UsageError(
            f"The token of {token.name} expired {format_age(over_s)} ago",
            "Ask for another one.",
        )
    return token


_OTHER_SIDE = {
    TokenKind.ADD: (
        "This token is of a worker",
        "Add that machine where the console is: dllm-tui peers add TOKEN.",
    ),
    TokenKind.JOIN: (
        "This token is of a console",
        "Use it on the machine that is to work: dllm-tui join TOKEN.",
    ),
}


def _decoded(text: str) -> Token:
    found = TOKEN.match(text)
    if found is None:
        raise UsageError("That is no token", f"One begins with {PREFIX}.")
    if int(found[1]) != VERSION:
        raise UsageError(
            f"The token is of version {found[1]}, this dllm-tui reads {VERSION}",
            "Install the same version on both machines.",
        )
    data = _data(text[found.end() :])
    body, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
    if not body or check != _check(body):
        raise UsageError("The token is cut off or was changed", _AGAIN)
    try:
        token = msgspec.msgpack.decode(body, type=Token)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise _senseless() from None
    if not _makes_sense(token):
        raise _senseless()
    return token


def _senseless() -> UsageError:
    return UsageError("The token says nothing that makes sense", "Ask for another one.")


def _makes_sense(token: Token) -> bool:
    return (
        len(token.key) == KEY_BYTES
        and len(token.secret) == SECRET_BYTES
        and 0 < token.port < 1 << 16
        and 0 < len(token.addresses) <= ADDRESSES_MAX
        and all(map(_HOST.fullmatch, token.addresses))
        and 0 < len(token.name) <= NAME_MAX
        and token.name.isprintable()
        and 0 < token.expires_at < 1 << 40
        and (token.quic is None or token.quic.makes_sense)
    )


def _data(text: str) -> bytes:
    # The decoder itself would pass over signs that have no place in it.
    if len(text) > TOKEN_CHARS_MAX or not re.fullmatch(r"[A-Za-z0-9_-]+", text):
        raise UsageError("The token has signs that none has, or is too long", _AGAIN)
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise UsageError("The token is cut off or was changed", _AGAIN) from None
    if _text(data) != text:
        raise UsageError("The token is cut off or was changed", _AGAIN)
    return data


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _check(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_CHECK_BYTES]


def secret_hash(secret: bytes) -> str:
    """The part of a secret that is kept; it has 128 bits, so that no salt is needed."""
    return hashlib.sha256(secret).hexdigest()
