"""The messages of a controller to a gateway, and the command line of a gateway."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from backends.state.base import Value

if TYPE_CHECKING:
    from backends.gateway.listen_settings import ListenSettings

PROTOCOL = 4
"""Changes when a gateway would misread a controller of this release, or it the gateway:
it is part of the command line, so such a gateway is replaced."""
GATEWAY = "api-gateway"
"""Its name among the processes of a cluster."""
PORT_TAKEN = 3
"""Its exit code where another program had its port, if only for a moment."""
HOLD_S = 300.0
"""Longest wait of a request while nothing serves, where the settings say nothing."""


class Mode(StrEnum):
    HOLD = "hold"
    """No llama-server serves; one will."""
    SERVE = "serve"
    END = "end"
    """No llama-server serves, and nothing is being done about it."""


class Target(Value, frozen=True, kw_only=True):
    """The destination of requests; a line of JSON on the gateway's own socket."""

    mode: Mode = Mode.HOLD
    port: int = 0
    """Of llama-server on this machine's loopback, or of the way to it."""
    server: str = ""
    """Tells this llama-server from an earlier or later one at the same port."""
    model: str = ""
    """The name that clients use for the model."""
    weights: str = ""
    """Tells which model it is, whatever its name: no other goes on with an answer."""
    drains: bool = False
    """True if only what was begun may go on; new requests wait."""
    bound: bool = False
    """True if it holds every answer to a form or a length: none is continued."""
    seeded: bool = False
    """True if a seed for all answers is among its arguments: none is added."""
    slots: int = 0
    """So many answers it makes at once; no more are asked for. 0: as many as come."""
    why: str = ""
    """The message for clients that are not served."""
    hold_s: float = HOLD_S
    """Longest wait of a request while nothing serves."""


def gateway_argv(
    cluster: str, port: int | str, socket: Path | str, access: ListenSettings
) -> tuple[str, ...]:
    """The command line of a cluster's gateway.

    It depends on no plan, so it outlives them. ``socket`` is where it is told what to
    do.
    """
    return (
        *(sys.executable, "-P", "-m", "backends.gateway"),
        *("--cluster", cluster, "--port", str(port)),
        *("--socket", str(socket), "--protocol", str(PROTOCOL)),
        *access.argv(),
    )
