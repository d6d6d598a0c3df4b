"""A machine as QUIC finds it: its node id, addresses, and the relay it waits at."""

from __future__ import annotations

import re

from msgspec.structs import replace

from backends.errors import UsageError
from backends.mesh.relay_access import RelayAccess, RelayFile, is_relay_url
from backends.state import Value

NODE_BYTES = 32
ADDRESSES_MAX = 6
_ADDRESS = re.compile(r"(?:[0-9.]{7,15}|\[[0-9A-Fa-f:]{2,39}\]):[0-9]{1,5}")
_KEY = re.compile(r"[A-Za-z0-9_-]{0,64}")


class QuicPlace(Value, frozen=True, kw_only=True, array_like=True):
    """An invitation tells it with ``relay_key``; settings without."""

    node: bytes
    """Its Ed25519 public key; not the host key, but derived from the same secret."""
    addresses: tuple[str, ...] = ()
    """``10.0.0.7:50080``, of UDP."""
    relay: str = ""
    """The URL of its relay; empty: none."""
    relay_key: str = ""

    def __repr__(self) -> str:
        return f"QuicPlace(node={self.node.hex()!r})"

    @property
    def text(self) -> str:
        """``NODE ADDRESS… [URL]``, without the relay's key."""
        relay = (self.relay,) if self.relay else ()
        return " ".join((self.node.hex(), *self.addresses, *relay))

    @property
    def access(self) -> RelayAccess | None:
        return RelayAccess(url=self.relay, key=self.relay_key) if self.relay else None

    def with_key(self, relays: RelayFile) -> QuicPlace:
        """The same for those who may use its relay."""
        if not self.relay:
            return self
        return replace(self, relay_key=relays.access(self.relay).key)

    @property
    def makes_sense(self) -> bool:
        return (
            len(self.node) == NODE_BYTES
            and len(self.addresses) <= ADDRESSES_MAX
            and all(map(_ADDRESS.fullmatch, self.addresses))
            and (not self.relay or is_relay_url(self.relay))
            and bool(_KEY.fullmatch(self.relay_key))
        )


def parse_quic_place(text: str) -> QuicPlace:
    node, *rest = text.split() or [""]
    relay = rest.pop() if rest and "//" in rest[-1] else ""
    try:
        place = QuicPlace(node=bytes.fromhex(node), addresses=tuple(rest), relay=relay)
    except ValueError:
        place = QuicPlace(node=b"")
    if not place.makes_sense:
        raise UsageError(f"{text[:80]!r} is no place of QUIC", "peers add writes it.")
    return place
