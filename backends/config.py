"""The user's settings: ``config.toml``, read strictly, comments kept on writing."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import msgspec

from backends.errors import DllmError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tomlkit import TOMLDocument

    from backends.paths import Paths

API_PORT_DEFAULT = 8090
_PEER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_NAMES_TAKEN = ("local", "llama-server", "all", "demo")


class PeerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[peers.NAME]`` table: ``ssh`` or ``bare`` says how to reach it."""

    ssh: str | None = None
    """What one would give to ``ssh``: ``mini``, ``ada@10.0.0.7``, ``ada@host:2222``."""
    bare: str | None = None
    """``host:port`` of an rpc-server somebody else started."""
    engine: str | None = None
    """Directory of its llama.cpp. Unset: the one found first that fits."""
    threads: int | None = None
    """Threads of its CPU worker. Unset: its performance cores."""
    memory_gib: dict[str, float] = {}
    """Device name to the most a plan may put there, for example ``{CPU = 12}``."""
    model_dirs: tuple[str, ...] = ()
    """Further folders searched for GGUF files there."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything ``config.toml`` may say; each field's text is its documentation."""

    engine: str | None = None
    """Directory with ``llama-server`` and ``ggml-rpc-server``."""
    api_port: int | None = None
    """Port of the OpenAI-compatible API. Unset: 8090, or the next free one."""
    workers: int = 2
    """Workers started on this machine when a command does not say."""
    ctx_size: int = 4096
    """Context length in tokens."""
    worker_threads: int | None = None
    """Threads of each local worker. Unset: the cores shared out evenly."""
    model_dirs: tuple[str, ...] = ()
    """Further folders searched for GGUF files."""
    theme: str = ""
    """Theme of the console; empty: the one picked last."""
    mouse: bool = True
    """Whether the console takes mouse events."""
    keys: dict[str, str] = {}
    """Binding id to keys, for example ``{"cluster.launch": "f5"}``."""
    peers: dict[str, PeerConfig] = {}
    """Other machines, by the name the console shows."""


def load_config(paths: Paths) -> Config:
    """Read the settings; defaults where the file does not exist.

    Raises:
        DllmError: the file is not TOML, or names a setting or type we do not know.
    """
    file = paths.config_file
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise DllmError(f"Cannot read {file} ({error.strerror})") from error
    try:
        return _checked(msgspec.toml.decode(raw, type=Config))
    except (msgspec.DecodeError, ValueError) as error:
        raise DllmError(
            f"{file} is not valid: {error}", "Mend or remove that setting."
        ) from error


def _checked(config: Config) -> Config:
    """Refuse numbers that cannot be meant."""
    limits = {
        "api_port": (config.api_port, 1, 65535),
        "workers": (config.workers, 1, 16),
        "ctx_size": (config.ctx_size, 16, 1 << 24),
        "worker_threads": (config.worker_threads, 1, 1024),
    }
    for name, (value, low, high) in limits.items():
        if value is not None and not low <= value <= high:
            raise ValueError(f"{name} = {value} is outside {low}…{high}")
    for name, peer in config.peers.items():
        if bool(peer.ssh) == bool(peer.bare):
            raise ValueError(f"peers.{name} needs either ssh or bare")
    return config


def set_value(paths: Paths, key: str, value: object) -> None:
    """Write one setting; the user's comments and order stay as they are.

    Raises:
        DllmError: the file cannot be parsed or written.
    """
    _edit(paths, lambda document: document.__setitem__(key, value))


def put_peer(paths: Paths, name: str, peer: PeerConfig) -> None:
    """Write one ``[peers.NAME]`` table in place of the one there may be.

    Raises:
        UsageError: the name cannot be used.
        DllmError: the file cannot be parsed or written.
    """
    import tomlkit

    check_peer_name(name)
    table = tomlkit.table()
    for key, value in msgspec.to_builtins(peer).items():
        if value:
            table[key] = value

    def put(document: TOMLDocument) -> None:
        if "peers" not in document:
            document["peers"] = tomlkit.table(is_super_table=True)
        document["peers"][name] = table

    _edit(paths, put)


def drop_peer(paths: Paths, name: str) -> None:
    """Remove one ``[peers.NAME]`` table; fine when there is none.

    Raises:
        DllmError: the file cannot be parsed or written.
    """

    def drop(document: TOMLDocument) -> None:
        peers = document.get("peers", {})
        peers.pop(name, None)
        if not peers:
            document.pop("peers", None)

    _edit(paths, drop)


def check_peer_name(name: str) -> str:
    """The name itself, where it can name a process directory and a device.

    Raises:
        UsageError: it cannot, or is one of ours.
    """
    if not _PEER_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a peer's name",
            "Use up to 32 letters, digits, dots, dashes and underscores.",
        )
    if name in _NAMES_TAKEN or name.startswith(("relay-", "worker")):
        raise UsageError(f"The name {name} is taken by dllm-tui", "Choose another.")
    return name


def _edit(paths: Paths, change: Callable[[TOMLDocument], object]) -> None:
    """Change the file and write it back, if it is valid then."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    file = paths.config_file
    try:
        document = tomlkit.parse(file.read_text() if file.exists() else "")
        change(document)
        content = tomlkit.dumps(document).encode()
        _checked(msgspec.toml.decode(content, type=Config))
        write_private(file, content)
    except TOMLKitError as error:
        raise DllmError(
            f"{file} is not valid TOML: {error}", "Mend it first."
        ) from error
    except (msgspec.DecodeError, ValueError) as error:
        raise DllmError(f"{file} is not valid: {error}", "Mend it first.") from error
    except OSError as error:
        raise DllmError(f"Cannot write {file} ({error.strerror})") from error


def write_private(file: Path, content: bytes) -> None:
    """Replace a file atomically, readable by its owner only.

    Raises:
        OSError: the directory or disk refuses it; the old file is untouched.
    """
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
