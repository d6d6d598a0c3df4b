"""The words between a console and a worker that lends its machine."""

from __future__ import annotations

from typing import Protocol

from backends.mesh.quic_place import QuicPlace
from backends.state import Value

HELLO, AGENT, PAIR, SFTP, NOISE = "hello", "agent", "pair", "sftp", "noise"
"""The subsystems of a worker; ``PAIR`` is all that a secret opens."""
USER_BY_KEY, USER_BY_SECRET, USER_BY_DIGITS = "console", "invited", "newcomer"
PROTOCOL = 1
LINE_BYTES_MAX = 16 << 10
NOISE_BYTES = 1 << 20
PART = ".part"
"""Ends the name of a model while it is sent."""
LENDS_NO = "the owner of this machine lends no "
"""Begins why a way is not opened."""
SERVER_VERSION, CLIENT_VERSION = "dllm-tui-worker", "dllm-tui-console"
BANNER = b"SSH-2.0-dllm-tui-"
"""Begins the first words of a worker, and of a console."""
DIALLED = b"dllm-tui worker "
"""Begins the line that a worker says before all else, where it is the one who dials.
Its host key's fingerprint follows: a hint, which the login then proves."""


class WorkerHello(Value, frozen=True, kw_only=True):
    """The first words to a console."""

    protocol: int
    name: str = ""
    version: str = ""
    os: str = ""
    arch: str = ""
    libc: str = ""
    relay: str = ""
    models: tuple[str, ...] = ()
    writable: bool = False
    """True if models may be added to the first of these folders."""
    refusal: str = ""
    """Why nothing is lent now, in a few words."""
    places: tuple[str, ...] = ()
    """Its listening addresses of now; empty: it only dials."""
    quic: QuicPlace | None = None
    """With the key of its relay."""


class PairRequest(Value, frozen=True, kw_only=True):
    """A key and a name, for the other side to remember."""

    name: str
    key: str = ""
    secret: str = ""
    """In hexadecimal digits; where the other side made the token."""


class PairAnswer(Value, frozen=True, kw_only=True):
    name: str = ""
    problem: str = ""


class DigitsStep(Value, frozen=True, kw_only=True):
    """A step of pairing by digits; it has the members that its turn needs.

    Console: name and commitment. Worker: name and nonce. Console: nonce, and once its
    user has compared the digits, whether they agree. A ``PairAnswer`` ends it.
    """

    name: str = ""
    commitment: str = ""
    nonce: str = ""
    agrees: bool = False
    problem: str = ""


class Reader(Protocol):
    async def read(self, n: int) -> bytes: ...


async def read_line(reader: Reader) -> bytes:
    """The first line; nobody may send more before its end than a line may have.

    Raises:
        ValueError: none came.
    """
    line = b""
    while not line.endswith(b"\n"):
        data = await reader.read(LINE_BYTES_MAX)
        line += data
        if not data or len(line) > LINE_BYTES_MAX:
            raise ValueError("no line came")
    return line
