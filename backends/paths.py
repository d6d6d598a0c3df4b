"""The paths of everything: XDG directories on every system."""

from __future__ import annotations

import os
import stat
import sys
import sysconfig
import tempfile
import zlib
from pathlib import Path
from shutil import which
from typing import Literal

from backends.errors import DllmError, disk_errors
from backends.state import Value

APP = "dllm-tui"
ENGINE_DIR_VARIABLE = "DLLM_ENGINE_DIR"
"""Names an engine where the settings name none."""
# sockaddr_un.sun_path holds 104 bytes on macOS and 108 on Linux, with the final NUL.
SOCKET_PATH_BYTES_MAX = 103


_Directory = Literal["config_dir", "data_dir", "state_dir", "cache_dir", "runtime_dir"]


class _Below:
    """A file or folder by its name in one of the directories."""

    def __init__(self, directory: _Directory, name: str) -> None:
        self._directory = directory
        self._name = name

    def __get__(self, paths: Paths, owner: type[Paths]) -> Path:
        folder: Path = getattr(paths, self._directory)
        return folder / self._name


class Paths(Value, frozen=True, kw_only=True):
    """The directories of one user; nothing here creates them."""

    config_dir: Path
    data_dir: Path
    state_dir: Path
    cache_dir: Path
    runtime_dir: Path

    config_file = _Below("config_dir", "config.toml")
    kept_config_file = _Below("state_dir", "config.last.toml")
    """The settings as a controller could last read them."""
    console_file = _Below("state_dir", "console.json")
    """The console's memory: layout, theme, last plan."""
    plans_dir = _Below("data_dir", "plans")
    """Plans saved by name."""
    launches_dir = _Below("data_dir", "launches")
    """The plans launched last."""
    chats_dir = _Below("state_dir", "chats")
    run_dir = _Below("state_dir", "run")
    clusters_dir = _Below("state_dir", "clusters")
    trials_file = _Below("state_dir", "trials.json")
    speeds_file = _Below("state_dir", "speeds.json")
    """The measured speed of devices and links."""
    events_dir = _Below("state_dir", "events")
    keys_file = _Below("state_dir", "keys.json")
    """The API keys of clients on other machines, hashed."""
    controller_log = _Below("state_dir", "controller.log")
    lock = _Below("state_dir", "controller.lock")
    """Held by the one controller of this state; says who and where it is."""
    head_id_file = _Below("state_dir", "head_id")
    """Tells our processes on other machines from those of other heads."""
    told_dir = _Below("state_dir", "told")
    """The machines that other consoles of this user have told of."""
    worker_key_file = _Below("data_dir", "worker_key")
    """The host key of the machine while it is lent (``dllm-tui worker``)."""
    invitations_file = _Below("state_dir", "invitations.json")
    """Of machines that are to dial us; their secrets are hashed."""
    worker_pairings_file = _Below("data_dir", "consoles.json")
    """The consoles that may use this machine."""
    lent_dir = _Below("state_dir", "lent")
    """The process directories of consoles that this machine is lent to."""
    worker_status_file = _Below("state_dir", "worker.json")
    """The status of the worker that runs here, while it does."""
    console_key_file = _Below("data_dir", "console_key")
    """The key by which machines that were invited know this console."""
    relays_file = _Below("data_dir", "relays.json")
    """The relay that machines behind routers meet at, and the keys of all known."""
    relay_key_file = _Below("data_dir", "relay_key")
    """The key of the relay that this machine itself is (``dllm-tui relay``)."""
    engines_dir = _Below("cache_dir", "engines")
    socket = _Below("runtime_dir", "controller.sock")

    def journal(self, cluster: str) -> Path:
        """A cluster's goal and last measurements."""
        return self.clusters_dir / f"{cluster}.json"

    def relay_socket(self, worker: str) -> Path:
        return self._socket(f"relay-{worker}.sock")

    def gateway_socket(self, cluster: str) -> Path:
        return self._socket(f"gateway-{cluster}.sock")

    def worker_socket(self, cluster: str, worker: str) -> Path:
        """The near end of the tunnel to a worker of a cluster."""
        return self._socket(f"{cluster}/{worker}.sock")

    def _socket(self, name: str) -> Path:
        path = self.runtime_dir / name
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
            return path
        return self.runtime_dir / f"{zlib.crc32(name.encode()):08x}.sock"


def _xdg(variable: str, default: str) -> Path:
    value = os.environ.get(variable, "")
    base = Path(value) if value.startswith("/") else Path.home() / default
    return base / APP


def _runtime_dir() -> Path:
    value = os.environ.get("XDG_RUNTIME_DIR", "")
    if value.startswith("/"):
        return Path(value) / APP
    return Path(tempfile.gettempdir()) / f"{APP}-{os.getuid()}"


def user_paths() -> Paths:
    return Paths(
        config_dir=_xdg("XDG_CONFIG_HOME", ".config"),
        data_dir=_xdg("XDG_DATA_HOME", ".local/share"),
        state_dir=_xdg("XDG_STATE_HOME", ".local/state"),
        cache_dir=_xdg("XDG_CACHE_HOME", ".cache"),
        runtime_dir=_runtime_dir(),
    )


def make_private(directory: Path) -> Path:
    """Create a directory only this user can enter; refuse one somebody else owns."""
    hint = "Free the path or set the XDG_* variables to a directory of yours."
    with disk_errors("use the directory", directory, hint):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise DllmError(
            f"{directory} is not a directory owned by you",
            "Remove it or set XDG_RUNTIME_DIR to a directory of yours.",
        )
    if status.st_mode & 0o077:
        directory.chmod(0o700)
    return directory


def checked_socket(paths: Paths) -> Path:
    """The socket path, refused when the system cannot bind one that long."""
    if len(os.fsencode(paths.socket)) > SOCKET_PATH_BYTES_MAX:
        raise DllmError(
            f"The socket path {paths.socket} is longer than the system allows "
            f"({SOCKET_PATH_BYTES_MAX} bytes)",
            "Set XDG_RUNTIME_DIR to a shorter directory.",
        )
    return paths.socket


def relay_binary() -> Path:
    override = os.environ.get("DLLM_RELAY")
    folders = (sysconfig.get_path("scripts"), str(Path(sys.executable).parent))
    candidates = [override] if override else [f"{d}/dllm-relay" for d in folders]
    for candidate in (*candidates, which("dllm-relay")):
        if candidate and os.access(candidate, os.X_OK):
            return Path(candidate)
    raise DllmError(
        "The helper program dllm-relay is not installed",
        "Reinstall dllm-tui with pip (it builds the helper), or set DLLM_RELAY.",
    )
