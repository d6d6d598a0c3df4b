"""JSON with comments, changed in place: all that is not changed stays as it is."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backends.errors import DllmError

if TYPE_CHECKING:
    from collections.abc import Sequence

INDENT = 2
DEPTH_MAX = 100
_SPACE = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_SCALAR = re.compile(r"[-+.\w]+")


class NotJson(DllmError):
    """A text that is no JSON, with or without comments."""


@dataclass
class _Member:
    """One of an object's members; where its value stands in the text."""

    name: str
    start: int
    end: int


class Jsonc:
    """A text, and the places in it."""

    def __init__(self, text: str) -> None:
        """Nothing is looked for yet."""
        self.text = text

    def set(self, path: Sequence[str], value: object) -> None:
        """Give a member of a member … this value; what of them is missing is made.

        Raises:
            NotJson: the text is none, or one of them is no object.
        """
        start = self._skip(0)
        if start == len(self.text):
            self.text += "{}\n"
        if self._skip(self._end(start)) != len(self.text):
            raise NotJson(f"there is more than one value ({self._place(start)})")
        at = start
        for depth, name in enumerate(path):
            members, close = self._members(at)
            # Of two of one name every reader takes the last.
            found = next((m for m in reversed(members) if m.name == name), None)
            rest = path[depth + 1 :]
            if found is None:
                self._insert(at, members, close, name, _nested(rest, value), depth)
                return
            if not rest:
                self._replace(found, value, depth)
                return
            at = found.start

    def _replace(self, member: _Member, value: object, depth: int) -> None:
        new = _dumped(value, depth + 1)
        self.text = self.text[: member.start] + new + self.text[member.end :]

    def _insert(
        self,
        at: int,
        members: list[_Member],
        close: int,
        name: str,
        value: object,
        depth: int,
    ) -> None:
        """Add a member after the last, and after the comments that follow it."""
        line = "\n" + " " * INDENT * (depth + 1)
        new = f"{line}{json.dumps(name)}: {_dumped(value, depth + 1)}"
        last = members[-1].end if members else at + 1
        comma = "," if members else ""
        between = self.text[last:close].rstrip()
        end = "\n" + " " * INDENT * depth
        self.text = self.text[:last] + comma + between + new + end + self.text[close:]

    # --- walking --------------------------------------------------------------------

    def _members(self, at: int) -> tuple[list[_Member], int]:
        """Of the object that begins there, and where its brace is closed.

        A comma after the last member is taken out: another member will follow it.
        """
        if self.text[at : at + 1] != "{":
            raise NotJson(f"there is no object where one belongs ({self._place(at)})")
        members: list[_Member] = []
        at = self._skip(at + 1)
        while self.text[at : at + 1] != "}":
            name, end = self._string(at)
            at = self._skip(end)
            if self.text[at : at + 1] != ":":
                raise NotJson(f"a colon is missing ({self._place(at)})")
            start = self._skip(at + 1)
            members.append(_Member(name, start, self._end(start)))
            at = self._skip(members[-1].end)
            if self.text[at : at + 1] != ",":
                continue
            after = self._skip(at + 1)
            if self.text[after : after + 1] == "}":
                self.text = self.text[:at] + self.text[at + 1 :]
                after -= 1
            at = after
        return members, at

    def _end(self, at: int, depth: int = 0) -> int:
        """Where the value that begins there ends."""
        first = self.text[at : at + 1]
        if depth > DEPTH_MAX:
            raise NotJson("it is nested too deep")
        if first == '"':
            return self._string(at)[1]
        if first not in ("{", "["):
            if found := _SCALAR.match(self.text, at):
                return found.end()
            raise NotJson(f"a value is missing ({self._place(at)})")
        at = self._skip(at + 1)
        while self.text[at : at + 1] not in ("}", "]"):
            if first == "{":
                at = self._skip(self._string(at)[1])
                if self.text[at : at + 1] != ":":
                    raise NotJson(f"a colon is missing ({self._place(at)})")
                at = self._skip(at + 1)
            at = self._skip(self._end(at, depth + 1))
            if self.text[at : at + 1] == ",":
                at = self._skip(at + 1)
            elif self.text[at : at + 1] not in ("}", "]"):
                raise NotJson(f"a comma is missing ({self._place(at)})")
        return at + 1

    def _string(self, at: int) -> tuple[str, int]:
        found = _STRING.match(self.text, at)
        if found is None:
            raise NotJson(f"a text in quotes is missing ({self._place(at)})")
        try:
            return str(json.loads(found[0], strict=False)), found.end()
        except ValueError as error:
            raise NotJson(f"{error} ({self._place(at)})") from error

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self.text, at)
        return found.end() if found else at

    def _place(self, at: int) -> str:
        return f"line {self.text.count(chr(10), 0, at) + 1}"


def _nested(path: Sequence[str], value: object) -> object:
    """The value within objects that have one member each."""
    for name in reversed(path):
        value = {name: value}
    return value


def _dumped(value: Any, depth: int) -> str:
    text = json.dumps(value, indent=INDENT, ensure_ascii=False)
    return text.replace("\n", "\n" + " " * INDENT * depth)
