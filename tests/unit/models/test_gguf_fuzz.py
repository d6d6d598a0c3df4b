"""Damaged headers: a sentence or a value, soon, in little memory; nothing else."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backends.errors import ModelError
from backends.models.layers import read_model
from backends.state import to_json
from tests.unit.models.ggufs import LLAMA, write_gguf

BYTES_MAX = 64 * 1024 * 1024
ALL = 1 << 20
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


HEADER = 3400
"""Most damage goes where the header is; the file is larger."""
BYTES = st.binary(max_size=64) | st.sampled_from(
    [n.to_bytes(8, "little") for n in NASTY]
)
DAMAGES = st.lists(
    st.tuples(
        st.integers(0, HEADER), st.none() | st.integers(0, 64) | st.just(ALL), BYTES
    ),
    min_size=1,
    max_size=8,
)
"""Where, how much goes (None: as much as comes), and what comes in its place."""


@settings(
    max_examples=5 * settings().max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(damages=DAMAGES)
@example(damages=[(8, ALL, b"\xff" * 64)])
def test_it_is_read_or_refused(
    valid: tuple[Path, bytes], damages: list[tuple[int, int | None, bytes]]
) -> None:
    path, content = valid
    for place, removed, inserted in damages:
        end = place + (len(inserted) if removed is None else removed)
        content = content[:place] + inserted + content[end:]
    path.write_bytes(content)
    tracemalloc.start()
    sentence = ""
    try:
        to_json(read_model(path))
    except ModelError as error:
        sentence = str(error)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sentence.isprintable()
    assert peak < BYTES_MAX
