"""Deleting models and leftovers in every cache, with a real agent on real files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir

from backends.demo import MODEL_PATH
from backends.errors import MachineError, ModelError, UsageError
from backends.machines.agent import AgentSession
from backends.models.removal import DAY_S, leftovers, model_removal, remove
from backends.models.search import Folder, search
from backends.state.models import Removal, RemovedFile
from tests.unit.models.ggufs import write_gguf, write_split

LONG_AGO_S = 1_000_000_000.0


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


class Hub:
    """A repository in a Hugging Face cache, as the hub's own library lays it out."""

    def __init__(self, hub: Path) -> None:
        self.folder = hub / "models--org--repo"

    def add(self, commit: str, name: str, blob: str) -> Path:
        """Link a blob, written where it is missing, under a name of a commit."""
        blobs = self.folder / "blobs"
        blobs.mkdir(parents=True, exist_ok=True)
        if not (blobs / blob).exists():
            write_gguf(blobs / blob)
        link = self.folder / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blobs / blob, link.parent))
        return link

    def refer(self, name: str, commit: str) -> None:
        (self.folder / "refs").mkdir(exist_ok=True)
        (self.folder / "refs" / name).write_text(commit)


async def test_every_part_of_a_split_model(agent: AgentSession, tmp_path: Path) -> None:
    parts = write_split(tmp_path, "big", 3)
    other = write_gguf(tmp_path / "other.gguf")
    found = await model_removal(agent, str(parts[1]))
    assert [file.path for file in found.files] == list(map(str, parts))
    assert 0 < found.size_bytes < 1 << 20
    assert left(tmp_path) == sorted([*(p.name for p in parts), other.name]), "a plan"
    await remove(agent, found)
    assert left(tmp_path) == ["other.gguf"]


async def test_of_a_link_only_the_link(agent: AgentSession, tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "elsewhere.gguf")
    link = tmp_path / "models" / "m.gguf"
    link.parent.mkdir()
    link.symlink_to(model)
    found = await model_removal(agent, str(link), used={str(model): "serve"})
    assert [file.path for file in found.files] == [str(link)]
    assert found.kept.startswith(f"{model} stays")
    await remove(agent, found)
    assert left(tmp_path) == ["elsewhere.gguf", "models"]


async def test_a_blob_that_another_snapshot_has_stays(
    agent: AgentSession, tmp_path: Path
) -> None:
    hub = Hub(tmp_path)
    one = hub.add("1111", "m.gguf", "aa")
    hub.add("2222", "m.gguf", "aa")
    hub.refer("main", "2222")
    found = await model_removal(agent, str(one))
    assert [file.path for file in found.files] == [str(one)]
    assert "Another snapshot of models--org--repo has the same bytes" in found.kept
    await remove(agent, found)
    assert left(hub.folder) == [
        *("blobs", "blobs/aa", "refs", "refs/main", "snapshots"),
        *("snapshots/2222", "snapshots/2222/m.gguf"),
    ]
    assert not scan_cache_dir(tmp_path).warnings


async def test_who_does_not_see_all_links_deletes_no_blob(
    agent: AgentSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = Hub(tmp_path)
    one = hub.add("1111", "m.gguf", "aa")
    hub.add("2222", "m.gguf", "aa")
    monkeypatch.setattr("backends.machines.agent.FIND_FILES_MAX", 1)
    with pytest.raises(MachineError, match=r"too many files in .*snapshots"):
        await model_removal(agent, str(one))


async def test_a_file_with_another_name_frees_nothing(
    agent: AgentSession, tmp_path: Path
) -> None:
    model = write_gguf(tmp_path / "m.gguf")
    os.link(model, tmp_path / "other.gguf")
    found = await model_removal(agent, str(model))
    assert found.kept.startswith("m.gguf has another name (a hard link)")
    assert not (await model_removal(agent, str(write_gguf(tmp_path / "n.gguf")))).kept


async def test_a_name_of_a_commit_goes_with_the_commit(
    agent: AgentSession, tmp_path: Path
) -> None:
    hub = Hub(tmp_path)
    one = hub.add("1111", "m.gguf", "aa")
    hub.add("2222", "m.gguf", "bb")
    hub.refer("main", "2222")
    hub.refer("old", "1111")
    await remove(agent, await model_removal(agent, str(one)))
    assert left(hub.folder / "refs") == ["main"]
    (repository,) = scan_cache_dir(tmp_path).repos
    assert [revision.commit_hash for revision in repository.revisions] == ["2222"]
    assert not scan_cache_dir(tmp_path).warnings


async def test_other_quants_of_a_repository_stay(
    agent: AgentSession, tmp_path: Path
) -> None:
    hub = Hub(tmp_path)
    one = hub.add("1111", "Q8/m.gguf", "aa")
    hub.add("1111", "Q4.gguf", "bb")
    hub.refer("main", "1111")
    found = await model_removal(agent, str(one))
    blob = hub.folder / "blobs" / "aa"
    assert [file.path for file in found.files] == [str(one), str(blob)]
    await remove(agent, found)
    assert not blob.exists()
    assert left(hub.folder / "snapshots") == ["1111", "1111/Q4.gguf"]
    assert (hub.folder / "refs" / "main").read_text() == "1111"


async def test_the_last_file_takes_the_repository_along(
    agent: AgentSession, tmp_path: Path
) -> None:
    hub = Hub(tmp_path)
    link = hub.add("1111", "m.gguf", "aa")
    hub.refer("main", "1111")
    absent = hub.folder / ".no_exist" / "1111" / "config.json"
    absent.parent.mkdir(parents=True)
    absent.touch()
    await remove(agent, await model_removal(agent, str(link)))
    assert left(tmp_path) == []


async def test_a_half_download_keeps_its_repository(
    agent: AgentSession, tmp_path: Path
) -> None:
    hub = Hub(tmp_path)
    link = hub.add("1111", "m.gguf", "aa")
    (hub.folder / "blobs" / "bb.incomplete").write_bytes(b"half")
    await remove(agent, await model_removal(agent, str(link)))
    assert left(hub.folder) == ["blobs", "blobs/bb.incomplete"]


async def test_the_notes_of_llama_cpp_go_too(
    agent: AgentSession, tmp_path: Path
) -> None:
    model = write_gguf(tmp_path / "org_repo_m.gguf")
    for ending in (".json", ".etag", ".txt"):
        model.with_name(f"{model.name}{ending}").touch()
    await remove(agent, await model_removal(agent, str(model)))
    assert left(tmp_path) == ["org_repo_m.gguf.txt"]


async def test_a_model_in_use_is_refused(agent: AgentSession, tmp_path: Path) -> None:
    hub = Hub(tmp_path)
    one = hub.add("1111", "m.gguf", "aa")
    two = hub.add("2222", "other.gguf", "bb")
    alias = tmp_path / "alias"
    alias.symlink_to(hub.folder)
    for used in (one, alias / "snapshots" / "1111" / "m.gguf", hub.folder / "blobs/aa"):
        with pytest.raises(UsageError, match="in use: the cluster lab"):
            await model_removal(agent, str(one), used={str(used): "the cluster lab"})
    await model_removal(agent, str(two), used={str(one): "the cluster lab"})


async def test_what_is_not_ours_is_refused(agent: AgentSession, tmp_path: Path) -> None:
    digest = "a" * 64
    blob = tmp_path / "ollama" / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True)
    write_gguf(blob)
    tag = tmp_path / "ollama/manifests/registry.ollama.ai/library/llama3/8b"
    tag.parent.mkdir(parents=True)
    layer = "application/vnd.ollama.image.model"
    tag.write_text(
        json.dumps({"layers": [{"mediaType": layer, "digest": f"sha256:{digest}"}]})
    )
    with pytest.raises(UsageError, match=r"ollama rm llama3:8b"):
        await model_removal(agent, str(blob))
    with pytest.raises(UsageError, match="part of dllm-tui"):
        await model_removal(agent, str(MODEL_PATH))
    with pytest.raises(ModelError, match="There is no"):
        await model_removal(agent, str(tmp_path / "gone.gguf"))
    (tmp_path / "id_rsa").touch()
    for other in ("id_rsa", "ollama", f"ollama/blobs/{'b' * 64}"):
        with pytest.raises(UsageError, match="is no GGUF file"):
            await model_removal(agent, str(tmp_path / other))
    assert blob.exists()
    assert MODEL_PATH.exists()


@pytest.mark.parametrize("folder", [".lmstudio/models", ".cache/lm-studio/models"])
async def test_models_of_lm_studio_are_left_to_it(
    agent: AgentSession, tmp_path: Path, folder: str
) -> None:
    model = tmp_path / folder / "org" / "repo" / "m.gguf"
    model.parent.mkdir(parents=True)
    write_gguf(model)
    with pytest.raises(UsageError, match="LM Studio manages"):
        await model_removal(agent, str(model))


async def test_a_file_that_cannot_be_deleted_is_told(
    agent: AgentSession, tmp_path: Path
) -> None:
    folder = RemovedFile(path=str(tmp_path), size_bytes=0)
    with pytest.raises(MachineError, match="Not all could be deleted on local"):
        await remove(agent, Removal(machine="local", files=(folder,)))


HALVES = (
    "hub/models--a--b/blobs/aa.incomplete",
    "hub/models--a--b/blobs/.bb.part",
    "hub/models--a--b/blobs/.bb.resume",
    "models/m.gguf.part",
    "models/m.gguf.part.identity",
    "llama.cpp/org_m.gguf.downloadInProgress",
)
OTHERS = (
    "lmstudio/org/repo/downloading_m.gguf.part",
    "ollama/blobs/sha256-aa-partial",
    "models/notes.txt",
    "models/cv.resume",
    "models/mail.part",
)


async def test_half_downloads_are_no_models_and_are_leftovers(
    agent: AgentSession, tmp_path: Path
) -> None:
    sources = {"hub": "huggingface"}
    names = ("hub", "models", "llama.cpp", "lmstudio", "ollama")
    folders = [Folder(sources.get(name, name), tmp_path / name) for name in names]
    for name in (*HALVES, *OTHERS):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"half" * 2048)
        os.utime(file, (LONG_AGO_S, LONG_AGO_S))
    fresh = tmp_path / "models" / "fresh.gguf.part"
    fresh.touch()
    write_gguf(tmp_path / "models" / "whole.gguf")
    assert [one.name for one in await search(agent, folders)] == ["whole"]
    assert await paths(agent, folders) == sorted(str(tmp_path / h) for h in HALVES)
    used = {str(tmp_path / HALVES[3]): "a cluster"}
    assert str(tmp_path / HALVES[3]) not in await paths(agent, folders, used=used)
    found = await leftovers(agent, folders)
    assert found.size_bytes == len(HALVES) * 8192
    await remove(agent, found)
    assert not any((tmp_path / name).exists() for name in HALVES)
    assert all((tmp_path / name).exists() for name in OTHERS)
    assert left(tmp_path / "hub") == []
    assert fresh.exists()


async def paths(
    agent: AgentSession, folders: list[Folder], **more: object
) -> list[str]:
    found = await leftovers(agent, folders, **more)  # type: ignore[arg-type]
    return sorted(file.path for file in found.files)


async def test_a_file_of_today_is_no_leftover(
    agent: AgentSession, tmp_path: Path
) -> None:
    (tmp_path / "m.gguf.part").touch()
    folders = [Folder("models", tmp_path)]
    assert await paths(agent, folders) == []
    assert await paths(agent, folders, older_than_s=-DAY_S) != []


async def test_one_blob_of_two_caches_is_named_by_the_hub(
    agent: AgentSession, tmp_path: Path
) -> None:
    Hub(tmp_path).add("1111", "Q8/m.gguf", "aa")
    found = await search(agent, [Folder("llama.cpp", tmp_path)])
    assert [one.name for one in found] == ["org/repo/Q8/m"]
