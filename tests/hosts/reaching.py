"""Short ways to a connection, for the tests here."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest

from backends.errors import NeedsAnswer, PeerUnreachable
from backends.machines.ssh.config import Destination
from backends.machines.ssh.connection import Connection
from backends.state import QuestionKind
from tests.kit.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


def reach(name: str, where: str = "") -> Connection:
    """A connection not yet made, by the head's own config."""
    return Connection(name, Destination.parse(where or name))


@contextlib.asynccontextmanager
async def reached(name: str, where: str = "") -> AsyncIterator[Connection]:
    """A connection, closed at the end."""
    connection = reach(name, where)
    try:
        await connection.connect()
        yield connection
    finally:
        await connection.close()


async def until(
    condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S
) -> None:
    """Wait while the event loop goes on, as it does while a condition is looked at."""
    await asyncio.to_thread(wait_until, condition, what, patience_s)


async def question(connection: Connection, **answers: str) -> NeedsAnswer:
    """What a connection attempt asks; each answer by the kind of its question."""
    with pytest.raises(NeedsAnswer) as caught:
        await connection.connect({QuestionKind(k): v for k, v in answers.items()})
    return caught.value


async def refusal(connection: Connection) -> str:
    """Why a connection attempt fails for good."""
    with pytest.raises(PeerUnreachable) as caught:
        await connection.connect()
    return str(caught.value)
