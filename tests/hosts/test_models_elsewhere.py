"""A model that only another machine holds: read, listed, served from there."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from backends.demo import MODEL_PATH
from backends.errors import ModelError
from backends.machines.model_files import read_there
from backends.models.layers import read_model
from tests.hosts.reaching import reached
from tests.hosts.test_pairs import BESIDE, link, process
from tests.hosts.user import answer, prepared
from tests.kit.models import write_llama

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hosts.network import Network
    from tests.hosts.user import HeadUser

NAME = "only 'there'.gguf"
LONG_AGO_S = 1_000_000_000
SPLIT = {"local/CPU": 4, "bob/CPU": 9}
"""Of the bundled model: twelve layers and the output."""


def put(network: Network, source: Path | str) -> str:
    """A model on ada's disk; its path there."""
    folder = network.peer("ada").home / ".models"
    folder.mkdir()
    shutil.copy(source, folder / NAME)
    return f"{network.peer('ada').remote_home}/.models/{NAME}"


def test_the_head_goes_where_the_model_is(network: Network, user: HeadUser) -> None:
    path = put(network, MODEL_PATH)
    prepared(user, "ada", "bob")
    user.run("up", "--model", f"ada:{path}", "--peer", "bob", "--detach")
    status = user.status()
    assert status["plan"]["head"] == "ada"
    assert status["measured"]["mismatches"] == []
    assert answer(user)
    user.run("stop")
    here = user.run("up", "--model", f"ada:{path}", "--head", "local", code=1)
    assert "--head ada" in here.stderr
    # Found by its bytes, under whatever name.
    same = user.run("models", "verify", str(MODEL_PATH), "--peer", "ada")
    assert f"ada: the same by BLAKE3: all 111 tensors  {path}" in same.stdout
    missing = user.run("models", "verify", str(MODEL_PATH), "--peer", "bob", code=1)
    assert "bob has no copy" in missing.stderr
    seed = ("models", "seed", str(MODEL_PATH), "--peer", "ada")
    assert "0 tensors, 0 B" in user.run(*seed).stdout
    assert user.json("models", "cache", "show", "--peer", "ada")["files"] == []
    kept = network.peer("ada").home / ".cache" / "dllm-tui" / "tensors"
    assert list(kept.glob("*.table"))
    user.run("peers", "clean", "ada")
    assert not kept.exists()


def test_a_sparse_head_gets_the_rest_from_a_machine_that_has_it(
    network: Network, user: HeadUser
) -> None:
    """Nobody says a split: the head computes what it has."""
    prepared(user, "bob")
    copied = user.json("models", "copy", str(MODEL_PATH), "bob")
    head = user.home / "head.gguf"
    keep = ("--keep", "0-3", "--out", str(head))
    user.run("models", "sparse", str(MODEL_PATH), *keep)
    user.run("up", "--model", str(head), "--peer", "bob", "--detach")
    status = user.status()
    shares = status["plan"]["split"]["shares"]
    assert {share["device"]: share["layers"] for share in shares} == SPLIT
    assert status["measured"]["mismatches"] == []
    assert answer(user)
    # What the worker has does not cross.
    seen = link(user)
    assert copied["path"] in process(user, BESIDE)["argv"]
    assert "has the model on disk" in seen["why"]
    assert seen["weight_bytes_sent"] == 0
    assert seen["weight_bytes_home"] > MODEL_PATH.stat().st_size // 2
    assert seen["wire_bytes_up"] < seen["weight_bytes_home"] // 4


@pytest.mark.trial
def test_a_copy_on_a_peer_is_deleted_unless_a_cluster_uses_it(
    network: Network, user: HeadUser
) -> None:
    prepared(user, "bob")
    user.run("models", "copy", str(MODEL_PATH), "bob")
    folder = network.peer("bob").home / ".models"
    copy, half = folder / MODEL_PATH.name, folder / "half.gguf.part"
    half.touch()
    os.utime(half, (LONG_AGO_S, LONG_AGO_S))
    user.run("up", "--model", str(MODEL_PATH), "--peer", "bob", "--detach")
    delete = ("models", "rm", MODEL_PATH.name, "--peer", "bob")
    refused = user.run(*delete, "--delete", code=2)
    assert "is in use: the cluster default runs it" in refused.stderr
    user.run("stop")
    planned = user.json(*delete)
    assert [file["path"] for file in planned["files"]] == [
        f"{network.peer('bob').remote_home}/.models/{MODEL_PATH.name}"
    ]
    assert not planned["deleted"]
    assert copy.exists()
    user.run(*delete, "--delete")
    assert not copy.exists()
    held = [m["held_by"] for m in user.json("models", "list")["models"]]
    assert not any("bob" in names for names in held), "it was looked at again"
    left = user.json("models", "prune", "--peer", "bob", "--delete")
    assert [file["what"] for file in left["files"]] == ["half download or copy"]
    assert not half.exists()


async def test_only_the_header_comes(network: Network, tmp_path: Path) -> None:
    big = tmp_path / "big.gguf"
    write_llama(big, n_layer=8, n_embd=256, n_ff=1024)
    path = put(network, big)
    network.write_ssh_config()
    async with reached("ada") as ada:
        found = await read_there(ada, path, tmp_path / "cache")
        again = await read_there(ada, path, tmp_path / "cache")
        with pytest.raises(ModelError, match="no /nowhere on ada"):
            await read_there(ada, "/nowhere", tmp_path / "cache")
    assert found == again
    ours = read_model(big)
    assert found.layers == ours.layers
    assert found.path == f"ada:{path}"
    copies = [p for p in (tmp_path / "cache").rglob("*.gguf") if p.is_file()]
    assert sum(p.stat().st_blocks * 512 for p in copies) < big.stat().st_size / 4
