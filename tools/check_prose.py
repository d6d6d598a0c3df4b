"""Check that docstrings are plain: short sentences with the subject or verb first.

    python -m tools.check_prose            the folders and files of CLEAN
    python -m tools.check_prose PATH...    these; shows every finding

Add a folder to CLEAN when it has become clean.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

CLEAN = (
    "backends/bench",
    "backends/client",
    "backends/controller",
    "backends/doctor",
    "backends/engine",
    "backends/gateway",
    "backends/link",
    "backends/machines",
    "backends/mesh",
    "backends/models",
    "backends/planning",
    "backends/service",
    "backends/speculation",
    "backends/split",
    "backends/state",
    "backends/*.py",
    "tui/widgets",
    "tui/screens",
    "tui/api",
    "tui/app",
    "tui/model",
    "tui/actions.py",
    "tui/settings_check.py",
    "tui/cli",
    "tui/dialogs",
    "tui/entry.py",
    "tui/flows",
    "tests/engine",
    "tests/gpu",
    "tests/kit",
    "tests/test_docs.py",
    "tests/test_packaging.py",
    "tools",
)
"""Folders and files that are clean, and stay so."""
WORDS_MAX = 20
"""Words of one sentence."""
SHORT_LINES = 5
"""A private function of so many lines needs no docstring."""
_ODD = re.compile(
    "(What|Who|Whose|Whom|Whoever|Where|Whether|How|Nobody|Nothing|One of|Those|That"
    r"|Which)\b"
)
_SECTION = re.compile(r"^\s*(?:Raises|Args|Returns|Yields|Examples?):$", re.M)
# Rows of a table, and commands, which are set in.
_NO_PROSE = re.compile(r"^(?:\|| {4}).*$", re.M)
_SENTENCE = re.compile(r"(?<=[.:;!?])\s+")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Finding(NamedTuple):
    """A place whose prose is not plain."""

    line: int
    what: str


def findings(source: str) -> Iterator[Finding]:
    """All findings of a module."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for at, one in enumerate(body):
            text = _text(one)
            is_docstring = at == 0 and not isinstance(node, ast.If | ast.Try)
            if text and (
                is_docstring or isinstance(body[at - 1], ast.AnnAssign | ast.Assign)
            ):
                yield from _of_text(one.lineno, text)
        if isinstance(node, _Function) and len(body) > 1 and _text(body[0]):
            yield from _of_function(node)


def _text(node: ast.stmt) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return node.value.value if isinstance(node.value.value, str) else ""
    return ""


def _of_text(line: int, text: str) -> Iterator[Finding]:
    if odd := _ODD.match(text):
        yield Finding(line, f"begins with {odd[0]!r}: say it as subject, verb, object")
    prose = _NO_PROSE.sub("", inspect.cleandoc(_SECTION.split(text)[0]))
    for sentence in _SENTENCE.split(" ".join(prose.split())):
        if len(sentence.split()) > WORDS_MAX:
            yield Finding(line, f"more than {WORDS_MAX} words: {sentence[:50]}…")


def _of_function(node: _Function) -> Iterator[Finding]:
    last = node.body[-1].end_lineno or 0
    lines = last - node.body[1].lineno + 1
    is_private = node.name.startswith("_") and not node.name.startswith("__")
    if node.name == "__init__":
        yield Finding(node.lineno, "__init__ has a docstring: the class has one")
    elif is_private and lines <= SHORT_LINES:
        yield Finding(node.lineno, f"{node.name} is short and private: no docstring")


def main() -> None:
    """Print the findings; exit with 1 if there are any."""
    count = 0
    for name in sys.argv[1:] or CLEAN:
        root = Path(name)
        files = root.rglob("*.py") if root.is_dir() else Path().glob(name)
        for file in sorted(files):
            for finding in findings(file.read_text()):
                print(f"{file}:{finding.line}: {finding.what}")
                count += 1
    sys.exit(f"{count} places are not plain." if count else 0)


if __name__ == "__main__":
    main()
