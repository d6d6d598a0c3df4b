"""Find public classes of one name, and small modules that only one other uses.

``python -m tools.check_names`` fails for each: one concept has one name, and a module
is a concept of its own.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tools.check_circles import PACKAGES, imports

LINES_MIN = 80
"""A shorter module that one other imports is a part of that."""
KNOWN = {"backends.clipboard"}
"""Small modules that stay: the console may start no process."""


def same_names(root: Path) -> dict[str, list[str]]:
    """The public classes of which several modules have one, with these modules."""
    found: dict[str, list[str]] = defaultdict(list)
    for module, file in _files(root):
        for node in ast.parse(file.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module)
    return {name: modules for name, modules in found.items() if len(modules) > 1}


def lonely(root: Path) -> list[str]:
    """Modules of few lines that exactly one other imports."""
    importers = Counter(module for found in imports(root).values() for module in found)
    return [
        module
        for module, file in _files(root)
        if importers[module] == 1
        and file.name != "__init__.py"
        and len(file.read_text("utf-8").splitlines()) < LINES_MIN
    ]


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            yield ".".join(file.relative_to(root).with_suffix("").parts), file


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    root = Path(__file__).parent.parent
    wrong = [
        f"Several classes are called {name}: in {', '.join(modules)}"
        for name, modules in same_names(root).items()
    ]
    wrong += [
        f"{module} is short, and one module alone imports it: fold it in"
        for module in lonely(root)
        if module not in KNOWN
    ]
    for sentence in wrong:
        print(sentence)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
