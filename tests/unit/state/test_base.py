"""Values as JSON, whatever text other machines sent."""

from __future__ import annotations

import msgspec
import pytest

from backends.state import Failure
from backends.state.base import Value, json_bytes, to_json


class Told(Value, frozen=True, kw_only=True, omit_defaults=True):
    """Text in every place it can have."""

    text: str = ""
    pair: tuple[str, ...] = ()
    named: dict[str, Failure] = {}


@pytest.mark.parametrize("junk", ["\ud800", "a\udcff", "\udc80b"])
def test_text_that_is_no_unicode_is_replaced_and_nothing_else(junk: str) -> None:
    told = Told(text=junk, pair=("é", junk), named={junk: Failure(what=junk)})
    clean = junk.encode(errors="replace").decode()
    meant = Told(text=clean, pair=("é", clean), named={clean: Failure(what=clean)})
    assert json_bytes(told) == msgspec.json.encode(meant)
    assert to_json(told) == to_json(meant)


def test_all_other_values_are_as_ever() -> None:
    told = Told(text="ü", named={"a": Failure(what="b")})
    assert json_bytes(told) == msgspec.json.encode(told)
    assert b"text" not in json_bytes(Told())
