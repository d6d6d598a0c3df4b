"""The user's settings: ``config.toml``, read strictly, comments kept on writing."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from backends.errors import DllmError, UsageError
from backends.state import PairMode
from backends.writing import write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tomlkit import TOMLDocument

    from backends.paths import Paths

API_PORT_DEFAULT = 8090
LOCK_TRIES = 100
LOCK_PAUSE_S = 0.02
_PEER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_COMMENTS_AT_END = re.compile(r"(?:[ \t]*#[^\n]*\n)*\Z")
_NAMES_TAKEN = ("local", "llama-server", "api-gateway", "all", "demo")


LIMITS = {
    "api_port": (1, 65535),
    "api_request_mib": (1, 1024),
    "api_wait_s": (1, 86400),
    "api_drain_s": (0, 86400),
    "workers": (1, 16),
    "ctx_size": (16, 1 << 24),
    "ctx_size_min": (16, 1 << 24),
    "worker_threads": (1, 1024),
}
"""The least and the most that a number may be."""


def is_within(name: str, value: Any) -> bool:
    """True if a setting is unset, has no limits, or keeps within them."""
    if name == "api_host":
        return _is_address(value)
    if value is None or name not in LIMITS:
        return True
    low, high = LIMITS[name]
    return bool(low <= value <= high)


def _is_address(text: str) -> bool:
    try:
        return "%" not in str(ipaddress.ip_address(text))
    except ValueError:
        return False


class PeerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[peers.NAME]`` table: ``ssh`` or ``bare`` says how to reach it."""

    ssh: str | None = None
    """The argument for ``ssh``: ``mini``, ``ada@10.0.0.7``, ``ada@host:2222``."""
    bare: str | None = None
    """``host:port`` of an rpc-server somebody else started."""
    data: str | None = None
    """The route of data to its worker: ``auto`` (directly if it can), ``tunnel``, or
    the address there at which the relay listens (``10.0.0.7``, ``10.0.0.7:50060``)."""
    engine: str | None = None
    """Directory of its llama.cpp. Unset: the one found first that fits."""
    threads: int | None = None
    """Threads of its CPU worker. Unset: its performance cores."""
    memory_gib: dict[str, float] = {}
    """Device name to the most a plan may put there, for example ``{CPU = 12}``."""
    model_dirs: tuple[str, ...] = ()
    """Further folders searched for GGUF files there."""

    def budget_bytes(self, device: str) -> int | None:
        """The most a plan may put on a device; None: all that is free."""
        gib = self.memory_gib.get(device)
        return None if gib is None else int(gib * (1 << 30))


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything ``config.toml`` may say; each field's text is its documentation."""

    engine: str | None = None
    """Directory with ``llama-server`` and ``ggml-rpc-server``."""
    api_port: int | None = None
    """Port of the OpenAI-compatible API. Unset: 8090, or the next free one."""
    api_host: str = "127.0.0.1"
    """Address the API listens at besides the loopback; another one demands keys."""
    api_certificate: str | None = None
    """Certificate (PEM, with its chain) of the API. Unset: no TLS."""
    api_private_key: str | None = None
    """Private key of that certificate (PEM), readable by its owner alone."""
    api_request_mib: int = 16
    """Longest request to the API, in MiB; longer ones are refused."""
    api_wait_s: int = 300
    """Longest wait of a request to the API, in seconds, while no model serves."""
    api_drain_s: int = 60
    """Longest wait of a new split, in seconds, for answers that it would break."""
    rejoin: Literal["idle", "ask", "never"] = "idle"
    """When a machine that was lost and did without is used again, once it is back."""
    workers: int = 2
    """Workers started on this machine when a command does not say."""
    ctx_size: int = 4096
    """Context length in tokens."""
    ctx_size_min: int | None = None
    """Shortest context to go on with when a machine is lost. Unset: the plan's own."""
    worker_threads: int | None = None
    """Threads of each local worker. Unset: the cores shared out evenly."""
    pair: PairMode = PairMode.AUTO
    """Relays in pairs: ``auto`` with workers on other machines, ``always`` with those
    here too, ``never``."""
    model_dirs: tuple[str, ...] = ()
    """Further folders searched for GGUF files."""
    theme: str = ""
    """Theme of the console; empty: the one picked last."""
    readonly: bool = False
    """Only watch: console and commands refuse what would change anything."""
    mouse: bool = True
    """True if the console takes mouse events."""
    keep_chats: bool = True
    """True if conversations are kept on disk; false: in the controller's memory only.
    """
    ascii: bool = False
    """True if the console draws with ASCII signs alone."""
    keys: dict[str, str] = {}
    """Binding id to keys, for example ``{"cluster.launch": "f5"}``."""
    peers: dict[str, PeerConfig] = {}
    """Other machines, by the name the console shows."""


Stamp = tuple[int, int, int]
"""Inode, bytes and modification time in ns: equal means unchanged."""


def stamp_of(file: Path) -> Stamp | None:
    """Tells whether a file is another than before; None where there is none."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def load_config(paths: Paths, file: Path | None = None) -> Config:
    """Read the settings, or a copy of them; defaults where there is no file.

    Raises:
        DllmError: the file is not TOML, or names a setting or type we do not know.
    """
    file = file or paths.config_file
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        return Config()
    except OSError as error:
        raise DllmError(f"Cannot read {file} ({error.strerror})") from error
    try:
        return _checked(msgspec.toml.decode(raw, type=Config))
    except (ValueError, RecursionError) as error:
        raise _invalid(file, raw, error) from error


def _invalid(file: Path, raw: bytes, error: Exception) -> DllmError:
    """The first thing that is wrong, its line, and what is allowed."""
    # Imported here because it needs this module, and a valid file needs it not.
    from backends.settings import problems

    found = problems(raw.decode(errors="replace"))
    if not found:
        return DllmError(f"{file} is not valid: {error}", "Mend that setting.")
    first = found[0]
    more = f" dllm-tui config check tells all {len(found)}." if len(found) > 1 else ""
    return DllmError(
        f"{file} is not valid: line {first.line}: {first.what}",
        f"{first.hint.rstrip('.')}.{more}",
    )


def _checked(config: Config) -> Config:
    """Refuse numbers that cannot be meant."""
    for name, (low, high) in LIMITS.items():
        if not is_within(name, value := getattr(config, name)):
            raise ValueError(f"{name} = {value} is outside {low}…{high}")
    if not is_within("api_host", config.api_host):
        raise ValueError(f"api_host = {config.api_host} is no address")
    for name, peer in config.peers.items():
        if bool(peer.ssh) == bool(peer.bare):
            raise ValueError(f"peers.{name} needs either ssh or bare")
    return config


def set_value(paths: Paths, key: str, value: object) -> None:
    """Write one setting; the user's comments and order stay as they are.

    Raises:
        DllmError: the file cannot be parsed or written.
    """
    change_value(paths, (key,), value, lambda before, after: None)


def change_value(
    paths: Paths,
    names: Sequence[str],
    value: object,
    check: Callable[[str, str], None],
) -> None:
    """Write one setting, of a table where it has several names; None takes it out.

    The user's comments and order stay as they are. ``check`` is given the file's text
    as it is and as it would be, and raises what it has against it.

    Raises:
        DllmError: the file cannot be parsed or written.
    """
    import tomlkit

    def change(document: TOMLDocument) -> str | None:
        *above, last = names
        if not above and last not in document and value is not None:
            return _with_line(document, tomlkit.dumps({last: value}))
        table: Any = document
        for name in above:
            if name not in table and value is None:
                return None
            table = table.setdefault(name, tomlkit.table())
        if value is None:
            table.pop(last, None)
        else:
            table[last] = value
        return None

    _edit(paths, change, check)


def _with_line(document: TOMLDocument, line: str) -> str:
    """The text with a new setting before the tables and the comments above them."""
    import tomlkit
    from tomlkit.items import InlineTable

    text = tomlkit.dumps(document)
    bare = tomlkit.parse(text)
    for name, value in tuple(bare.items()):
        if isinstance(value, dict) and not isinstance(value, InlineTable):
            bare.remove(name)
    top = tomlkit.dumps(bare)
    if top == text:
        return f"{text}\n{line}" if text and not text.endswith("\n") else text + line
    above = _COMMENTS_AT_END.search(top) if text.startswith(top) else None
    at = above.start() if above else 0
    return f"{text[:at]}{line}\n{text[at:]}"


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


@contextmanager
def _only_editor(file: Path) -> Iterator[None]:
    """Keep other programs of ours from changing the file meanwhile."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = os.open(file.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _ in range(LOCK_TRIES):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(LOCK_PAUSE_S)
        else:
            raise DllmError(f"Another program is changing {file}", "Try again.")
        yield
    finally:
        os.close(folder)


def _edit(
    paths: Paths,
    change: Callable[[TOMLDocument], str | None],
    check: Callable[[str, str], None] = lambda before, after: None,
) -> None:
    """Change the file and write it back, if it is valid then.

    ``change`` works on the document, or returns the whole text in its place.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    file = paths.config_file
    try:
        with _only_editor(file):
            before = file.read_text() if file.exists() else ""
            document = tomlkit.parse(before)
            text = change(document)
            after = tomlkit.dumps(document) if text is None else text
            check(before, after)
            content = after.encode()
            _checked(msgspec.toml.decode(content, type=Config))
            # A link to a file kept elsewhere stays one.
            write_private(file.resolve(), content)
    except TOMLKitError as error:
        raise DllmError(
            f"{file} is not valid TOML: {error}", "Mend it first."
        ) from error
    except (ValueError, RecursionError) as error:
        raise DllmError(f"{file} is not valid: {error}", "Mend it first.") from error
    except OSError as error:
        raise DllmError(f"Cannot write {file} ({error.strerror})") from error
