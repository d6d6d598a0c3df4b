"""Thin files: what is kept, what they say of themselves, and how they are written."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
import xxhash
from click.testing import CliRunner
from msgspec.structs import replace

from backends.errors import ModelError
from backends.models.catalogue import Catalogue
from backends.models.layers import read_model
from backends.models.thin import IDENTITY, KEPT, Keep, parse_keep, thin_words
from backends.models.thinning import plan_thin, write_thin
from tests.engine.synthetic import write_llama
from tests.unit.models.ggufs import write_gguf
from tui.cli.main import cli

if TYPE_CHECKING:
    from pathlib import Path

N_LAYER = 4
CHUNK_BYTES = 1 << 20
HEADER_BYTES_MAX = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with tensors of more than a chunk."""
    file = tmp_path_factory.mktemp("model") / "big.gguf"
    write_llama(file, n_layer=N_LAYER, n_embd=512, n_ff=2048)
    return file


def made(model: Path, keep: str, out: Path | None = None) -> Path:
    """A thin file of it; the first part."""
    return _path(asyncio.run(write_thin(plan_thin(model, keep, out)))[0].path)


def _path(text: str) -> Path:
    from pathlib import Path

    return Path(text)


def test_what_is_kept_is_there_and_the_rest_are_holes(
    model: Path, tmp_path: Path
) -> None:
    thin = made(model, "output,0-1", tmp_path / "head.gguf")
    whole, there = gguf.GGUFReader(model), gguf.GGUFReader(thin)
    holes = [t for t in whole.tensors if t.name.startswith(("blk.2.", "blk.3."))]
    names = {tensor.name for tensor in holes}
    for before, after in zip(whole.tensors, there.tensors, strict=True):
        assert (before.name, before.tensor_type) == (after.name, after.tensor_type)
        same = np.array_equal(before.data, after.data)
        assert same if before.name not in names else not np.any(after.data)
    # What the holes stand for.
    chunks = [
        xxhash.xxh64_intdigest(data[at : at + CHUNK_BYTES])
        for tensor in holes
        for data in [tensor.data.tobytes()]
        for at in range(0, len(data), CHUNK_BYTES)
    ]
    assert there.fields["dllm.thin.chunks"].contents() == chunks
    kept_bytes = sum(int(t.n_bytes) for t in whole.tensors if t.name not in names)
    assert thin.stat().st_blocks * 512 < kept_bytes + HEADER_BYTES_MAX
    assert thin.stat().st_size >= model.stat().st_size
    info = read_model(thin)
    assert info.thin is not None
    assert info.thin.layers == (0, 1)
    assert info.thin.output
    assert info.thin.embedding
    assert info.thin.kept_bytes == kept_bytes
    assert info.thin.source == str(model)
    # Of all else it tells the same.
    own = {"path": "", "files": (), "size_bytes": 0, "thin": None}
    assert replace(info, **own) == replace(read_model(model), **own)


def test_every_part_of_a_split_model_is_thin(tmp_path: Path) -> None:
    write_llama(tmp_path / "s.gguf", n_layer=N_LAYER, n_embd=64, n_ff=64, split=12)
    parts = sorted(tmp_path.glob("s-*.gguf"))
    thin = made(parts[1], "3", tmp_path / "few.gguf")
    assert thin.name == f"few-00001-of-0000{len(parts)}.gguf"
    info = read_model(thin)
    assert len(info.files) == len(parts)
    assert info.thin is not None
    assert thin_words(info.thin) == f"thin: 3 of {parts[0].name}"


def test_nothing_is_overwritten_and_nothing_half_is_left(
    model: Path, tmp_path: Path
) -> None:
    there = tmp_path / "big.gguf"
    there.write_text("mine")
    for out in (there, tmp_path):
        with pytest.raises(ModelError, match=r"big\.gguf is there already"):
            plan_thin(model, "0", out)
    plan = plan_thin(model, "0", tmp_path / "new.gguf")
    # Somebody else was quicker.
    late = replace(plan, targets=(str(there),))
    with pytest.raises(ModelError, match=r"big\.gguf is there already"):
        asyncio.run(write_thin(late))
    with pytest.raises(ModelError, match="are free there"):
        asyncio.run(write_thin(replace(plan, free_bytes=1)))
    with pytest.raises(ModelError, match=r"no\.gguf cannot be read"):
        asyncio.run(write_thin(replace(plan, files=(str(tmp_path / "no.gguf"),))))
    assert there.read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == [there]


def test_an_end_in_between_leaves_nothing(model: Path, tmp_path: Path) -> None:
    plan = plan_thin(model, "0", tmp_path / "new.gguf")

    async def ended() -> None:
        def cancel(_: int) -> None:
            task.cancel()

        task = asyncio.ensure_future(write_thin(plan, cancel))
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


def test_a_thin_file_is_not_thinned_again(model: Path, tmp_path: Path) -> None:
    thin = made(model, "0", tmp_path / "a.gguf")
    with pytest.raises(ModelError, match=rf"thin already.*{model.name}"):
        plan_thin(thin, "0")


def test_a_record_that_says_nothing_is_refused(tmp_path: Path) -> None:
    for key, said in ((KEPT, [4, 2]), (KEPT, [1]), (KEPT, "all"), (IDENTITY, "1")):
        file = write_gguf(tmp_path / "t.gguf", metadata={key: said})
        with pytest.raises(ModelError, match="does not say where its holes are"):
            read_model(file)


def test_the_command_tells_first_and_writes_then(model: Path, tmp_path: Path) -> None:
    argv = ["models", "thin", str(model), "--keep", "output,1", "--json"]
    argv += ["--out", str(tmp_path / "t.gguf")]
    told = CliRunner().invoke(cli, [*argv, "--dry-run"])
    assert json.loads(told.stdout)["written"] == []
    assert list(tmp_path.iterdir()) == []
    done = json.loads(CliRunner().invoke(cli, argv).stdout)
    (written,) = done["written"]
    assert written["kept_bytes"] == done["plan"]["kept_bytes"]
    assert written["path"] == str(tmp_path / "t.gguf")
    shown = CliRunner().invoke(cli, ["models", "info", written["path"]]).stdout
    assert "thin: output, 1 of big.gguf" in shown
    os.unlink(written["path"])


def test_a_catalogue_tells_what_is_there(model: Path, tmp_path: Path) -> None:
    from backends.machines.agent.here import local_host_for_now
    from backends.models.folders import Folder

    made(model, "0-2", tmp_path / "head.gguf")

    async def listed() -> list[str]:
        async with local_host_for_now(tmp_path / "run") as host:
            catalogue = Catalogue(host, [Folder("models", tmp_path)])
            return [found.thin for found in (await catalogue.refresh()).models]

    assert asyncio.run(listed()) == ["thin: 0–2 of big.gguf"]
