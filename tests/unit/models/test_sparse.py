"""Sparse files: what is kept, what they say of themselves, and how they are written."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import resource
from pathlib import Path
from typing import Any

import blake3
import gguf
import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from backends.controller.launch_facts import check_whole
from backends.errors import MachineError, ModelError, PlanError
from backends.machines.local import local_agent_for_now
from backends.machines.local_inventory import LocalInventory
from backends.models import sparse_copy
from backends.models.catalogue import Catalogue
from backends.models.header import read_header
from backends.models.identity import identity_of
from backends.models.layers import read_model
from backends.models.sparse import HOLES, IDENTITY, KEPT, TENSORS, sparse_words
from backends.models.sparse_copy import (
    Keep,
    SparseFile,
    parse_keep,
    plan_sparse,
    write_sparse,
)
from backends.paths import user_paths
from backends.split.layout import make_split
from backends.state import Plan
from backends.units import format_bytes
from tests.kit.models import write_llama
from tests.unit.models.ggufs import llama_tensors, write_gguf
from tui.cli.main import cli

pytestmark = pytest.mark.usefixtures("forking")
N_LAYER = 4
CHUNK_BYTES = 1 << 20
HASH_BYTES = 32
HEADER_BYTES_MAX = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "big.gguf"
    write_llama(file, n_layer=N_LAYER, n_embd=256, n_ff=3072)
    return file


def made(model: Path, keep: str, out: Path | None = None) -> Path:
    return Path(asyncio.run(write_sparse(plan_sparse(model, keep, out)))[0].path)


def test_what_is_kept_is_there_and_the_rest_are_holes(
    model: Path, tmp_path: Path
) -> None:
    sparse = made(model, "output,0-1", tmp_path / "head.gguf")
    whole, there = gguf.GGUFReader(model), gguf.GGUFReader(sparse)
    holes = [t for t in whole.tensors if t.name.startswith(("blk.2.", "blk.3."))]
    names = {tensor.name for tensor in holes}
    for before, after in zip(whole.tensors, there.tensors, strict=True):
        assert (before.name, before.tensor_type) == (after.name, after.tensor_type)
        same = np.array_equal(before.data, after.data)
        assert same if before.name not in names else not np.any(after.data)
    # What the holes stand for; of one of several chunks, the nodes of its tree.
    hashes = bytes(there.fields["dllm.thin.chunks"].contents())
    at = 0
    for tensor in holes:
        n_chunks = -(-int(tensor.n_bytes) // CHUNK_BYTES)
        if n_chunks == 1:
            expected = blake3.blake3(tensor.data.tobytes()).digest()
            assert hashes[at : at + HASH_BYTES] == expected, tensor.name
        at += n_chunks * HASH_BYTES
    assert len(hashes) == at
    kept_bytes = sum(int(t.n_bytes) for t in whole.tensors if t.name not in names)
    assert sparse.stat().st_blocks * 512 < kept_bytes + HEADER_BYTES_MAX
    assert sparse.stat().st_size >= model.stat().st_size
    info = read_model(sparse)
    assert info.sparse is not None
    assert info.sparse.layers == (0, 1)
    assert info.sparse.output
    assert info.sparse.embedding
    assert info.sparse.kept_bytes == kept_bytes
    assert info.sparse.source == str(model)
    # Of all else it tells the same.
    own = {"path": "", "files": (), "size_bytes": 0, "sparse": None}
    assert replace(info, **own) == replace(read_model(model), **own)


def test_every_part_of_a_split_model_is_sparse(tmp_path: Path) -> None:
    write_llama(tmp_path / "s.gguf", n_layer=N_LAYER, n_embd=64, n_ff=64, split=12)
    parts = sorted(tmp_path.glob("s-*.gguf"))
    sparse = made(parts[1], "3", tmp_path / "few.gguf")
    assert sparse.name == f"few-00001-of-0000{len(parts)}.gguf"
    info = read_model(sparse)
    assert len(info.files) == len(parts)
    assert info.sparse is not None
    assert sparse_words(info.sparse) == f"sparse: 3 of {parts[0].name}"


def test_a_file_system_without_holes_is_refused_with_the_size(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is none to try it on here; what it would answer is said for it."""
    assert sparse_copy.holds_holes(tmp_path)
    assert sparse_copy.holds_holes(tmp_path / "missing"), (
        "that is for the writer to say"
    )
    monkeypatch.setattr(sparse_copy, "holds_holes", lambda _: False)
    size = re.escape(format_bytes(model.stat().st_size))
    with pytest.raises(ModelError, match=rf"cannot hold holes: .* take {size} there"):
        plan_sparse(model, "0", tmp_path / "new.gguf")
    assert not (tmp_path / "new.gguf").exists()


def test_nothing_is_overwritten_and_nothing_half_is_left(
    model: Path, tmp_path: Path
) -> None:
    there = tmp_path / "big.gguf"
    there.write_text("mine")
    for out in (there, tmp_path):
        with pytest.raises(ModelError, match=r"big\.gguf is there already"):
            plan_sparse(model, "0", out)
    plan = plan_sparse(model, "0", tmp_path / "new.gguf")
    # Somebody else was quicker.
    late = replace(plan, targets=(str(there),))
    with pytest.raises(ModelError, match=r"big\.gguf is there already"):
        asyncio.run(write_sparse(late))
    with pytest.raises(ModelError, match="are free there"):
        asyncio.run(write_sparse(replace(plan, free_bytes=1)))
    with pytest.raises(ModelError, match=r"no\.gguf cannot be read"):
        asyncio.run(write_sparse(replace(plan, files=(str(tmp_path / "no.gguf"),))))
    assert there.read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == [there]


def test_an_end_in_between_leaves_nothing(model: Path, tmp_path: Path) -> None:
    plan = plan_sparse(model, "0", tmp_path / "new.gguf")

    async def ended() -> None:
        def cancel(_: int) -> None:
            task.cancel()

        task = asyncio.ensure_future(write_sparse(plan, cancel))
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ended())
    assert list(tmp_path.iterdir()) == []


def test_what_may_be_kept() -> None:
    assert parse_keep("output,0-2, 5", 8) == Keep(frozenset({0, 1, 2, 5}), True)
    assert parse_keep("7", 8) == Keep(frozenset({7}), False)
    for text in ("", "8", "0-8", "3-1", "all", "output,", "-1", "0-"):
        with pytest.raises(ModelError, match="the layers 0 to 7 and an output"):
            parse_keep(text, 8)


def test_a_sparse_file_is_not_made_of_a_sparse_one(model: Path, tmp_path: Path) -> None:
    sparse = made(model, "0", tmp_path / "a.gguf")
    with pytest.raises(ModelError, match=rf"sparse already.*{model.name}"):
        plan_sparse(sparse, "0")


def test_a_record_that_says_nothing_is_refused(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "t.gguf")
    bound = {TENSORS: read_header(file).list_sha256}
    read_model(write_gguf(file, metadata={**bound, KEPT: [0, 1 << 30]}))
    hostile = (
        [4, 2],
        [1],
        "all",
        ["a", "b"],
        [0.5, 9.5],
        [math.nan, 1.0],
        [False, True],
    )
    for record in ({}, *({KEPT: said} for said in hostile)):
        write_gguf(file, metadata={**bound, **record})
        with pytest.raises(ModelError, match="does not say where its holes are"):
            read_model(file)


def copied(sparse: Path, out: Path, kind: gguf.GGMLQuantizationType) -> Path:
    kept = read_header(sparse).metadata
    known = {key: kept[key] for key in (IDENTITY, KEPT, TENSORS, HOLES)}
    tensors = {name: (shape, kind) for name, (shape, _) in llama_tensors().items()}
    return write_gguf(out, tensors=tensors, metadata=known)


def test_a_quantised_copy_has_no_record_of_its_holes(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "m.gguf")
    sparse = made(model, "0-1", tmp_path / "sparse.gguf")
    f32, f16 = gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16
    same = read_model(copied(sparse, tmp_path / "copy.gguf", f32)).sparse
    assert same is not None
    assert same.layers == (0, 1)
    # Half as large: what the record calls kept would be nearly all of it.
    with pytest.raises(
        ModelError, match=r"half\.gguf does not say where its holes are"
    ):
        read_model(copied(sparse, tmp_path / "half.gguf", f16))


def test_the_parts_of_two_sparse_files_are_none(tmp_path: Path) -> None:
    write_llama(tmp_path / "s.gguf", n_layer=N_LAYER, n_embd=64, n_ff=64, split=12)
    parts = sorted(tmp_path.glob("s-*.gguf"))
    kept = {}
    for keep in ("0-1", "2-3"):
        first = made(parts[0], keep, tmp_path / f"t{keep}.gguf")
        kept[keep] = sorted(tmp_path.glob(f"t{keep}-*.gguf"))
        assert kept[keep][0] == first
    # Whichever parts have holes, the first ones differ: by them files are told apart.
    assert identity_of(kept["0-1"][0]) != identity_of(kept["2-3"][0])
    own = kept["0-1"][-1]
    for other, why in (
        (kept["2-3"][-1], "is of another sparse file than the first part"),
        (parts[-1], "is a part of a sparse file, and does not say so"),
    ):
        own.write_bytes(other.read_bytes())
        with pytest.raises(ModelError, match=why):
            read_model(kept["0-1"][0])


def test_a_header_that_carries_no_tensors_tells_what_is_left_out(
    tmp_path: Path,
) -> None:
    first, second = (
        made(write_gguf(tmp_path / "m.gguf"), keep, tmp_path / f"{keep}.gguf")
        for keep in ("0", "1")
    )
    of_first, of_second = (read_header(file).metadata for file in (first, second))
    assert of_first[IDENTITY] == of_second[IDENTITY]
    assert of_first[HOLES] != of_second[HOLES]


def test_a_part_that_changed_is_read_anew(tmp_path: Path) -> None:
    write_llama(tmp_path / "s.gguf", n_layer=N_LAYER, n_embd=64, n_ff=64, split=12)
    parts = sorted(tmp_path.glob("s-*.gguf"))

    async def read() -> None:
        async with local_agent_for_now(tmp_path / "run") as agent:
            inventory = LocalInventory(user_paths(), agent)
            await inventory.model(str(parts[0]))
            parts[-1].write_bytes(b"GGUF")
            with pytest.raises(ModelError, match="truncated"):
                await inventory.model(str(parts[0]))

    asyncio.run(read())


def test_nothing_is_seeded_or_compared_from_a_sparse_file(
    model: Path, tmp_path: Path
) -> None:
    sparse = str(made(model, "0-1", tmp_path / "head.gguf"))

    async def asked() -> None:
        async with local_agent_for_now(tmp_path / "run") as agent:
            for work in (agent.seeding(sparse, str(tmp_path)), agent.hashing(sparse)):
                with pytest.raises(MachineError, match=r"head\.gguf is sparse"):
                    _ = [told async for told in work]

    asyncio.run(asked())


def test_a_draft_is_whole(model: Path, tmp_path: Path) -> None:
    sparse = str(made(model, "0-1", tmp_path / "draft.gguf"))
    plan = Plan(model=str(model), split=make_split(1, ["local/CPU"], [2]))
    refused: list[tuple[str, ...]] = [
        ("-md", sparse),
        ("--lora_scaled", f"{sparse}:0.5"),
    ]
    for words in refused:
        with pytest.raises(PlanError, match=r"draft\.gguf is sparse"):
            asyncio.run(check_whole(replace(plan, extra_args=words)))
    for words in (("-md", str(model)), ("-md", str(tmp_path / "none")), ("-md",)):
        asyncio.run(check_whole(replace(plan, extra_args=words)))


def test_called_off_at_the_very_end_nothing_is_left(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once when it has said that it is done, once before that was heard."""
    followed = sparse_copy._followed
    plan = plan_sparse(model, "0", tmp_path / "new.gguf")

    async def unheard(child: asyncio.subprocess.Process, *_: object) -> SparseFile:
        assert child.stdin is not None
        child.stdin.close()
        await child.wait()
        raise asyncio.CancelledError

    async def heard(child: asyncio.subprocess.Process, *told: Any) -> SparseFile:
        said = await followed(child, *told)
        wait = child.wait

        async def while_it_is_waited_for() -> int:
            monkeypatch.setattr(child, "wait", wait)
            raise asyncio.CancelledError

        monkeypatch.setattr(child, "wait", while_it_is_waited_for)
        return said

    for called_off in (unheard, heard):
        monkeypatch.setattr(sparse_copy, "_followed", called_off)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(write_sparse(plan))
        assert list(tmp_path.iterdir()) == []


def test_a_lone_file_is_not_called_like_a_part(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="what a part of a split model is called"):
        plan_sparse(model, "0", tmp_path / "x-00001-of-00002.gguf")


def test_a_limit_of_file_sizes_is_told(model: Path, tmp_path: Path) -> None:
    plan = plan_sparse(model, "0-3", tmp_path / "new.gguf")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(ModelError, match=r"cannot be written: .*File too large"):
            asyncio.run(write_sparse(plan))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_the_command_tells_first_and_writes_then(model: Path, tmp_path: Path) -> None:
    argv = ["models", "sparse", str(model), "--keep", "output,1", "--json"]
    argv += ["--out", str(tmp_path / "t.gguf")]
    told = CliRunner().invoke(cli, [*argv, "--dry-run"])
    assert json.loads(told.stdout)["written"] == []
    assert list(tmp_path.iterdir()) == []
    done = json.loads(CliRunner().invoke(cli, argv).stdout)
    (written,) = done["written"]
    assert written["kept_bytes"] == done["plan"]["kept_bytes"]
    assert written["path"] == str(tmp_path / "t.gguf")
    shown = CliRunner().invoke(cli, ["models", "info", written["path"]]).stdout
    assert "sparse: output, 1 of big.gguf" in shown
    os.unlink(written["path"])


def test_a_catalogue_tells_what_is_there(model: Path, tmp_path: Path) -> None:
    from backends.models.search import Folder

    made(model, "0-2", tmp_path / "head.gguf")

    async def listed() -> list[str]:
        async with local_agent_for_now(tmp_path / "run") as agent:
            catalogue = Catalogue(agent, [Folder("models", tmp_path)])
            return [found.sparse for found in (await catalogue.refresh()).models]

    assert asyncio.run(listed()) == ["sparse: 0–2 of big.gguf"]
