"""A circle of imports is found by the modules in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.check_circles import circles, imports

if TYPE_CHECKING:
    from pathlib import Path


def test_modules_that_reach_one_another_are_a_circle(tmp_path: Path) -> None:
    room = tmp_path / "backends"
    room.mkdir()
    (room / "a.py").write_text("from backends.b import x\n")
    (room / "b.py").write_text("if TYPE_CHECKING:\n    from backends import c\n")
    (room / "c.py").write_text("def f():\n    import backends.a\n")
    (room / "d.py").write_text("import backends.a, os\n")
    named = frozenset({"backends.a", "backends.b", "backends.c"})
    assert circles(imports(tmp_path)) == [named]
