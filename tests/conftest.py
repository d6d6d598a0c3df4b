"""What holds for all tests."""

from __future__ import annotations

import gc

from hypothesis import HealthCheck, settings

# These machines are shared: one may stand still for longer than any example takes.
settings.register_profile(
    "shared", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared")


def pytest_collection_finish() -> None:
    """Spare thousands of tests a search for garbage among what stays to the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
