"""Which header fields go on, and which are about one connection only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from multidict import CIMultiDict

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy

HOP_BY_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "proxy-authenticate"),
        *("proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade"),
        # Answered by whoever accepts the upload: us.
        "expect",
    }
)


def passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The fields of a request or an answer that are for the other end, in order."""
    named = ",".join(headers.getall("Connection", ()))
    dropped = HOP_BY_HOP | {name.strip().lower() for name in named.split(",")}
    return CIMultiDict((k, v) for k, v in headers.items() if k.lower() not in dropped)
