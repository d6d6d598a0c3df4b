"""JSON with comments is changed where it must be, and nowhere else."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.connect.jsonc import Jsonc, NotJson

SETTINGS = """\
// Zed's own words.
{
  "theme": "One // Dark", /* not this */
  "language_models": {
    "openai_compatible": {
      "Other": {"api_url": "https://example"}, // kept
    },
    // the end
  },
}
"""


def changed(text: str, *path: str, value: object = 1) -> str:
    document = Jsonc(text)
    document.set(path, value)
    return document.text


def test_comments_and_everything_unknown_stay() -> None:
    path = ("language_models", "openai_compatible", "dllm", "api_url")
    after = changed(SETTINGS, *path, value="http://x/v1")
    for line in SETTINGS.splitlines():
        assert line.strip(" ,").partition(" // kept")[0].rstrip(",") in after
    again = changed(after, *path, value="http://y/v1")
    assert again == after.replace("http://x/v1", "http://y/v1")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '{\n  "a": {\n    "b": 1\n  }\n}\n'),
        ("{}", '{\n  "a": {\n    "b": 1\n  }\n}'),
        ('{"a": {"b": 7}, "a": {"b": 8}}', '{"a": {"b": 7}, "a": {"b": 1}}'),
        ('{"a": {"b": 7}}', '{"a": {"b": 1}}'),
        ('{"a": {"b": {"c": [1, {}]},}}', '{"a": {"b": 1}}'),
        ('{"a": {"c": 2 /* x */}}', '{"a": {"c": 2, /* x */\n    "b": 1\n  }}'),
        ('{"a": {// x\n}}', '{"a": {// x\n    "b": 1\n  }}'),
    ],
)
def test_places(before: str, after: str) -> None:
    assert changed(before, "a", "b") == after


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "1", '{"a": 1}', '{"a": []}', "{", '{"a"', '{"a": {"x" 1}}', "{} {}"),
        *('{"a": {"x": 1 "y": 2}}', '{"a": {b: 1}}', "{'a': 1}", "nonsense {", '"'),
        *('{"a": {"b": }}', '{"x": ' + "[" * 200 + "]" * 200 + "}"),
    ],
)
def test_what_cannot_be_changed_is_refused(text: str) -> None:
    with pytest.raises(NotJson):
        changed(text, "a", "b")


NAMES = st.sampled_from(["a", "b", "dllm", "a.b", 'q"', "ü", "//"])
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(
    document=st.dictionaries(NAMES, JSON, max_size=4),
    path=st.lists(NAMES, min_size=1, max_size=4),
    value=JSON,
    indent=st.sampled_from([None, 0, 3]),
)
def test_only_what_is_meant_changes(
    document: dict[str, Any], path: list[str], value: object, indent: int | None
) -> None:
    before = json.dumps(document, indent=indent)
    try:
        after = changed(before, *path, value=value)
    except NotJson:
        return
    at: dict[str, Any] = document
    for name in path[:-1]:
        at = at.setdefault(name, {})
    at[path[-1]] = value
    assert json.loads(after) == document


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet='{}[]":,/* \n\\a1', max_size=30))
def test_any_text_is_changed_or_refused(text: str) -> None:
    try:
        after = changed(text, "a", "b")
    except NotJson:
        return
    assert re.search(r'"b": 1', after)
