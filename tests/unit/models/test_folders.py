"""The folders of models, as messages name them."""

from __future__ import annotations

import pytest

from backends.models.search import NAMED_MAX, named_folders


@pytest.mark.parametrize(
    ("folders", "named"),
    [
        ([], ""),
        (["~/.models"], " in ~/.models"),
        (["~/.models", "/data"], " in ~/.models or /data"),
        (["a", "b", "c", "d"], " in a, b, c or d"),
        (["a", "b", "c", "d", "e"], " in a, b, c or 2 more folders"),
    ],
)
def test_folders_are_named_in_words(folders: list[str], named: str) -> None:
    assert NAMED_MAX == 4
    assert named_folders(folders) == named
