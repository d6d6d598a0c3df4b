"""What holds for all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# These machines are shared: one may stand still for longer than any example takes.
settings.register_profile(
    "shared", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared")
