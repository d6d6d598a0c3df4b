"""What clients are told, and how it gets into their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from click.testing import CliRunner
from msgspec.structs import replace

from backends.client_config import CLIENTS, ClientProgram, ServedApi, served
from backends.errors import DllmError, UsageError
from backends.state import (
    ClusterSnapshot,
    ModelInfo,
    Plan,
    ServerSettings,
    Share,
    Split,
)
from tui.cli import connect as connect_module
from tui.cli.main import cli

HERE = ServedApi(url="http://127.0.0.1:8090/v1", model="big q4", ctx_size=4096)
THERE = ServedApi(url="https://studio:8090/v1", model="big q4", ctx_size=4096)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "PI_CODING_AGENT_DIR", "LLM_USER_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def snapshot(monkeypatch: pytest.MonkeyPatch) -> ClusterSnapshot:
    """Of a cluster that serves, which the command is told of."""
    plan = Plan(
        model="/models/big-q4-00001-of-00002.gguf",
        split=Split(n_layer=1, shares=(Share(device="local/CPU", layers=2),)),
        ctx_size=8192,
        server=ServerSettings(slots=2),
    )
    there = ClusterSnapshot(plan=plan, api_url="http://127.0.0.1:8090/v1")

    async def told(cluster: str) -> ClusterSnapshot:
        return there

    monkeypatch.setattr(connect_module, "current_snapshot", told)
    return there


def test_what_is_served(snapshot: ClusterSnapshot) -> None:
    it = served(snapshot, None)
    assert (it.url, it.model, it.ctx_size) == (snapshot.api_url, "big-q4", 4096)
    assert not it.needs_key
    trained = ModelInfo(
        path="m", arch="llama", n_layer=1, n_embd=8, n_vocab=8, n_ctx_train=1024
    )
    assert served(replace(snapshot, model=trained), None).ctx_size == 1024
    for url in ("http://studio:8090", "http://studio:8090/", "http://studio:8090/v1"):
        elsewhere = served(snapshot, url)
        assert elsewhere.url == "http://studio:8090/v1"
        assert elsewhere.needs_key
    for url in ("studio:8090", "ftp://x", "http://[", "http://x/'$(y)'"):
        with pytest.raises(UsageError, match="is no URL"):
            served(snapshot, url)
    with pytest.raises(DllmError, match="Launch first"):
        served(ClusterSnapshot(), None)


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS.keys())
@pytest.mark.parametrize("it", [HERE, THERE], ids=["here", "there"])
def test_each_client_is_told_what_and_how(client: ClientProgram, it: ServedApi) -> None:
    recipe = client.recipe(it)
    assert it.url in recipe.text
    assert it.model in recipe.text
    told = " ".join([recipe.text, recipe.key, *recipe.use])
    assert ("API_KEY" in told or "keys set" in told) or not it.needs_key


@pytest.mark.parametrize("it", [HERE, THERE], ids=["here", "there"])
@pytest.mark.parametrize("name", ["aider", "continue", "llm"])
def test_yaml_says_what_was_meant(name: str, it: ServedApi) -> None:
    """Also for names that a reader of YAML could take for something else."""
    told = yaml.safe_load(CLIENTS[name].recipe(replace(it, model="no: #1")).text)
    if name == "aider":
        assert told["model"] == "openai/no: #1"
        assert told["show-model-warnings"] is False
        assert ("openai-api-key" in told) is not it.needs_key
    elif name == "continue":
        (entry,) = told["models"]
        assert entry["model"] == "no: #1"
        assert entry["defaultCompletionOptions"] == {"contextLength": 4096}
        assert told["schema"] == "v1"
    else:
        key = {"api_key_name": "dllm"} if it.needs_key else {}
        known = {"model_id": "dllm", "model_name": "no: #1", "api_base": it.url}
        assert told == [known | key]


def test_zed_is_told_what_its_settings_have_to_say(home: Path) -> None:
    """All that it insists on, and where it looks for it."""
    recipe = CLIENTS["zed"].recipe(HERE)
    assert recipe.file == home / ".config" / "zed" / "settings.json"
    capabilities = {
        "tools": True,
        "images": False,
        "parallel_tool_calls": False,
        "prompt_cache_key": False,
    }
    model = {
        "name": "big q4",
        "display_name": "big q4",
        "max_tokens": 4096,
        "capabilities": capabilities,
    }
    ours = {"api_url": HERE.url, "available_models": [model]}
    assert json.loads(recipe.text) == {
        "language_models": {"openai_compatible": {"dllm": ours}}
    }


@pytest.mark.parametrize(
    ("provider", "variable"),
    [
        ("dllm", "DLLM_API_KEY"),
        ("dllm-lab", "DLLM_LAB_API_KEY"),
        ("dllm-lab2", "DLLM_LAB_2_API_KEY"),
        ("dllm-70b_at-home", "DLLM_70_B_AT_HOME_API_KEY"),
        ("dllm-bigLab", "DLLM_BIG_LAB_API_KEY"),
        ("dllm-GPULab", "DLLM_GPU_LAB_API_KEY"),
    ],
)
def test_zed_looks_for_key_by_words_of_provider(provider: str, variable: str) -> None:
    here, there = (
        CLIENTS["zed"].recipe(replace(it, provider=provider)) for it in (HERE, THERE)
    )
    assert here.more == {variable: "none"}
    assert (there.key, there.more) == (variable, {})


def run(*arguments: str) -> tuple[str, str]:
    result = CliRunner().invoke(cli, ["connect", *arguments], catch_exceptions=False)
    return result.stdout, result.stderr


def test_no_file_is_written_over_another(snapshot: ClusterSnapshot, home: Path) -> None:
    file = home / ".pi" / "agent" / "models.json"
    told = json.loads(run("pi", "--write", "--json")[0])
    assert told["written"] == str(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text())["providers"]["dllm"]["apiKey"] == "none"
    for mine in ("{ mine", ""):
        file.write_text(mine)
        with pytest.raises(DllmError, match="is there already and stays as it is"):
            run("pi", "--write")
        assert file.read_text() == mine
        assert "add it to what is there" in run("pi")[1]
    file.unlink()
    file.symlink_to(home / "nothing")
    with pytest.raises(DllmError, match="is there already"):
        run("pi", "--write")
    assert not list(home.rglob("*.tmp"))


def test_an_unwritable_file_is_told_of(snapshot: ClusterSnapshot, home: Path) -> None:
    (home / ".pi").touch()
    with pytest.raises(DllmError, match=r"Cannot write .*models\.json"):
        run("pi", "--write")


def test_what_is_printed(snapshot: ClusterSnapshot, home: Path) -> None:
    text, said = run("pi")
    assert json.loads(text)["providers"]["dllm"]["apiKey"] == "none"
    assert "--write writes it there" in said
    assert "pi --provider dllm --model big-q4" in said
    assert not (home / ".pi").exists()
    text, said = run("zed", "--url", "http://studio:8090")
    assert "export DLLM_API_KEY=…" in said
    assert "aider" in run()[0]
    assert set(json.loads(run("--json")[0])) == set(CLIENTS)
    with pytest.raises(UsageError, match="Did you mean opencode"):
        run("opencod")
    with pytest.raises(UsageError, match="no file to write"):
        run("curl", "--write")
