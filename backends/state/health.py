"""The health of machines and of the ways between them, as ``doctor`` measures it."""

from __future__ import annotations

from backends.state.base import Value


class MachineHealth(Value, frozen=True, kw_only=True):
    """The readings of one machine that say whether it can serve well."""

    machine: str
    unread: str = ""
    """Why it could not be asked; the rest is then empty."""
    os: str = ""
    """``Linux`` or ``Darwin``."""
    clock_offset_s: float = 0.0
    """Its clock minus ours."""
    disk_free_bytes: int = 0
    """Of the file system of its home, where engines and models go."""
    disk_total_bytes: int = 0
    memory_total_bytes: int = 0
    memory_available_bytes: int = 0
    pressure_percent: dict[str, float] = {}
    """By resource (``cpu``, ``memory``, ``io``): time in which some work stood still,
    of the last ten seconds; empty where the kernel does not tell."""
    throttled: tuple[str, ...] = ()
    """Reasons why its cores are slower than they could be, a clause each."""
    hottest_c: float | None = None
    """Of its thermal sensors; None where there are none."""
    sleeps: tuple[str, ...] = ()
    """Settings by which it may go to sleep by itself, a clause each."""
    stays_awake: bool = False
    """True if ``keep_awake`` holds it awake now."""


class MeasuredWay(Value, frozen=True, kw_only=True):
    """The way of data from a head to a worker on another machine, or on its own."""

    head: str
    worker: str
    way: str
    """``loopback``, ``direct`` (TLS between relays), ``tunnel`` (SSH), or ``bare``."""
    address: str = ""
    """The address that was tried; empty: none."""
    blocked: bool = False
    """True if the address was tried and could not be reached."""
    why: str = ""
    """Why not directly, or why it was not measured: a clause."""
    rtt_ms: float | None = None
    rate_mb_s: float | None = None
    """From head to worker, of TCP without TLS; None if it was not measured."""
