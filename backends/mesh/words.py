"""The words between a console and a worker that lends its machine."""

from __future__ import annotations

from backends.state import Value

HELLO, AGENT, PAIR, SFTP, NOISE = "hello", "agent", "pair", "sftp", "noise"
"""The subsystems of a worker; ``PAIR`` is all that a secret opens."""
USER_BY_KEY, USER_BY_SECRET = "console", "invited"
PROTOCOL = 1
LINE_BYTES_MAX = 4096
NOISE_BYTES = 1 << 20
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
    refusal: str = ""
    """Why nothing is lent now, in a few words."""


class PairRequest(Value, frozen=True, kw_only=True):
    """A key and a name, for the other side to remember."""

    name: str
    key: str = ""
    secret: str = ""
    """In hexadecimal digits; where the other side made the token."""


class PairAnswer(Value, frozen=True, kw_only=True):
    name: str = ""
    problem: str = ""
