"""YAML of clients, changed by lines: all that is not ours stays as it is.

What we add to a list stands between two comments, by which it is found again.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from backends.errors import DllmError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_VALUE = r"""(?P<value>[ \t]*(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\n]|'')*'|.*?))"""
_COMMENT = r"(?:[ \t]+#.*|[ \t\r]*)"
_MORE_LINES = re.compile(r"\s*\n(?:[ \t]+[^\s#]|- )")
_FIRST_INDENT = re.compile(r"^(?P<indent> *)-(?: |$)", re.MULTILINE)


def scalar(value: object) -> str:
    """A value on one line: every JSON text is YAML too."""
    return json.dumps(value, ensure_ascii=False)


def with_settings(text: str, settings: Mapping[str, object]) -> str:
    """A flat file with these settings, each in its own line.

    Raises:
        DllmError: it is written in a way that cannot be added to by lines.
    """
    _require_lines(text)
    for name, value in settings.items():
        line = f"{name}: {scalar(value)}"
        there = _setting(name).search(text)
        if there is None:
            text = f"{_ended(text)}{line}\n"
        elif _MORE_LINES.match(text, there.end()):
            raise DllmError(f"{name} stands there in several lines")
        else:
            text = text[: there.start()] + line + text[there.end("value") :]
    return text


def _setting(name: str) -> re.Pattern[str]:
    """Its line; what follows its value, a comment, is no part of that."""
    quoted = rf"""(?:{re.escape(name)}|"{re.escape(name)}"|'{re.escape(name)}')"""
    return re.compile(rf"^{quoted}[ \t]*:{_VALUE}{_COMMENT}$", re.MULTILINE)


def _require_lines(text: str) -> None:
    """See that what is added at the end, in lines, belongs to what is there.

    Raises:
        DllmError: it would not.
    """
    lines = [line for line in text.splitlines() if line.split("#")[0].strip()]
    if any(line.startswith("...") for line in lines):
        raise DllmError("its document is ended by three dots")
    if next(iter(lines), "").lstrip()[:1] in ("{", "["):
        raise DllmError("it is written in braces or brackets")


def without_settings(text: str, settings: Mapping[str, object]) -> str:
    """A flat file without these lines, where they say just that."""
    lines = {f"{name}: {scalar(value)}" for name, value in settings.items()}
    kept = (one for one in text.splitlines(keepends=True) if one.rstrip() not in lines)
    return "".join(kept)


def with_entry(text: str, lines: Iterable[str], mark: str) -> str:
    """A file that is one list, with this entry of ours at its end.

    Raises:
        DllmError: it is written in a way that cannot be added to by lines.
    """
    text = "" if text.strip() == "[]" else _without(text, mark)
    _require_lines(text)
    return _ended(text) + _block(lines, mark, _indent(text, ""))


def with_entry_below(text: str, key: str, lines: Iterable[str], mark: str) -> str:
    """A file with this entry of ours at the head of the list below a key.

    Raises:
        DllmError: the list is written in a way that cannot be added to by lines.
    """
    text = _without(text, mark)
    _require_lines(text)
    at = re.search(rf"^{re.escape(key)}:[ \t]*(?P<rest>[^\n]*)\n?", text, re.MULTILINE)
    if at is None:
        return f"{_ended(text)}{key}:\n{_block(lines, mark, '  ')}"
    rest = at["rest"].partition("#")[0].strip()
    if rest not in ("", "[]"):
        raise DllmError(f"the list {key} stands in one line")
    after = text[at.end() :]
    indent = "  " if rest else _indent(after, "  ")
    head = text[: at.start()] + (at[0] if not rest else f"{key}:\n")
    return f"{_ended(head)}{_block(lines, mark, indent)}{after}"


def _indent(after: str, usual: str) -> str:
    """How far the entries of a list stand in, told by its first."""
    lines = (line for line in after.splitlines() if line.split("#")[0].strip())
    first = next(lines, "")
    found = _FIRST_INDENT.match(first)
    return found["indent"] if found else usual


def _without(text: str, mark: str) -> str:
    begin, end = (re.escape(one) for one in _marks(mark))
    ours = re.compile(rf"^ *{begin}\r?\n(?:.*\n)*? *{end}\r?\n?", re.MULTILINE)
    return ours.sub("", text)


def _block(lines: Iterable[str], mark: str, indent: str) -> str:
    begin, end = _marks(mark)
    return "".join(f"{indent}{line}\n" for line in (begin, *lines, end))


def _marks(mark: str) -> tuple[str, str]:
    return f"# {mark}: written by dllm-tui connect", f"# {mark}: end"


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"
