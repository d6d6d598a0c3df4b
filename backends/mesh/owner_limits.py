"""The owner's limits: what of a machine is lent, and when."""

from __future__ import annotations

import re
import time

from backends.errors import UsageError
from backends.state import Value

_HOURS = re.compile(r"(\d{1,2})-(\d{1,2})")


class OwnerLimits(Value, frozen=True, kw_only=True):
    memory_bytes: int | None = None
    """Most main memory of all consoles together; None: all."""
    devices: tuple[str, ...] = ()
    """Empty: all."""
    hours: tuple[int, int] | None = None
    """From the first hour to before the last, by the clock here; None: always."""
    models: tuple[str, ...] = ()
    """Folders that consoles may read."""
    writable: bool = False
    """True if they may add models to the first of them."""

    def lends(self, device: str) -> bool:
        return not self.devices or device in self.devices

    def lends_at(self, hour: int) -> bool:
        if self.hours is None:
            return True
        first, last = self.hours
        return first <= hour < last if first < last else hour >= first or hour < last

    def refusal(self, paused: bool, hour: int | None = None) -> str:
        """Why nothing is lent now, in a few words; empty while it is."""
        if paused:
            return "its owner has paused it"
        now = time.localtime().tm_hour if hour is None else hour
        if not self.lends_at(now) and self.hours is not None:
            first, last = self.hours
            return f"its owner lends it from {first} to {last} o'clock"
        return ""


def parse_hours(text: str) -> tuple[int, int]:
    """``22-7``: from 22 o'clock to 7 in the morning."""
    found = _HOURS.fullmatch(text.strip())
    hours = (int(found[1]), int(found[2])) if found else (0, 0)
    if hours[0] == hours[1] or max(hours) > 24:
        raise UsageError(f"{text!r} are no hours", "Write them like 22-7.")
    return hours[0] % 24, hours[1]
