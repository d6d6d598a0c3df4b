"""Damaged headers: a sentence or a value, soon, in little memory; nothing else."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.errors import ModelError
from backends.models.layers import read_model
from backends.state import to_json
from tests.unit.models.ggufs import LLAMA, write_gguf

SECONDS_MAX = 30.0
BYTES_MAX = 64 * 1024 * 1024
NASTY = [0, 1, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1]


@pytest.fixture(scope="module")
def valid() -> Iterator[tuple[Path, bytes]]:
    with TemporaryDirectory() as folder:
        path = write_gguf(
            Path(folder) / "m.gguf",
            LLAMA | {"attention.head_count_kv": [2, 2, 2]},
            metadata={"tokenizer.chat_template": "{{ messages }}"},
        )
        yield path, path.read_bytes()


def open_damaged(path: Path, content: bytes) -> None:
    """Open it and check that it ends in a value or a ModelError, within bounds."""
    path.write_bytes(content)
    tracemalloc.start()
    started = time.monotonic()
    sentence = ""
    try:
        to_json(read_model(path))
    except ModelError as error:
        sentence = str(error)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sentence.isprintable()
    assert time.monotonic() - started < SECONDS_MAX
    assert peak < BYTES_MAX


fuzz = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
HEADER = 3400
"""Most damage goes where the header is; the file is larger."""


@fuzz
@given(
    flips=st.lists(
        st.tuples(st.integers(0, HEADER), st.integers(0, 255)), min_size=1, max_size=8
    )
)
def test_flipped_bytes(valid: tuple[Path, bytes], flips: list[tuple[int, int]]) -> None:
    path, content = valid
    damaged = bytearray(content)
    for place, value in flips:
        damaged[place] = value
    open_damaged(path, bytes(damaged))


@fuzz
@given(place=st.integers(0, HEADER), value=st.sampled_from(NASTY))
def test_nasty_numbers(valid: tuple[Path, bytes], place: int, value: int) -> None:
    path, content = valid
    number = value.to_bytes(8, "little")
    open_damaged(path, content[:place] + number + content[place + 8 :])


@fuzz
@given(data=st.data())
def test_truncations(valid: tuple[Path, bytes], data: st.DataObject) -> None:
    path, content = valid
    open_damaged(path, content[: data.draw(st.integers(0, len(content)))])


@fuzz
@given(
    place=st.integers(0, HEADER),
    removed=st.integers(0, 64),
    inserted=st.binary(max_size=64),
)
def test_shifted_bytes(
    valid: tuple[Path, bytes], place: int, removed: int, inserted: bytes
) -> None:
    path, content = valid
    open_damaged(path, content[:place] + inserted + content[place + removed :])


@fuzz
@given(content=st.binary(max_size=512))
def test_noise_after_the_magic(valid: tuple[Path, bytes], content: bytes) -> None:
    open_damaged(valid[0], b"GGUF\x03\0\0\0" + content)
