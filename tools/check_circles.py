"""Find modules that import one another in a circle, imports for type checkers included.

``python -m tools.check_circles`` fails for a circle of modules that ``KNOWN`` does not
list. Take a module off the list with the circle that it was in.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

PACKAGES = ("backends", "tui")
KNOWN: set[str] = set()
"""Modules that are still in a circle."""


def imports(root: Path) -> dict[str, set[str]]:
    """The modules that each module of the packages imports, within a function too."""
    files = {
        ".".join(file.relative_to(root).with_suffix("").parts): file
        for package in PACKAGES
        for file in sorted((root / package).rglob("*.py"))
    }
    return {module: _imported(file) & files.keys() for module, file in files.items()}


def _imported(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def circles(graph: dict[str, set[str]]) -> list[frozenset[str]]:
    """Every group of modules of which each reaches each."""
    reached = {module: _reached(graph, module) for module in graph}
    mutual = (
        frozenset(other for other in reach if module in reached[other])
        for module, reach in reached.items()
    )
    return sorted(set(mutual) - {frozenset()}, key=sorted)


def _reached(graph: dict[str, set[str]], module: str) -> set[str]:
    found: set[str] = set()
    todo = list(graph[module])
    while todo:
        if (one := todo.pop()) not in found:
            found.add(one)
            todo += graph[one]
    return found


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    found = circles(imports(Path(__file__).parent.parent))
    new = [circle for circle in found if not circle <= KNOWN]
    for circle in new:
        print(f"A circle of imports: {', '.join(sorted(circle))}")
    if free := KNOWN.difference(*found):
        print(f"In no circle any more, take off KNOWN: {', '.join(sorted(free))}")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
