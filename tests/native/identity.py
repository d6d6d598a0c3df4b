"""What tells a process from a later one that was given the same number.

Written anew here, to compare with what ``dllm-relay`` writes.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from functools import cache
from pathlib import Path

# Fields of /proc/PID/stat after the name: state is the first, the start time the 20th.
_STATE_FIELD = 0
_START_FIELD = 19
_GONE_STATES = (b"Z", b"X")

# libproc.h: PROC_PIDTBSDINFO fills a proc_bsdinfo whose last two fields are
# pbi_start_tvsec and pbi_start_tvusec.
_PROC_PIDTBSDINFO = 3
_BSDINFO_BYTES = 136
_BSDINFO_START_OFFSET = 120


def start_id(pid: int) -> str | None:
    """Identity of a living process; None when it is gone or only a zombie.

    Linux: boot id and start time in clock ticks; macOS: start time in µs.
    """
    if pid <= 0:
        return None
    return _start_id_macos(pid) if sys.platform == "darwin" else _start_id_linux(pid)


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _start_id_linux(pid: int) -> str | None:
    try:
        # Bytes: a program may have any name.
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
    fields = text[text.rfind(b")") + 1 :].split()
    if len(fields) <= _START_FIELD or fields[_STATE_FIELD] in _GONE_STATES:
        return None
    return f"{_boot_id()}:{fields[_START_FIELD].decode()}"


def _start_id_macos(pid: int) -> str | None:
    # psutil's create_time is adjusted to clock changes; the identity must not be.
    info = ctypes.create_string_buffer(_BSDINFO_BYTES)
    size = ctypes.CDLL(None).proc_pidinfo(
        pid, _PROC_PIDTBSDINFO, ctypes.c_uint64(0), info, _BSDINFO_BYTES
    )
    if size != _BSDINFO_BYTES:
        return None
    seconds, micros = struct.unpack_from("=QQ", info.raw, _BSDINFO_START_OFFSET)
    return str(seconds * 1_000_000 + micros)
