"""Where to connect: what one would give to ``ssh``."""

from __future__ import annotations

import re
import shlex
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING

from backends.errors import UsageError
from backends.state import Value

if TYPE_CHECKING:
    from collections.abc import Iterator

DEFAULT_PORT = 22

_SCHEME = "ssh://"
_HINT = "Give what you would give to ssh: mini, ada@mini, ada@10.0.0.7:2222."
# OpenSSH refuses these too: a ProxyCommand may hand a name to a shell.
_FORBIDDEN = re.compile(r"[\s\x00-\x1f\x7f'\"`$\\;&<>|(){}*?!,/#]")
_INCLUDE_DEPTH = 16


class Destination(Value, frozen=True, kw_only=True):
    """A host, or an alias of the ssh config, with what overrides the config."""

    host: str
    """Name or address, without brackets."""
    user: str = ""
    """Empty: as the config says, else the local user."""
    port: int | None = None

    def __str__(self) -> str:
        """The shortest text that parses to the same."""
        bracketed = self.port is not None and ":" in self.host
        host = f"[{self.host}]" if bracketed else self.host
        user = f"{self.user}@" if self.user else ""
        return f"{user}{host}" + ("" if self.port is None else f":{self.port}")

    @classmethod
    def parse(cls, text: str) -> Destination:
        """Read ``[ssh://][user@]host[:port]``; an IPv6 address with a port in brackets.

        Raises:
            UsageError: it cannot be a destination, or could be mistaken for an option.
        """
        rest = text.strip()
        if rest.lower().startswith(_SCHEME):
            rest = rest[len(_SCHEME) :].removesuffix("/")
        user, at, place = rest.rpartition("@")
        if at:
            _check(text, user, "user")
        host, port = _split_port(text, place)
        _check(text, host, "host")
        return cls(host=host, user=user, port=port)


def configured_names(config_file: Path | None = None) -> list[str]:
    """Aliases of an ssh config in its order, for a pick list; patterns are left out.

    Follows ``Include`` as OpenSSH does; what cannot be read is passed over. Blocks for
    as long as reading a few small files takes.
    """
    start = config_file or Path.home() / ".ssh" / "config"
    names = (
        name for words in _host_lines(start, _INCLUDE_DEPTH) for name in words if name
    )
    return list(dict.fromkeys(name for name in names if _is_name(name)))


def _split_port(text: str, place: str) -> tuple[str, int | None]:
    if place.startswith("["):
        host, closing, rest = place[1:].partition("]")
        if not closing or (rest and not rest.startswith(":")):
            raise _cannot_be(text, "the bracket is not closed")
        return host, _port(text, rest[1:]) if rest else None
    if place.count(":") == 1:
        host, _, digits = place.partition(":")
        return host, _port(text, digits)
    return place, None


def _port(text: str, digits: str) -> int:
    if not (digits.isascii() and digits.isdigit() and 0 < int(digits) < 65536):
        raise _cannot_be(text, f"{digits!r} is no port")
    return int(digits)


def _check(text: str, part: str, what: str) -> None:
    if not part:
        raise _cannot_be(text, f"it names no {what}")
    if part.startswith("-"):
        raise _cannot_be(text, f"a {what} cannot start with a dash")
    if found := _FORBIDDEN.search(part):
        raise _cannot_be(text, f"{found[0]!r} cannot be in a {what}")


def _cannot_be(text: str, why: str) -> UsageError:
    return UsageError(f"{text!r} cannot be a machine: {why}", _HINT)


def _is_name(name: str) -> bool:
    return not name.startswith("-") and not _FORBIDDEN.search(name)


def _host_lines(path: Path, depth: int) -> Iterator[list[str]]:
    for keyword, values in _settings(path):
        if keyword == "host":
            yield values
        elif keyword == "include" and depth:
            for included in _included(values):
                yield from _host_lines(included, depth - 1)


def _settings(path: Path) -> Iterator[tuple[str, list[str]]]:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        words = _words(line)
        if words:
            yield words[0].lower(), words[1:]


def _words(line: str) -> list[str]:
    found = re.match(r"\s*([A-Za-z]+)(?:\s*=\s*|\s+)(.*)", line)
    if found is None:
        return []
    try:
        return [found[1], *shlex.split(found[2], comments=True)]
    except ValueError:
        return []


def _included(patterns: list[str]) -> Iterator[Path]:
    for pattern in patterns:
        path = Path(pattern).expanduser()
        absolute = path if path.is_absolute() else Path.home() / ".ssh" / path
        yield from (Path(found) for found in sorted(glob(str(absolute))))
