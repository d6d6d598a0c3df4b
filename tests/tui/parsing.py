"""Style sheets parsed once for all consoles under test: a fifth of what each costs."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

_parse_rules = Stylesheet._parse_rules
_parsed: dict[Hashable, list[RuleSet]] = {}
_latest: tuple[dict[str, str], Hashable] = ({}, frozenset())
"""Variables, and their key: a console parses hundreds of sheets with the same ones."""


def _key_of(variables: dict[str, str]) -> Hashable:
    global _latest
    if _latest[0] is not variables:
        _latest = (variables, hash(frozenset(variables.items())))
    return _latest[1]


def parse_once(sheet: Stylesheet, css: str, *where: Any, **more: Any) -> list[RuleSet]:
    key = (_key_of(sheet._variables), css, where, frozenset(more.items()))
    if key not in _parsed:
        _parsed[key] = _parse_rules(sheet, css, *where, **more)
    return _parsed[key]
