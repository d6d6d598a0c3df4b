"""A disk that takes no more, without filling one."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT_BYTES = 1_000_000


@contextmanager
def little_room(limit_bytes: int = LIMIT_BYTES) -> Iterator[None]:
    """The kernel lets no file of ours grow further than that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
