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

_FIRST_INDENT = re.compile(r"^(?P<indent> *)-(?: |$)", re.MULTILINE)


def scalar(value: object) -> str:
    """A value on one line: every JSON text is YAML too."""
    return json.dumps(value, ensure_ascii=False)


def with_settings(text: str, settings: Mapping[str, object]) -> str:
    """A flat file with these settings, each in its own line."""
    for name, value in settings.items():
        line = f"{name}: {scalar(value)}"
        there = re.compile(rf"^{re.escape(name)}[ \t]*:.*$", re.MULTILINE)
        if there.search(text):
            text = there.sub(line.replace("\\", r"\\"), text, count=1)
        else:
            text = f"{_ended(text)}{line}\n"
    return text


def without_settings(text: str, settings: Mapping[str, object]) -> str:
    """A flat file without these lines, where they say just that."""
    lines = {f"{name}: {scalar(value)}" for name, value in settings.items()}
    kept = (one for one in text.splitlines(keepends=True) if one.rstrip() not in lines)
    return "".join(kept)


def with_entry(text: str, lines: Iterable[str], mark: str) -> str:
    """A file that is one list, with this entry of ours at its end."""
    return _ended(_without(text, mark)) + _block(lines, mark, "")


def with_entry_below(text: str, key: str, lines: Iterable[str], mark: str) -> str:
    """A file with this entry of ours at the head of the list below a key.

    Raises:
        DllmError: the list is written in a way that cannot be added to by lines.
    """
    text = _without(text, mark)
    at = re.search(rf"^{re.escape(key)}:[ \t]*(?P<rest>[^\n]*)\n?", text, re.MULTILINE)
    if at is None:
        return f"{_ended(text)}{key}:\n{_block(lines, mark, '  ')}"
    rest = at["rest"].partition("#")[0].strip()
    if rest not in ("", "[]"):
        raise DllmError(f"the list {key} stands in one line")
    after = text[at.end() :]
    indent = _indent(after) if not rest else "  "
    head = text[: at.start()] + (at[0] if not rest else f"{key}:\n")
    return f"{_ended(head)}{_block(lines, mark, indent)}{after}"


def _indent(after: str) -> str:
    """How far the entries of a list stand in, told by its first."""
    lines = (line for line in after.splitlines() if line.split("#")[0].strip())
    first = next(lines, "")
    found = _FIRST_INDENT.match(first)
    return found["indent"] if found else "  "


def _without(text: str, mark: str) -> str:
    begin, end = (re.escape(one) for one in _marks(mark))
    ours = re.compile(rf"^ *{begin}\n(?:.*\n)*? *{end}\n?", re.MULTILINE)
    return ours.sub("", text)


def _block(lines: Iterable[str], mark: str, indent: str) -> str:
    begin, end = _marks(mark)
    return "".join(f"{indent}{line}\n" for line in (begin, *lines, end))


def _marks(mark: str) -> tuple[str, str]:
    return f"# {mark}: written by dllm-tui connect", f"# {mark}: end"


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"
