"""The files that a peer is to have, and what is known of them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from backends.controller import model_copies
from backends.controller.model_copies import CopySource
from backends.machines.peer_downloads import UNVERIFIED, FromHere
from tests.unit.models.ggufs import LLAMA, llama_tensors, write_gguf


async def renew() -> None:
    pass


def found(model: Path, sha256: str, *, remote: bool = True) -> CopySource:
    return CopySource(
        headers=(model,),
        names=(model.name,),
        sha256s=(sha256,),
        ways=(FromHere([model]),),
        origin="first",
        renew=renew if remote else None,
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "m.gguf"
    write_gguf(file, LLAMA, llama_tensors())
    return file


def test_a_copy_here_tells_the_hash_of_a_part_if_it_is_the_announced_file(
    model: Path,
) -> None:
    right = hashlib.sha256(model.read_bytes()).hexdigest()
    same = model_copies._checked(found(model, right))
    (part,) = model_copies._wanted(same, "0-1")
    assert (len(part.sha256), len(same.ways), part.origin) == (64, 1, "first")

    other = model_copies._checked(found(model, "0" * 64))
    (part,) = model_copies._wanted(other, "0-1")
    assert (part.sha256, other.ways) == ("", ())


def test_a_copy_of_the_same_header_is_no_original_where_no_hash_tells(
    model: Path,
) -> None:
    unknown = model_copies._of_known_origin(found(model, ""))
    (whole,) = model_copies._wanted(unknown, "")
    assert (unknown.ways, whole.verified_by(was_there=False)) == ((), UNVERIFIED)
    ours = found(model, "", remote=False)
    assert model_copies._of_known_origin(ours) == ours


def test_a_model_of_ours_is_its_own_original(model: Path) -> None:
    ours = model_copies._checked(found(model, "", remote=False))
    (part,) = model_copies._wanted(ours, "0-1")
    assert len(part.sha256) == 64
