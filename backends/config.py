"""``config.toml``: read strictly, checked line by line, changed with comments kept."""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from backends.direct_address import wrong_place
from backends.errors import DllmError, UsageError, did_you_mean
from backends.machine_names import is_taken
from backends.paths import ENGINE_DIR_VARIABLE, Paths
from backends.state import PairMode, Value
from backends.writing import try_lock, write_private

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

API_PORT_DEFAULT = 8090
LOCK_TRIES = 500
_PEER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_COMMENTS_AT_END = re.compile(r"(?:[ \t]*#[^\n]*\n)*\Z")


LIMITS = {
    "api_port": (1, 65535),
    "api_request_mib": (1, 1024),
    "api_wait_s": (1, 86400),
    "api_drain_s": (0, 86400),
    "join_port": (1, 65535),
    "workers": (1, 15),
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
    """One ``[peers.NAME]`` table; ``ssh``, ``bare`` or ``worker`` is the way to it."""

    ssh: str | None = None
    """The argument for ``ssh``: ``mini``, ``ada@10.0.0.7``, ``ada@host:2222``."""
    bare: str | None = None
    """``host:port`` of an rpc-server somebody else started."""
    worker: str | None = None
    """Places of its ``dllm-tui worker`` (``10.0.0.7:50080``), or ``dials``: it dials
    this console."""
    host_key: str | None = None
    """The public key of that worker, kept when it was paired."""
    quic: str | None = None
    """Its node id, addresses and relay, where it can be reached by QUIC, too."""
    via: str | None = None
    """The SSH host through which that worker is reached where no other way goes."""
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
    join_port: int = 50070
    """Port at which invited machines dial this console (``peers invite``)."""
    gossip: bool = True
    """Your consoles tell each other of the machines that they reach by SSH."""
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
    keep_awake: bool = False
    """Hold the machines of a cluster awake while it runs."""
    model_dirs: tuple[str, ...] = ()
    """Further folders searched for GGUF files."""
    theme: str = ""
    """Theme of the console; empty: the one picked last."""
    readonly: bool = False
    """Only watch: console and commands refuse what would change anything."""
    mouse: bool = True
    """True if the console takes mouse events."""
    pulse: bool = True
    """True if a pulse runs over the split bar while tokens come."""
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
    """Read the settings, or a copy of them; defaults where there is no file."""
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
    for name, (low, high) in LIMITS.items():
        if not is_within(name, value := getattr(config, name)):
            raise ValueError(f"{name} = {value} is outside {low}…{high}")
    if not is_within("api_host", config.api_host):
        raise ValueError(f"api_host = {config.api_host} is no address")
    for name, peer in config.peers.items():
        if problem := _unreached(*(getattr(peer, key) for key in _REACHED_BY)):
            raise ValueError(f"peers.{name} {problem}")
    return config


def set_value(paths: Paths, key: str, value: object) -> None:
    _change_value(paths, (key,), value)


def _change_value(
    paths: Paths,
    names: Sequence[str],
    value: object,
    check: Callable[[str, str], None] = lambda before, after: None,
) -> None:
    """Write one setting, of a table where it has several names; None takes it out.

    The user's comments and order stay as they are. ``check`` gets the file's text
    as it is and as it would be; it raises if that is wrong.
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
    import tomlkit

    check_peer_name(name)
    table = tomlkit.table()
    for key, value in msgspec.to_builtins(peer).items():
        if value:
            table[key] = value

    def put(document: TOMLDocument) -> str | None:
        wanted = document.unwrap()
        wanted.setdefault("peers", {})[name] = table.unwrap()
        if "peers" not in document:
            document["peers"] = tomlkit.table(is_super_table=True)
        document["peers"][name] = table
        return _as_tables(document, wanted)

    _edit(paths, put)


def move_peer(paths: Paths, name: str, places: Mapping[str, str | None]) -> None:
    """Change where a peer is; a peer that is in the file no more stays away."""

    def move(document: TOMLDocument) -> None:
        table = document.get("peers", {}).get(name)
        if table is not None:
            table.update({key: value for key, value in places.items() if value})

    _edit(paths, move)


def rename_peer(paths: Paths, name: str, new: str) -> None:
    def rename(document: TOMLDocument) -> str | None:
        if name not in document.get("peers", {}):
            raise DllmError(f"{paths.config_file} has no peer {name} any more")
        wanted = document.unwrap()
        wanted["peers"][new] = wanted["peers"].pop(name)
        document["peers"][new] = document["peers"].pop(name)
        return _as_tables(document, wanted)

    _edit(paths, rename)


def _as_tables(document: TOMLDocument, wanted: dict[str, Any]) -> str | None:
    """The text with its peers as tables at the end, unless it says what is wanted.

    Among dotted keys a new table stands before keys of the top level, and takes them.
    """
    import tomlkit

    with suppress(tomllib.TOMLDecodeError):
        if tomllib.loads(tomlkit.dumps(document)) == wanted:
            return None
    document.pop("peers")
    text = tomlkit.dumps(document).rstrip("\n")
    return f"{text}\n\n{tomlkit.dumps({'peers': wanted['peers']})}".lstrip("\n")


def drop_peer(paths: Paths, name: str) -> None:
    def drop(document: TOMLDocument) -> None:
        peers = document.get("peers", {})
        peers.pop(name, None)
        if not peers:
            document.pop("peers", None)

    _edit(paths, drop)


def check_peer_name(name: str) -> str:
    """The name itself, where it can name a process directory and a device."""
    if not _PEER_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a peer's name",
            "Use up to 32 letters, digits, dots, dashes and underscores.",
        )
    if is_taken(name):
        raise UsageError(f"The name {name} is taken by dllm-tui", "Choose another.")
    return name


@contextmanager
def _only_editor(file: Path) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = os.open(file.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if not try_lock(folder, tries=LOCK_TRIES):
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


_NEXT_LAUNCH = (
    *("engine", "api_port", "api_host", "api_certificate", "api_private_key"),
    *("api_request_mib", "api_wait_s", "api_drain_s"),
)
EFFECTS = {
    **dict.fromkeys(_NEXT_LAUNCH, "takes effect at the next launch"),
    "ctx_size_min": "takes effect when a machine is lost",
    "rejoin": "takes effect when a machine is back",
    "workers": "takes effect for the next model picked",
    "ctx_size": "takes effect for the next model picked",
    "worker_threads": "takes effect for the next model picked",
    "pair": "takes effect for the next model picked",
    "gossip": "takes effect within seconds",
    "join_port": "takes effect when the controller starts anew",
    "keep_awake": "takes effect at the next launch",
    "model_dirs": "these folders are searched now",
    "theme": "takes effect now",
    "mouse": "takes effect at the next start of the console",
    "pulse": "takes effect now",
    "keys": "takes effect now",
    "peers": "the peer is looked after anew; in a cluster, once that has ended",
}
"""From when on a change counts, by the setting or its table."""
_TABLES = ("keys", "peers")
_TEXTS = (
    *("engine", "pair", "rejoin", "theme", "ssh", "bare", "data"),
    *("worker", "host_key", "quic", "via"),
    *("api_host", "api_certificate", "api_private_key"),
)
ALLOWED = {
    "engine": "the folder of llama-server, in quotes",
    "api_port": "a port",
    "api_host": 'an address of this machine, in quotes: "0.0.0.0" is every one',
    "api_certificate": "a PEM file, in quotes",
    "api_private_key": "a PEM file that only you can read, in quotes",
    "api_request_mib": "MiB",
    "api_wait_s": "seconds",
    "api_drain_s": "seconds",
    "rejoin": '"idle", "ask" or "never"',
    "join_port": "a port",
    "gossip": "true or false",
    "workers": "a number",
    "ctx_size": "tokens",
    "ctx_size_min": "tokens",
    "worker_threads": "a number",
    "pair": "auto, always or never, in quotes",
    "keep_awake": "true or false",
    "model_dirs": 'folders in quotes: ["/models", "~/more"]',
    "theme": "the name of a theme, in quotes",
    "readonly": "true or false",
    "mouse": "true or false",
    "pulse": "true or false",
    "keep_chats": "true or false",
    "ascii": "true or false",
    "keys": 'a table [keys] of lines such as "cluster.launch" = "f5"',
    "peers": "tables such as [peers.mini]",
    "ssh": 'what one gives to ssh, in quotes: "ada@mini"',
    "bare": 'an address in quotes: "10.0.0.3:50052"',
    "worker": 'places in quotes ("10.0.0.7:50080"), or "dials"; peers add writes it',
    "host_key": 'a public key in quotes: "ssh-ed25519 AAAA…"',
    "quic": "a node id, addresses and a relay, in quotes; peers add writes it",
    "via": 'what one gives to ssh, in quotes, for a worker: "ada@gate"',
    "data": 'in quotes: "auto", "tunnel", or an address there: "10.0.0.7:50060"',
    "threads": "a number",
    "memory_gib": "GiB by device: {CPU = 12.0}",
}
ALLOWED |= {n: f"{ALLOWED[n]}, {low} to {high}" for n, (low, high) in LIMITS.items()}
"""What each setting may be, in words."""
_KEY_PART = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_KEYS = re.compile(rf"\s*({_KEY_PART}(?:\s*\.\s*{_KEY_PART})*)\s*=")
_TABLE = re.compile(rf"\s*\[\s*({_KEY_PART}(?:\s*\.\s*{_KEY_PART})*)\s*\]")
_AT_LINE = re.compile(r"(.*) \(at line (\d+), column \d+\)")

Lines = dict[tuple[str, ...], int]


class Problem(Value, frozen=True, kw_only=True):
    line: int
    """From 1; 0 where no line is to blame."""
    setting: str
    what: str
    hint: str = ""
    """The allowed values, or the likely name."""

    @property
    def sentence(self) -> str:
        return f"{self.what}. {self.hint}".rstrip(". ")


class Setting(Value, frozen=True, kw_only=True):
    name: str
    value: Any
    source: str
    """``default``, ``config.toml``, or the environment variable that names it."""
    line: int = 0
    """Of the file, from 1; 0 where it does not stand there."""
    allowed: str = ""


def read_text(paths: Paths) -> str:
    file = paths.config_file
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise DllmError(f"Cannot read {file} ({why})") from error


def settings(config: Config, text: str) -> list[Setting]:
    lines = lines_by_key(text)
    found = []
    for names, value in _leaves(config):
        line = lines.get(names, 0)
        found.append(
            Setting(
                name=".".join(names),
                value=value,
                source="config.toml" if line else "default",
                line=line,
                allowed=ALLOWED.get(names[-1], ""),
            )
        )
    return [_of_environment(setting) for setting in found]


def _leaves(config: Config) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in msgspec.structs.asdict(config).items():
        if name == "keys":
            yield from (((name, key), keys) for key, keys in value.items())
        elif name == "peers":
            for peer, told in value.items():
                facts = msgspec.structs.asdict(told).items()
                yield from (((name, peer, key), fact) for key, fact in facts if fact)
        else:
            yield (name,), value


class SettingsFile:
    """The settings of one user, to be shown and changed one by one."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    @property
    def name(self) -> str:
        return str(self._paths.config_file)

    def config(self) -> Config:
        return load_config(self._paths)

    def read(self) -> list[Setting]:
        return settings(self.config(), read_text(self._paths))

    def change(
        self, name: str, text: str | None, check: Callable[[str], list[Problem]]
    ) -> None:
        """Set one setting to what a person typed; None brings its default back."""
        names = _names_of(name)
        value = None if text is None else _typed(names[-1], names[0], text)

        def nothing_new(before: str, after: str) -> None:
            known = {(one.setting, one.what) for one in check(before)}
            for one in check(after):
                if (one.setting, one.what) not in known:
                    raise UsageError(one.what, one.hint)

        _change_value(self._paths, names, value, nothing_new)


def _names_of(name: str) -> tuple[str, ...]:
    first, _, rest = name.partition(".")
    if first == "keys" and rest:
        return first, rest
    if first == "peers" and "." in rest:
        peer, _, setting = rest.rpartition(".")
        return first, peer, setting
    known = [field for field in Config.__struct_fields__ if field not in _TABLES]
    if name not in known:
        raise UsageError(
            f"There is no setting {name}",
            f"{did_you_mean(name, known)}Settings: {', '.join(known)}, "
            "keys.ACTION, peers.NAME.SETTING.",
        )
    return (name,)


def _typed(setting: str, table: str, text: str) -> object:
    text = text.strip()
    if table == "keys" or setting in _TEXTS:
        return _toml(text) if text[:1] in "\"'" and text else text
    value = _toml(text)
    if setting == "model_dirs" and isinstance(value, str):
        return [folder.strip() for folder in value.split(",") if folder.strip()]
    return value


def _toml(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _of_environment(setting: Setting) -> Setting:
    folder = os.environ.get(ENGINE_DIR_VARIABLE)
    if setting.name != "engine" or setting.value or not folder:
        return setting
    return msgspec.structs.replace(setting, value=folder, source=ENGINE_DIR_VARIABLE)


def problems(text: str) -> list[Problem]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return [_syntax(str(error))]
    lines = lines_by_key(text)
    peers = data.pop("peers", {})
    found = [
        Problem(line=lines.get(names, 0), setting=".".join(names), what=what, hint=hint)
        for names, what, hint in (*_wrong(Config, data), *_wrong_peers(peers))
    ]
    return sorted(found, key=lambda problem: problem.line)


def _syntax(error: str) -> Problem:
    told = _AT_LINE.fullmatch(error)
    what, line = (told[1], int(told[2])) if told else (error, 0)
    return Problem(
        line=line,
        setting="",
        what=f"This is not TOML: {what}",
        hint='Write lines such as workers = 2 or theme = "dllm-dark"',
    )


_Wrong = tuple[tuple[str, ...], str, str]
"""The names of a setting, what is wrong with it, and what is allowed."""


def _wrong(
    kind: type[msgspec.Struct], data: Mapping[str, Any], *above: str
) -> Iterator[_Wrong]:
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for name, value in data.items():
        names = (*above, name)
        shown = ".".join(names)
        if name not in fields:
            known = f"{did_you_mean(name, fields)}Settings here: {', '.join(fields)}"
            yield names, f"There is no setting {shown}", known
        elif not _fits(name, value, fields[name].type):
            yield names, f"{shown} cannot be {value!r}", f"Allowed: {ALLOWED[name]}"


def _fits(name: str, value: object, kind: Any) -> bool:
    try:
        converted = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return is_within(name, converted)


def _wrong_peers(peers: object) -> Iterator[_Wrong]:
    tables = f"Allowed: {ALLOWED['peers']}"
    if not isinstance(peers, dict):
        yield ("peers",), f"peers cannot be {peers!r}", tables
        return
    for name, told in peers.items():
        names, shown = ("peers", name), f"peers.{name}"
        try:
            check_peer_name(name)
        except UsageError as error:
            yield names, error.what, error.hint
        if not isinstance(told, dict):
            yield names, f"{shown} is no table", tables
            continue
        yield from _wrong(PeerConfig, told, *names)
        if wrong := wrong_place(told.get("data")):
            yield (*names, "data"), wrong.what, wrong.hint
        if problem := _unreached(*map(told.get, _REACHED_BY)):
            hint = "; ".join(f"{key}: {ALLOWED[key]}" for key in _REACHED_BY)
            yield names, f"{shown} {problem}", hint


_REACHED_BY = ("ssh", "bare", "worker", "host_key", "via")


def _unreached(
    ssh: object, bare: object, worker: object, host_key: object, via: object
) -> str:
    if sum(map(bool, (ssh, bare, worker))) != 1:
        return "needs either ssh, bare or worker"
    if bool(worker) != bool(host_key):
        return "needs worker and host_key together"
    if via and (not worker or worker == "dials"):
        return "needs for via the places of a worker"
    return ""


def lines_by_key(text: str) -> Lines:
    found: Lines = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            table = _path(header[1])
            found.setdefault(table, number)
        elif key := _KEYS.match(line):
            names = (*table, *_path(key[1]))
            for end in range(len(table) + 1, len(names) + 1):
                found.setdefault(names[:end], number)
    return found


def _path(key: str) -> tuple[str, ...]:
    parts = re.findall(_KEY_PART, key)
    return tuple(p[1:-1] if p[0] in "\"'" else p for p in parts)
