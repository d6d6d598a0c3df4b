"""The settings one by one: value, where it comes from, and what is wrong, by line."""

from __future__ import annotations

import os
import re
import tomllib
from typing import TYPE_CHECKING, Any

import msgspec

from backends.config import (
    LIMITS,
    Config,
    PeerConfig,
    change_value,
    check_peer_name,
    is_within,
    load_config,
)
from backends.data_place import wrong_place
from backends.errors import DllmError, UsageError, did_you_mean
from backends.paths import ENGINE_DIR_VARIABLE
from backends.state import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from backends.paths import Paths

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
    "model_dirs": "these folders are searched now",
    "theme": "takes effect now",
    "mouse": "takes effect at the next start of the console",
    "keys": "takes effect now",
    "peers": "the peer is looked after anew; in a cluster, once that has ended",
}
"""From when on a change counts, by the setting or its table."""
_TABLES = ("keys", "peers")
_TEXTS = (
    *("engine", "pair", "rejoin", "theme", "ssh", "bare", "data"),
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
    "workers": "a number",
    "ctx_size": "tokens",
    "ctx_size_min": "tokens",
    "worker_threads": "a number",
    "pair": "auto, always or never, in quotes",
    "model_dirs": 'folders in quotes: ["/models", "~/more"]',
    "theme": "the name of a theme, in quotes",
    "readonly": "true or false",
    "mouse": "true or false",
    "keep_chats": "true or false",
    "ascii": "true or false",
    "keys": 'a table [keys] of lines such as "cluster.launch" = "f5"',
    "peers": "tables such as [peers.mini]",
    "ssh": 'what one gives to ssh, in quotes: "ada@mini"',
    "bare": 'an address in quotes: "10.0.0.3:50052"',
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
    """Something in ``config.toml`` that cannot be meant."""

    line: int
    """From 1; 0 where no line is to blame."""
    setting: str
    what: str
    hint: str = ""
    """The allowed values, or the likely name."""

    @property
    def sentence(self) -> str:
        """The fault, and the text to write instead."""
        return f"{self.what}. {self.hint}".rstrip(". ")


class Setting(Value, frozen=True, kw_only=True):
    """One setting as it counts now."""

    name: str
    value: Any
    source: str
    """``default``, ``config.toml``, or the environment variable that names it."""
    line: int = 0
    """Of the file, from 1; 0 where it does not stand there."""
    allowed: str = ""


def read_text(paths: Paths) -> str:
    """The text of the file; empty if there is none.

    Raises:
        DllmError: it cannot be read.
    """
    file = paths.config_file
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise DllmError(f"Cannot read {file} ({why})") from error


def settings(config: Config, text: str) -> list[Setting]:
    """Every setting with its source; peers and keys one by one."""
    lines = lines_of(text)
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
        """Their place in the file."""
        return str(self._paths.config_file)

    def config(self) -> Config:
        """The settings as they are now.

        Raises:
            DllmError: the file cannot be read, or is not valid.
        """
        return load_config(self._paths)

    def read(self) -> list[Setting]:
        """Every setting with its source.

        Raises:
            DllmError: the file cannot be read, or is not valid.
        """
        return all_settings(self._paths)

    def change(
        self, name: str, text: str | None, check: Callable[[str], list[Problem]]
    ) -> None:
        """Set one of them, or bring its default back: see ``change``."""
        change(self._paths, name, text, check)


def all_settings(paths: Paths) -> list[Setting]:
    """Every setting as the file and the environment give it.

    Raises:
        DllmError: the file cannot be read, or is not valid.
    """
    return settings(load_config(paths), read_text(paths))


def change(
    paths: Paths,
    name: str,
    text: str | None,
    check: Callable[[str], list[Problem]],
) -> None:
    """Set one setting to what a person typed; None brings its default back.

    ``check`` tells all that is wrong with a file's text, as ``config check`` does.

    Raises:
        UsageError: there is no such setting, or it cannot be that.
        DllmError: the file is not valid as it is, or cannot be written.
    """
    names = _names_of(name)
    value = None if text is None else _typed(names[-1], names[0], text)

    def nothing_new(before: str, after: str) -> None:
        known = {(one.setting, one.what) for one in check(before)}
        for one in check(after):
            if (one.setting, one.what) not in known:
                raise UsageError(one.what, one.hint)

    change_value(paths, names, value, nothing_new)


def _names_of(name: str) -> tuple[str, ...]:
    """``keys.cluster.launch`` as its table and what stands in it."""
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
    """The value of a text: TOML, but texts and folders need no quotes."""
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
    """Everything that is wrong with a file's text, in the order of its lines."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return [_syntax(str(error))]
    lines = lines_of(text)
    peers = data.pop("peers", {})
    found = [*_wrong(Config, data, (), lines), *_wrong_peers(peers, lines)]
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


def _wrong(
    kind: type[msgspec.Struct],
    data: Mapping[str, Any],
    above: tuple[str, ...],
    lines: Lines,
) -> Iterator[Problem]:
    """The problems of one table: unknown settings and impossible values."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    for name, value in data.items():
        names = (*above, name)
        line = lines.get(names, 0)
        shown = ".".join(names)
        if name not in fields:
            guess = did_you_mean(name, fields)
            known = f"{guess}Settings here: {', '.join(fields)}"
            what = f"There is no setting {shown}"
            yield Problem(line=line, setting=shown, what=what, hint=known)
        elif not _fits(name, value, fields[name].type):
            what = f"{shown} cannot be {value!r}"
            yield Problem(line=line, setting=shown, what=what, hint=_allowed(name))


def _allowed(name: str) -> str:
    return f"Allowed: {ALLOWED[name]}"


def _fits(name: str, value: object, kind: Any) -> bool:
    try:
        converted = msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return is_within(name, converted)


def _wrong_peers(peers: object, lines: Lines) -> Iterator[Problem]:
    if not isinstance(peers, dict):
        line, what = lines.get(("peers",), 0), f"peers cannot be {peers!r}"
        yield Problem(line=line, setting="peers", what=what, hint=_allowed("peers"))
        return
    for name, told in peers.items():
        yield from _wrong_peer(name, told, lines)


def _wrong_peer(name: str, told: object, lines: Lines) -> Iterator[Problem]:
    names = ("peers", name)
    line, shown = lines.get(names, 0), f"peers.{name}"
    try:
        check_peer_name(name)
    except UsageError as error:
        yield Problem(line=line, setting=shown, what=error.what, hint=error.hint)
    if not isinstance(told, dict):
        what = f"{shown} is no table"
        yield Problem(line=line, setting=shown, what=what, hint=_allowed("peers"))
        return
    yield from _wrong(PeerConfig, told, names, lines)
    if wrong := wrong_place(told.get("data")):
        at, data = lines.get((*names, "data"), 0), f"{shown}.data"
        yield Problem(line=at, setting=data, what=wrong.what, hint=wrong.hint)
    if bool(told.get("ssh")) == bool(told.get("bare")):
        yield Problem(
            line=line,
            setting=shown,
            what=f"{shown} needs either ssh or bare",
            hint=f"ssh: {ALLOWED['ssh']}; bare: {ALLOWED['bare']}",
        )


def lines_of(text: str) -> Lines:
    """The line, from 1, where each setting and table begins."""
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
