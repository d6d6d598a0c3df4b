"""The catalogue over real folders, names to complete, and folders in words."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from backends.demo import MODEL_PATH
from backends.errors import ModelError
from backends.machines.agent import AgentSession
from backends.models.catalogue import LOOK_AGAIN_S, Catalogue, ModelCache
from backends.models.layers import read_model
from backends.models.search import (
    DEPTH_MAX,
    NAMED_MAX,
    NAMES_MAX,
    Folder,
    configured_folders,
    default_folders,
    find_model,
    named_folders,
    names_after,
    search,
)
from backends.state import ModelCatalogue, ModelFile, ModelInfo
from tests.unit.models.ggufs import write_gguf, write_split

NOW = 1_700_000_000.0


class Reads:
    """Counts headers read."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def __call__(self, path: Path) -> ModelInfo:
        self.paths.append(path.name)
        return read_model(path)


def folder(path: Path, source: str = "models") -> Folder:
    path.mkdir(parents=True, exist_ok=True)
    return Folder(source, path)


async def listing(agent: AgentSession, *folders: Folder) -> ModelCatalogue:
    return await Catalogue(agent, folders, clock=lambda: NOW).refresh()


async def models(agent: AgentSession, *folders: Folder) -> dict[str, ModelFile]:
    return {model.name: model for model in (await listing(agent, *folders)).models}


async def test_models_are_named_by_their_place(
    agent: AgentSession, tmp_path: Path
) -> None:
    root = folder(tmp_path / "models")
    (root.path / "sub").mkdir()
    write_gguf(root.path / "sub" / "small.gguf", metadata={"general.file_type": 15})
    write_gguf(root.path / "Top.GGUF")
    (root.path / "readme.txt").write_text("no model")
    found = await listing(agent, root)
    assert [model.name for model in found.models] == ["sub/small", "Top"]
    small = found.models[0]
    assert (small.source, small.arch, small.file_type) == ("models", "llama", "Q4_K_M")
    assert (small.n_layer, small.n_ctx_train, small.problem) == (3, 1024, "")
    assert small.size_bytes == (root.path / "sub" / "small.gguf").stat().st_size
    assert found.folders == (str(root.path),)
    assert found.scanned_at == NOW
    assert not found.scanning


async def test_parts_are_one_model(agent: AgentSession, tmp_path: Path) -> None:
    root = folder(tmp_path)
    parts = write_split(root.path, "big", 3)
    found = await models(agent, root)
    assert list(found) == ["big"]
    assert found["big"].path == str(parts[0])
    assert found["big"].size_bytes == sum(part.stat().st_size for part in parts)
    parts[1].unlink()
    assert (
        "00002-of-00003.gguf is missing" in (await models(agent, root))["big"].problem
    )
    parts[0].unlink()
    assert (
        "00001-of-00003.gguf is missing" in (await models(agent, root))["big"].problem
    )


async def test_broken_files_and_projectors_say_why(
    agent: AgentSession, tmp_path: Path
) -> None:
    root = folder(tmp_path)
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nowhere")
    write_gguf(tmp_path / "mmproj.gguf", {}, arch="clip")
    found = await models(agent, root)
    assert "is not a GGUF file" in found["bad"].problem
    assert "No such file" in found["gone"].problem
    assert "a projector, not a language model" in found["mmproj"].problem


async def test_the_hugging_face_cache(agent: AgentSession, tmp_path: Path) -> None:
    hub = folder(tmp_path / "hub", "huggingface")
    repo = hub.path / "models--org--repo--x"
    (repo / "blobs").mkdir(parents=True)
    blob = write_gguf(repo / "blobs" / "abc")
    for commit in ("1111", "2222"):
        (repo / "snapshots" / commit / "Q8").mkdir(parents=True)
        link = repo / "snapshots" / commit / "Q8" / "m.gguf"
        link.symlink_to(Path("../../../blobs") / blob.name)
    found = await models(agent, hub)
    assert list(found) == ["org/repo--x/Q8/m"]
    assert found["org/repo--x/Q8/m"].path.endswith("snapshots/1111/Q8/m.gguf")


def ollama_store(root: Path, digest: str = "a" * 64) -> Path:
    """A store with one model and the ways a manifest can be broken."""
    blobs = root / "blobs"
    blobs.mkdir(parents=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:0"},
        {
            "mediaType": "application/vnd.ollama.image.model",
            "digest": f"sha256:{digest}",
        },
    ]
    broken: dict[str, object] = {
        "registry.ollama.ai/library/llama3/8b": {"layers": layers},
        "hf.co/someone/repo/Q4": {"layers": layers},
        "registry.ollama.ai/library/cloud/latest": {"layers": []},
        "registry.ollama.ai/library/odd/list": [1, 2],
        "registry.ollama.ai/library/odd/text": {"layers": [None, "x"]},
        "registry.ollama.ai/library/odd/escape": {
            "layers": [{**layers[1], "digest": "sha256:../../../etc/passwd"}]
        },
    }
    for name, content in broken.items():
        manifest = root / "manifests" / name
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_text(json.dumps(content))
    (root / "manifests" / "registry.ollama.ai/library/odd/cut").write_text('{"layers"')
    return blobs / f"sha256-{digest}"


async def test_ollama_by_manifest_name(agent: AgentSession, tmp_path: Path) -> None:
    store = folder(tmp_path / "ollama", "ollama")
    blob = write_gguf(ollama_store(store.path))
    found = await models(agent, store)
    assert list(found) == ["hf.co/someone/repo:Q4"]
    assert found["hf.co/someone/repo:Q4"].path == str(blob)
    for tag in ("llama3:8b", "hf.co/someone/repo:Q4"):
        assert await find_model(tag, agent, [store]) == blob
    blob.unlink()
    assert (
        "No such file" in (await models(agent, store))["hf.co/someone/repo:Q4"].problem
    )


async def test_a_file_linked_twice_is_listed_once_and_its_copy_beside_it(
    agent: AgentSession, tmp_path: Path
) -> None:
    first, second = folder(tmp_path / "a"), folder(tmp_path / "b")
    (second.path / "link.gguf").symlink_to(write_gguf(first.path / "m.gguf"))
    shutil.copy(first.path / "m.gguf", second.path / "copy.gguf")
    assert list(await models(agent, first, second)) == ["copy", "m"]


async def test_loops_and_unreadable_folders_are_passed_over(
    agent: AgentSession, tmp_path: Path
) -> None:
    root = folder(tmp_path / "root")
    (root.path / "loop").symlink_to(root.path)
    (root.path / "self").symlink_to(root.path / "self")
    closed = root.path / "closed"
    closed.mkdir()
    write_gguf(root.path / "m.gguf")
    closed.chmod(0)
    try:
        missing = Folder("models", tmp_path / "missing")
        assert list(await models(agent, root, missing)) == ["m"]
    finally:
        closed.chmod(0o700)


async def test_depth_is_bounded(agent: AgentSession, tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * (DEPTH_MAX + 1))
    deep.mkdir(parents=True)
    (deep / "far.gguf").touch()
    (deep.parent / "near.gguf").touch()
    found = await search(agent, [folder(tmp_path)])
    assert [model.path for model in found] == [deep.parent / "near.gguf"]


async def test_a_name_that_is_not_utf8_is_reported(
    agent: AgentSession, tmp_path: Path
) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.gguf"))
    try:
        write_gguf(path)
    except OSError:
        pytest.skip("this file system only takes UTF-8")
    found = await models(agent, folder(tmp_path))
    assert "not valid UTF-8" in found["caf�"].problem


async def test_an_unchanged_file_is_not_read_again(
    agent: AgentSession, tmp_path: Path
) -> None:
    reads = Reads()
    catalogue = Catalogue(agent, [folder(tmp_path)], read=reads)
    write_gguf(tmp_path / "a.gguf")
    write_gguf(tmp_path / "b.gguf")
    await catalogue.refresh()
    await catalogue.refresh()
    assert reads.paths == ["a.gguf", "b.gguf"]

    os.utime(tmp_path / "a.gguf", (1, 1))
    (tmp_path / "b.gguf").unlink()
    found = await catalogue.refresh()
    assert reads.paths == ["a.gguf", "b.gguf", "a.gguf"]
    assert [model.name for model in found.models] == ["a"]


async def test_a_model_that_is_launched_is_listed_though_it_came_since(
    agent: AgentSession, tmp_path: Path
) -> None:
    catalogue = Catalogue(agent, [folder(tmp_path)], read=(reads := Reads()))
    write_gguf(tmp_path / "a.gguf")
    await catalogue.refresh()
    write_gguf(tmp_path / "b.gguf")
    for name in ("a", "b"):
        catalogue.look_for(str(tmp_path / f"{name}.gguf"))
        assert catalogue.listing.scanning == (name == "b")
    await catalogue.start_refresh()
    assert reads.paths == ["a.gguf", "b.gguf"]


async def test_the_listing_fills_while_the_search_goes_on(
    agent: AgentSession, tmp_path: Path
) -> None:
    for name in "abc":
        write_gguf(tmp_path / f"{name}.gguf")
    reached, go_on = threading.Event(), threading.Event()

    def slow(path: Path) -> ModelInfo:
        if path.name == "c.gguf":
            reached.set()
            go_on.wait(10)
        return read_model(path)

    catalogue = Catalogue(agent, [folder(tmp_path)], read=slow)
    task = catalogue.start_refresh()
    await asyncio.to_thread(reached.wait, 10)
    partial = catalogue.listing
    assert [model.name for model in partial.models] == ["a", "b"]
    assert partial.scanning
    assert catalogue.start_refresh() is task
    go_on.set()
    await task
    assert len(catalogue.listing.models) == 3
    assert not catalogue.listing.scanning


async def test_a_cancelled_search_ends_its_thread(
    agent: AgentSession, tmp_path: Path
) -> None:
    for name in "ab":
        write_gguf(tmp_path / f"{name}.gguf")
    reads = Reads()
    reached, go_on = threading.Event(), threading.Event()

    def slow(path: Path) -> ModelInfo:
        reached.set()
        go_on.wait(10)
        return reads(path)

    catalogue = Catalogue(agent, [folder(tmp_path)], read=slow)
    task = catalogue.start_refresh()
    await asyncio.to_thread(reached.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert reads.paths == ["a.gguf"]
    assert catalogue.listing.models == ()


async def test_names_find_files(agent: AgentSession, tmp_path: Path) -> None:
    root = folder(tmp_path)
    for name in ("one/llama-8b-q4", "two/llama-8b-q8", "two/glm"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_gguf(tmp_path / f"{name}.gguf")
    assert await find_model("two/glm", agent, [root]) == tmp_path / "two/glm.gguf"
    assert await find_model("GLM.gguf", agent, [root]) == tmp_path / "two/glm.gguf"
    assert await find_model("8b-q8", agent, [root]) == tmp_path / "two/llama-8b-q8.gguf"
    with pytest.raises(
        ModelError, match=r"any of 2 models.*one/llama-8b-q4, two/llama"
    ):
        await find_model("llama", agent, [root])
    with pytest.raises(ModelError, match="no model called “zephyr”"):
        await find_model("zephyr", agent, [root])
    again = folder(tmp_path.with_name("again"))
    write_gguf(again.path / "glm.gguf")
    roots = [again, folder(tmp_path / "two")]
    with pytest.raises(ModelError, match=r"Give the path of one: /.*, /.*glm\.gguf"):
        await find_model("glm", agent, roots)


def test_default_folders_follow_the_environment() -> None:
    home = Path("/home/me")
    plain = {(f.source, str(f.path)) for f in default_folders(home, {})}
    assert plain >= {
        ("models", "/home/me/.models"),
        ("huggingface", "/home/me/.cache/huggingface/hub"),
        ("lmstudio", "/home/me/.lmstudio/models"),
        ("lmstudio", "/home/me/.cache/lm-studio/models"),
        ("ollama", "/home/me/.ollama/models"),
        ("ollama", "/usr/share/ollama/.ollama/models"),
        ("llama.cpp", "/home/me/.cache/llama.cpp"),
    }
    env = {"HF_HOME": "/hf", "OLLAMA_MODELS": "/o", "LLAMA_CACHE": "relative"}
    moved = {(f.source, str(f.path)) for f in default_folders(home, env)}
    assert ("huggingface", "/hf/hub") in moved
    assert ("ollama", "/o") in moved
    assert ("llama.cpp", "/home/me/.cache/llama.cpp") in moved
    found = default_folders(home, {"HF_HUB_CACHE": "~/hub", "LLAMA_CACHE": "/cache"})
    assert Folder("huggingface", home / "hub") in found
    assert Folder("llama.cpp", Path("/cache")) in found
    # Configured ones come first.
    folders = configured_folders(["~/big", "/data", "relative"], home, {})
    assert folders[:2] == (
        Folder("models", home / "big"),
        Folder("models", Path("/data")),
    )
    assert folders[2:] == default_folders(home, {})


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


def test_folders_and_models_are_names_and_others_are_none(tmp_path: Path) -> None:
    for folder in ("models", "music", ".cache"):
        (tmp_path / folder).mkdir()
    for file in ("mini.gguf", "Mega.GGUF", "notes.txt", "m\x1b[2J.gguf"):
        (tmp_path / file).touch()
    os.mkdir(os.fsencode(tmp_path) + b"/m\xff")
    at = f"{tmp_path}/"
    assert names_after(at) == ("Mega.GGUF", "mini.gguf", "models/", "music/")
    assert names_after(f"{at}m") == ("mini.gguf", "models/", "music/")
    assert names_after(f"{at}mo") == ("models/",)
    assert names_after(f"{at}.") == (".cache/",)
    assert names_after(f"{at}models") == ("models/",)
    assert names_after(f"{at}models/") == ()


def test_what_is_no_folder_has_no_names(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for typed in (
        "",
        "x",
        "mini:/x",
        f"{tmp_path}/gone/",
        f"{tmp_path}/file/x",
        "/\0/",
    ):
        assert names_after(typed) == ()


def test_a_folder_of_many_is_answered_in_part(tmp_path: Path) -> None:
    for number in range(NAMES_MAX + 5):
        (tmp_path / f"1{number:04}.gguf").touch()
    names = names_after(f"{tmp_path}/")
    assert len(names) == NAMES_MAX
    assert (names[0], names[-1]) == ("10000.gguf", f"1{NAMES_MAX + 4:04}.gguf")
    (tmp_path / "2.gguf").touch()
    assert names_after(f"{tmp_path}/")[-1] == "2.gguf"


def test_a_link_that_leads_nowhere_hides_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "mini.gguf").touch()
    (tmp_path / "there").symlink_to(tmp_path)
    assert names_after(f"{tmp_path}/") == ("mini.gguf", "there/")


async def test_a_peer_is_asked_once_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str]] = []

    async def elsewhere(peer: str, path: str) -> ModelInfo:
        asked.append((peer, path))
        return read_model(MODEL_PATH)

    cache = ModelCache()
    cache.elsewhere = elsewhere
    start = time.monotonic()
    for _ in range(3):
        await cache.get("bob:/m.gguf")
    assert asked == [("bob", "/m.gguf")]
    monkeypatch.setattr(time, "monotonic", lambda: start + LOOK_AGAIN_S + 1)
    await cache.get("bob:/m.gguf")
    assert len(asked) == 2
