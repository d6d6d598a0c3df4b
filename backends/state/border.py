"""What two releases must agree on to talk: the version of the controller's API."""

from __future__ import annotations

from backends.state.base import Value

API_VERSION = 9
"""Grows with every change that an older client or controller would misread."""
ALIVE_EVERY_S = 1.0
"""A controller that works on a request says so at least this often."""
SILENCE_MAX_S = 5.0
"""A client waits no longer than this for the next word of a controller."""


class ControllerInfo(Value, frozen=True, kw_only=True):
    """Who a controller is: its answer to ``/v1/version``, and what its lock says."""

    api: int
    """``API_VERSION`` of its release."""
    version: str = ""
    """Of the release."""
    pid: int
    socket: str = ""
    """Where it listens."""
