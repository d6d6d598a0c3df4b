"""The header walk against files written by gguf, and against gguf's own reader."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType, GGUFEndian, GGUFReader

from backends.errors import ModelError
from backends.models import header as header_module
from backends.models.header import WINDOW_BYTES, Skipped, read_header
from tests.unit.models.ggufs import LLAMA, TOKENS, Tensors, write_gguf

ALL_TYPES: Tensors = {
    f"blk.0.{kind.name.lower()}.weight": ((256, 2), kind)
    for kind in GGMLQuantizationType
}


def raw_gguf(
    *,
    version: int = 3,
    keys: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    n_keys: int | None = None,
    n_tensors: int | None = None,
    data: bytes = b"\0" * 4096,
) -> bytes:
    """A file put together by hand, counts as claimed."""
    keys, tensors = keys or [], tensors or []
    head = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(keys) if n_keys is None else n_keys,
    )
    body = head + b"".join(keys) + b"".join(tensors)
    return body + b"\0" * (-len(body) % 32) + data


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(
    name: bytes, shape: tuple[int, ...] = (8,), kind: int = 0, offset: int = 0
) -> bytes:
    dims = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize("endian", list(GGUFEndian))
@pytest.mark.parametrize("version", [2, 3])
def test_agrees_with_the_reader_of_gguf(
    tmp_path: Path, endian: GGUFEndian, version: int
) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors=ALL_TYPES, endian=endian)
    order = "<" if endian == GGUFEndian.LITTLE else ">"
    with path.open("r+b") as stream:
        stream.seek(4)
        stream.write(struct.pack(order + "I", version))

    ours, theirs = read_header(path), GGUFReader(path)

    assert ours.version == version
    assert ours.byte_order == endian.name.lower()
    assert ours.data_offset == theirs.data_offset
    assert [
        (t.name, t.type, list(t.shape), ours.data_offset + t.offset, t.n_bytes)
        for t in ours.tensors
    ] == [
        (t.name, t.tensor_type, t.shape.tolist(), t.data_offset, t.n_bytes)
        for t in theirs.tensors
    ]
    for name, value in ours.metadata.items():
        field = theirs.get_field(name)
        assert field is not None
        contents: Any = field.contents()
        if isinstance(value, Skipped):
            assert value.count == len(contents)
        elif isinstance(value, tuple):
            assert list(value) == contents
        else:
            assert value == contents


def test_an_unknown_type_is_named_and_sized_by_the_gap(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    listed = [
        tensor(b"a", (64,), 4242),
        tensor(b"b", (8,), 0, 96),
        tensor(b"c", (8,), 77, 128),
    ]
    path.write_bytes(raw_gguf(tensors=listed, data=b"\0" * 160))
    first, second, third = read_header(path).tensors
    assert (first.type_name, first.n_bytes, first.type_known) == (
        "type 4242",
        96,
        False,
    )
    assert (second.n_bytes, second.type_known) == (32, True)
    assert (third.type_name, third.n_bytes) == ("type 77", 32)


def test_keeps_scalars_and_short_arrays_and_skips_the_rest(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf",
        LLAMA | {"attention.head_count_kv": [2, 0, 2]},
        metadata={
            "a.text": "long " * 1000,
            "a.flag": True,
            "a.ratio": 0.5,
            "a.numbers": list(range(header_module.KEPT_ELEMENTS_MAX + 1)),
        },
    )
    metadata = read_header(path).metadata
    assert metadata["a.text"] == "long " * 1000
    assert metadata["a.flag"] is True
    assert metadata["a.ratio"] == 0.5
    assert metadata["llama.attention.head_count_kv"] == (2, 0, 2)
    assert metadata["a.numbers"] == Skipped("int32", 4097)
    assert metadata["tokenizer.ggml.tokens"] == Skipped("string", len(TOKENS))


@pytest.mark.parametrize("lengths", [[1] * 70_000, [300_000, 1, 700_000, 0, 5]])
def test_strings_are_skipped_across_windows(tmp_path: Path, lengths: list[int]) -> None:
    strings = b"".join(text(b"x" * length) for length in lengths)
    assert len(strings) > WINDOW_BYTES
    path = tmp_path / "m.gguf"
    array = struct.pack("<IQ", 8, len(lengths)) + strings
    keys = [key(b"words", 9, array), key(b"after", 4, struct.pack("<I", 7))]
    path.write_bytes(raw_gguf(keys=keys))
    metadata = read_header(path).metadata
    assert metadata == {"words": Skipped("string", len(lengths)), "after": 7}


def test_a_long_string_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    size = header_module.KEPT_STRING_BYTES_MAX + 1
    path.write_bytes(raw_gguf(keys=[key(b"blob", 8, text(b"x" * size))]))
    assert read_header(path).metadata == {"blob": Skipped("string", size)}


def test_alignment_from_the_file_is_used(tmp_path: Path) -> None:
    header = read_header(write_gguf(tmp_path / "m.gguf", alignment=256))
    assert header.alignment == 256
    assert header.data_offset % 256 == 0


def test_an_empty_tensor_weighs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(raw_gguf(tensors=[tensor(b"a", (8, 0)), tensor(b"b", ())]))
    assert [entry.n_bytes for entry in read_header(path).tensors] == [0, 4]


U32 = struct.pack("<I", 1)
BROKEN = {
    "empty": (b"", "is empty"),
    "short magic": (b"GG", "not a GGUF file"),
    "other magic": (b"PK\x03\x04" + b"\0" * 100, "not a GGUF file"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
    "version 1": (raw_gguf(version=1), "GGUF version 1"),
    "version 9": (raw_gguf(version=9), "GGUF version 9"),
    "only a magic": (b"GGUF", "is truncated"),
    "many keys": (raw_gguf(n_keys=2**60), "claims 1152921504606846976 metadata"),
    "many tensors": (raw_gguf(n_tensors=2**60), "claims 1152921504606846976 tensors"),
    "more keys than bytes": (raw_gguf(n_keys=1000), "claims 1000 metadata"),
    "long key": (
        raw_gguf(keys=[struct.pack("<Q", 2**63) + b"k" * 20]),
        "9223372036854775808 bytes",
    ),
    "long string": (
        raw_gguf(keys=[key(b"k", 8, struct.pack("<Q", 2**63))]),
        "is truncated",
    ),
    "long strings": (
        raw_gguf(keys=[key(b"k", 9, struct.pack("<IQQ", 8, 2, 2**64 - 1))]),
        "is truncated",
    ),
    "many strings": (
        raw_gguf(keys=[key(b"k", 9, struct.pack("<IQ", 8, 2**61))]),
        "is truncated",
    ),
    "many numbers": (
        raw_gguf(keys=[key(b"k", 9, struct.pack("<IQ", 12, 2**64 - 1))]),
        "is truncated",
    ),
    "nested array": (
        raw_gguf(keys=[key(b"k", 9, struct.pack("<IQ", 9, 1) * 5)]),
        "array of the type 9",
    ),
    "unknown value": (raw_gguf(keys=[key(b"k", 99, U32)]), "unknown type 99"),
    "no key": (raw_gguf(keys=[key(b"", 4, U32)]), "appears twice"),
    "key twice": (raw_gguf(keys=[key(b"k", 4, U32)] * 2), "“k” appears twice"),
    "alignment 0": (
        raw_gguf(keys=[key(b"general.alignment", 4, b"\0" * 4)]),
        "power of two",
    ),
    "alignment 24": (
        raw_gguf(keys=[key(b"general.alignment", 4, struct.pack("<I", 24))]),
        "power of two",
    ),
    "alignment is text": (
        raw_gguf(keys=[key(b"general.alignment", 8, text(b"32"))]),
        "power of two",
    ),
    "five dimensions": (raw_gguf(tensors=[tensor(b"t", (1,) * 5)]), "5 dimensions"),
    "huge shape": (
        raw_gguf(tensors=[tensor(b"t", (2**40, 2**40))]),
        "cannot have the shape",
    ),
    "broken row": (raw_gguf(tensors=[tensor(b"t", (33,), 2)]), "shape [33] in Q4_0"),
    "long name": (raw_gguf(tensors=[tensor(b"t" * 64)]), "a name of 64 bytes"),
    "name twice": (raw_gguf(tensors=[tensor(b"t")] * 2), "t appears twice"),
    "unaligned": (raw_gguf(tensors=[tensor(b"t", offset=8)]), "not aligned to 32"),
    "overlap": (
        raw_gguf(tensors=[tensor(b"a", (64,)), tensor(b"b", (8,), 0, 32)]),
        "b overlaps",
    ),
    "same place": (
        raw_gguf(tensors=[tensor(b"a", (64,)), tensor(b"b", (64,))]),
        "overlaps",
    ),
    "offset past the end": (
        raw_gguf(tensors=[tensor(b"t", offset=2**63)]),
        "ends at byte",
    ),
}


@pytest.mark.parametrize(("content", "sentence"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_files_give_one_sentence(
    tmp_path: Path, content: bytes, sentence: str
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        read_header(path)
    assert caught.value.what.startswith("bad.gguf ")
    assert sentence in caught.value.what
    assert "\n" not in str(caught.value)
    assert caught.value.hint.endswith(".")


def test_a_truncated_file_names_tensor_and_bytes(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    size = path.stat().st_size
    with path.open("r+b") as stream:
        stream.truncate(size - 4096)
    with pytest.raises(ModelError) as caught:
        read_header(path)
    # Of three layers the last tensors are the norm and the head, 256 + 8192 bytes.
    assert caught.value.what == (
        f"m.gguf is truncated: tensor output.weight ends at byte {size}, "
        f"the file has {size - 4096}"
    )


def test_control_characters_of_a_file_do_not_reach_the_message(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(raw_gguf(tensors=[tensor(b"\x1b[2J\n", offset=8)]))
    with pytest.raises(ModelError) as caught:
        read_header(path)
    assert str(caught.value).isprintable()


def test_a_sparse_giant_of_empty_strings_ends_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.models.header.HEADER_BYTES_MAX", 1 << 20)
    path = tmp_path / "m.gguf"
    array = struct.pack("<IQ", 8, 2**33)
    path.write_bytes(raw_gguf(keys=[key(b"k", 9, array)]))
    with path.open("r+b") as stream:
        stream.truncate(2**40)
    with pytest.raises(ModelError, match="header is over 1 MiB"):
        read_header(path)


def test_metadata_kept_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    names = [b"%05d" % index + b"k" * 60_000 for index in range(300)]
    path.write_bytes(raw_gguf(keys=[key(name, 4, U32) for name in names]))
    with pytest.raises(ModelError, match="metadata is over 16 MiB"):
        read_header(path)


@pytest.mark.parametrize("what", ["missing", "folder", "fifo"])
def test_what_is_not_a_file_is_refused(tmp_path: Path, what: str) -> None:
    import os

    path = tmp_path / "m.gguf"
    if what == "folder":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    with pytest.raises(ModelError, match=r"Cannot read|is not a file"):
        read_header(path)


def test_a_path_with_a_nul_is_refused() -> None:
    with pytest.raises(ModelError, match="Cannot read"):
        read_header("a\0b.gguf")
