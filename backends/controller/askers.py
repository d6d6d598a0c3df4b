"""Identify the process at the other end of the socket, as the kernel knows it."""

from __future__ import annotations

import os
import platform
import socket
import struct
import sys
from functools import cache
from typing import TYPE_CHECKING

import psutil

from backends.state import Actor
from backends.state.base import PROGRAM_HEADER

if TYPE_CHECKING:
    from aiohttp import web

PROGRAM_MAX = 40
# <sys/un.h> of macOS, for which Python has no names.
SOL_LOCAL = 0
LOCAL_PEERPID = 2


def asker(request: web.Request) -> Actor:
    """Return the sender of a request; a field that cannot be found out stays empty."""
    said = request.headers.get(PROGRAM_HEADER, "")[:PROGRAM_MAX]
    pid = _pid(request.get_extra_info("socket"))
    user, tty = _user_and_terminal(pid)
    return Actor(
        program=said if said.isprintable() and said else "another program",
        user=user,
        host=_host(),
        pid=pid,
        tty=tty,
    )


def myself(program: str) -> Actor:
    """This very process as an asker."""
    user, tty = _user_and_terminal(os.getpid())
    return Actor(program=program, user=user, host=_host(), pid=os.getpid(), tty=tty)


def _pid(connection: socket.socket | None) -> int:
    """The process that connected; 0 if the system does not say."""
    try:
        if connection is None or connection.family != socket.AF_UNIX:
            return 0
        if hasattr(socket, "SO_PEERCRED"):
            size = struct.calcsize("3i")
            told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            return int(struct.unpack("3i", told)[0])
        if sys.platform == "darwin":
            told = connection.getsockopt(SOL_LOCAL, LOCAL_PEERPID, 4)
            return int(struct.unpack("i", told)[0])
    except OSError:
        return 0
    return 0


def _user_and_terminal(pid: int) -> tuple[str, str]:
    try:
        process = psutil.Process(pid or None)
        terminal = process.terminal() if pid else None
        return process.username(), (terminal or "").removeprefix("/dev/")
    except psutil.Error:
        # It asked and was gone; the socket lets nobody else in.
        return psutil.Process().username(), ""


@cache
def _host() -> str:
    return platform.node().partition(".")[0] or "localhost"
