"""YAML of clients, changed in place: comments, order and quotes stay."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString
from ruamel.yaml.util import load_yaml_guess_indent

from backends.errors import DllmError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NEVER_FOLDED = 1 << 20
"""Columns: lines that somebody wrote are not broken anew."""


def with_settings(text: str, settings: Mapping[str, object]) -> str:
    """A file that is one mapping, with these members.

    Raises:
        DllmError: it is something else.
    """

    def change(tree: Any) -> None:
        tree.update({name: _quoted(value) for name, value in settings.items()})

    return _changed(text, {}, change)


def without_settings(text: str, settings: Mapping[str, object]) -> str:
    """A file that is one mapping, without these members where they say just that.

    Raises:
        DllmError: it is something else.
    """

    def change(tree: Any) -> None:
        for name in settings.keys() & tree.keys():
            if tree[name] == settings[name]:
                del tree[name]

    return _changed(text, {}, change)


def with_entry(
    text: str, entry: Mapping[str, object], is_ours: Callable[[Any], bool]
) -> str:
    """A file that is one list, with this entry in the place of ours, or as its last.

    Raises:
        DllmError: it is something else.
    """
    return _changed(text, [], lambda tree: _put(tree, entry, is_ours, len(tree)))


def with_entry_below(
    text: str, name: str, entry: Mapping[str, object], is_ours: Callable[[Any], bool]
) -> str:
    """A file with this entry in the list below a name: in the place of ours, or first.

    Raises:
        DllmError: it is written otherwise.
    """

    def change(tree: Any) -> None:
        if not isinstance(tree.setdefault(name, []), list):
            raise DllmError(f"{name} is no list")
        _put(tree[name], entry, is_ours, 0)

    return _changed(text, {}, change)


def _put(
    entries: Any, entry: Mapping[str, object], is_ours: Callable[[Any], bool], at: int
) -> None:
    if not entries and isinstance(entries, CommentedSeq):
        entries.fa.set_block_style()
    ours = (there for there in entries if isinstance(there, dict) and is_ours(there))
    if (there := next(ours, None)) is None:
        entries.insert(at, _quoted(entry))
    else:
        _become(there, entry)


def _become(there: Any, entry: Mapping[str, object]) -> None:
    """Change what differs alone: comments belong to the members that they follow."""
    for name in there.keys() - entry.keys():
        del there[name]
    there.update({n: _quoted(v) for n, v in entry.items() if there.get(n) != v})


def _quoted(value: object) -> object:
    """A value whose strings are no numbers or truths to any reader of YAML."""
    if isinstance(value, str):
        return DoubleQuotedScalarString(value)
    if isinstance(value, dict):
        return {name: _quoted(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_quoted(one) for one in value]
    return value


def _changed(text: str, empty: object, change: Callable[[Any], None]) -> str:
    """The text of a tree after a change; the same text where nothing changed.

    Raises:
        DllmError: it is no YAML, or another kind of tree than `empty`.
    """
    try:
        writer = _writer(text)
        tree, before = (writer.load(text) for _ in range(2))
    except (YAMLError, ValueError) as error:
        raise DllmError(f"it is no YAML ({_reason(error)})") from error
    # A tree of nothing keeps no comments.
    head, tree = (_comments(text), empty) if tree is None else ("", tree)
    if not isinstance(tree, type(empty)):
        raise DllmError(f"it is no {'list' if empty == [] else 'mapping'}")
    change(tree)
    if tree == before:
        return text
    out = io.StringIO()
    writer.dump(tree, out)
    return (head + out.getvalue()).replace("\n", "\r\n" if "\r\n" in text else "\n")


def _comments(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if line[:1] == "#")


def _reason(error: Exception) -> str:
    """Where it goes wrong, and how, on one line."""
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return str(error).partition("\n")[0]


def _writer(text: str) -> YAML:
    """One that stands in as this text does.

    Raises:
        YAMLError: it cannot be read.
    """
    writer = YAML()
    writer.preserve_quotes = True
    writer.width = NEVER_FOLDED
    writer.explicit_start = text.startswith("---")
    _, indent, offset = load_yaml_guess_indent(text)
    if indent:
        writer.indent(mapping=offset or indent, sequence=indent, offset=offset)
    return writer
