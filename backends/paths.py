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

from backends.errors import DllmError
from backends.state import Value

APP = "dllm-tui"
ENGINE_DIR_VARIABLE = "DLLM_ENGINE_DIR"
"""Names an engine where the settings name none."""
# sockaddr_un.sun_path holds 104 bytes on macOS and 108 on Linux, with the final NUL.
SOCKET_PATH_BYTES_MAX = 103


class Paths(Value, frozen=True, kw_only=True):
    """The directories of one user; nothing here creates them."""

    config_dir: Path
    data_dir: Path
    state_dir: Path
    cache_dir: Path
    runtime_dir: Path

    @property
    def config_file(self) -> Path:
        return self.config_dir / "config.toml"

    @property
    def kept_config_file(self) -> Path:
        """The settings as a controller could last read them."""
        return self.state_dir / "config.last.toml"

    @property
    def console_file(self) -> Path:
        """The console's memory: layout, theme, last plan."""
        return self.state_dir / "console.json"

    @property
    def plans_dir(self) -> Path:
        """Plans saved by name."""
        return self.data_dir / "plans"

    @property
    def launches_dir(self) -> Path:
        """The plans launched last."""
        return self.data_dir / "launches"

    @property
    def chats_dir(self) -> Path:
        return self.state_dir / "chats"

    @property
    def run_dir(self) -> Path:
        return self.state_dir / "run"

    @property
    def clusters_dir(self) -> Path:
        return self.state_dir / "clusters"

    def journal(self, cluster: str) -> Path:
        """A cluster's goal and last measurements."""
        return self.clusters_dir / f"{cluster}.json"

    @property
    def trials_file(self) -> Path:
        return self.state_dir / "trials.json"

    @property
    def speeds_file(self) -> Path:
        """The measured speed of devices and links."""
        return self.state_dir / "speeds.json"

    @property
    def events_dir(self) -> Path:
        return self.state_dir / "events"

    @property
    def keys_file(self) -> Path:
        """The API keys of clients on other machines, hashed."""
        return self.state_dir / "keys.json"

    @property
    def controller_log(self) -> Path:
        return self.state_dir / "controller.log"

    @property
    def head_id_file(self) -> Path:
        """Tells our processes on other machines from those of other heads."""
        return self.state_dir / "head_id"

    @property
    def worker_key_file(self) -> Path:
        """The host key of the machine while it is lent (``dllm-tui worker``)."""
        return self.data_dir / "worker_key"

    @property
    def worker_pairings_file(self) -> Path:
        """The consoles that may use this machine."""
        return self.data_dir / "consoles.json"

    @property
    def lent_dir(self) -> Path:
        """The process directories of consoles that this machine is lent to."""
        return self.state_dir / "lent"

    @property
    def console_key_file(self) -> Path:
        """The key by which machines that were invited know this console."""
        return self.data_dir / "console_key"

    @property
    def engines_dir(self) -> Path:
        return self.cache_dir / "engines"

    @property
    def socket(self) -> Path:
        return self.runtime_dir / "controller.sock"

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

    @property
    def lock(self) -> Path:
        """Held by the one controller of this state; says who and where it is."""
        return self.state_dir / "controller.lock"


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
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise DllmError(
            f"Cannot use the directory {directory} ({error.strerror})",
            "Free the path or set the XDG_* variables to a directory of yours.",
        ) from error
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
