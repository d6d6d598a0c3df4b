"""The ssh-agent of whoever asks: it may have been started after the controller."""

from __future__ import annotations

import logging
import os
import stat
from typing import TYPE_CHECKING

from aiohttp import web

from backends.state.base import AGENT_HEADER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

VARIABLE = "SSH_AUTH_SOCK"


@web.middleware
async def with_the_agent_of_the_asker(
    request: web.Request,
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> web.StreamResponse:
    """Log in with the agent of the newest terminal in which something was asked for.

    Looking on (GET) changes nothing, so an old console takes no agent away.
    """
    path = request.headers.get(AGENT_HEADER, "")
    if request.method == "POST" and path != os.environ.get(VARIABLE) and _is_ours(path):
        log.info("the ssh-agent is now the one at %s", path)
        os.environ[VARIABLE] = path
    return await handler(request)


def _is_ours(path: str) -> bool:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return False
    return stat.S_ISSOCK(found.st_mode) and found.st_uid == os.getuid()
