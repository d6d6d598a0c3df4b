"""What clients are told, and how it gets into their files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from backends.connect import merging
from backends.connect.merging import merge_into
from backends.connect.recipes import CLIENTS, Client
from backends.connect.served import Served, served
from backends.connect.yaml_text import with_entry, with_entry_below, with_settings
from backends.errors import DllmError, UsageError
from backends.state import (
    ClusterSnapshot,
    ModelInfo,
    Plan,
    ServerSettings,
    Share,
    Split,
)
from backends.writing import become
from tui.cli import connect as connect_module
from tui.cli.main import cli

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Served(url="http://127.0.0.1:8090/v1", model="big q4", ctx_size=4096)
THERE = Served(url="https://studio:8090/v1", model="big q4", ctx_size=4096)


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
def test_every_client_is_told_where_what_and_how(client: Client, it: Served) -> None:
    recipe = client.recipe(it)
    assert it.url in recipe.text
    assert it.model in recipe.text
    told = " ".join([recipe.text, recipe.key, *recipe.use])
    assert ("API_KEY" in told or "keys set" in told) or not it.needs_key
    # What is merged twice is merged once.
    assert recipe.merge(recipe.text) == recipe.text


@pytest.mark.parametrize("name", ["pi", "opencode", "zed"])
def test_json_keeps_what_others_wrote(name: str) -> None:
    first = CLIENTS[name].recipe(HERE)
    mine = json.loads(first.text)
    other: dict[str, Any] = {"mine": {"a": [1]}, **{k: {"x": 1} for k in mine}}
    other.pop("$schema", None)
    merged = json.loads(first.merge(json.dumps(other)))
    assert merged["mine"] == {"a": [1]}
    assert all(
        value["x"] == 1
        for key, value in merged.items()
        if key not in ("mine", "$schema")
    )
    assert "studio" in CLIENTS[name].recipe(THERE).merge(json.dumps(merged))


def test_zed_is_told_what_its_settings_have_to_say(home: Path) -> None:
    """All that it insists on, and where it looks for it."""
    recipe = CLIENTS["zed"].recipe(HERE)
    assert recipe.file == home / ".config" / "zed" / "settings.json"
    mine = '// mine\n{"theme": "One", "language_models": {"openai": {}},}\n'
    told = recipe.merge(mine)
    assert told.startswith('// mine\n{"theme": "One"')
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
    assert json.loads(told.removeprefix("// mine\n")) == {
        "theme": "One",
        "language_models": {"openai": {}, "openai_compatible": {"dllm": ours}},
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
def test_zed_looks_for_a_key_by_the_words_of_the_provider(
    provider: str, variable: str
) -> None:
    here, there = (
        CLIENTS["zed"].recipe(replace(it, provider=provider)) for it in (HERE, THERE)
    )
    assert here.more == {variable: "none"}
    assert (there.key, there.more) == (variable, {})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'a: "new"\n'),
        ("# mine\n", '# mine\na: "new"\n'),
        ("a: 'it''s # it' # mine\n", 'a: "new"        # mine\n'),
        ("a: x#y\nb: 0x1F\nc: yes\n", 'a: "new"\nb: 0x1F\nc: yes\n'),
        ("a: x\r\nb: 1\r\n", 'a: "new"\r\nb: 1\r\n'),
        ("a:\n# mine\nb: 1\n", 'a: "new"\n# mine\nb: 1\n'),
        ("a: >\n  some\n  words\nb: 'q'\n", "a: \"new\"\nb: 'q'\n"),
        ("---\n{b: [1, 2], a: x}\n", '--- {b: [1, 2], a: "new"}\n'),
        ("b: &b\n    c: 1\nd:\n    <<: *b\n", None),
    ],
)
def test_a_setting_of_yaml_changes_in_its_value_alone(
    before: str, after: str | None
) -> None:
    after = f'{before}a: "new"\n' if after is None else after
    assert with_settings(before, {"a": "new"}) == after
    assert with_settings(after, {"a": "new"}) == after


@pytest.mark.parametrize("text", ["[x]\n", "a: [\n", "a: 1\na: 2\n", "a: *b\n", "a\n"])
def test_yaml_that_cannot_be_added_to_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(DllmError) as caught:
        with_settings(text, {"a": "new"})
    assert "\n" not in caught.value.what


def test_aider_is_told_of_no_key_only_where_none_is_needed() -> None:
    here, there = (CLIENTS["aider"].recipe(it) for it in (HERE, THERE))
    mine = "dark-mode: true\n"
    assert 'openai-api-key: "none"' in here.merge(mine)
    assert there.merge(here.merge(mine)) == there.merge(mine)
    assert "openai-api-key: sk" in there.merge("openai-api-key: sk\n")


def is_ours(there: Mapping[str, object]) -> bool:
    return there.get("id") == "dllm"


def test_lists_of_yaml_get_one_entry_of_ours() -> None:
    other = "- id: other # mine\n"
    once = with_entry(other, {"id": "dllm", "x": 1, "y": "no"}, is_ours)
    assert once == other + '- id: "dllm"\n  x: 1\n  y: "no"\n'
    more = once + "# about the next\n- id: next\n"
    again = with_entry(more, {"id": "dllm", "y": "b"}, is_ours)
    assert again == more.replace("  x: 1\n", "").replace('"no"', '"b"')
    assert with_entry("[]\n", {"x": 1}, is_ours) == "- x: 1\n"
    assert with_entry("- plain\n", {"x": 1}, is_ours) == "- plain\n- x: 1\n"
    assert "\n  - x: 1\n" in with_entry("  - id: a\n", {"x": 1}, is_ours)


@pytest.mark.parametrize(
    ("before", "indent"),
    [
        ("name: x\nmodels:\n  - name: a\n    b: 1\nrules: []\n", "  "),
        ("models: # mine\n- name: a\n", ""),
        ("models: []\nrules: []\n", ""),
        ("models:\n    - name: a # first\n", "    "),
        ("name: x\n", ""),
    ],
)
def test_an_entry_below_a_name_stands_in_as_the_others(
    before: str, indent: str
) -> None:
    after = with_entry_below(before, "models", {"id": "dllm", "x": 1}, is_ours)
    assert f'\n{indent}- id: "dllm"\n{indent}  x: 1\n' in after
    assert with_entry_below(after, "models", {"id": "dllm", "x": 1}, is_ours) == after
    for line in before.splitlines():
        assert line.replace("models: []", "models:") in after
    with pytest.raises(DllmError, match="models is no list"):
        with_entry_below("models: {}", "models", {"x": 1}, is_ours)


def run(*arguments: str) -> tuple[str, str]:
    """What the command prints, and says."""
    result = CliRunner().invoke(cli, ["connect", *arguments], catch_exceptions=False)
    return result.stdout, result.stderr


def test_it_is_merged_after_a_backup(snapshot: ClusterSnapshot, home: Path) -> None:
    folder = home / ".pi" / "agent"
    folder.mkdir(parents=True)
    real = home / "dotfiles.json"
    real.write_text('{"providers": {"other": {}}} // mine\n')
    real.chmod(0o640)
    (folder / "models.json").symlink_to(real)
    told = json.loads(run("pi", "--write", "--json")[0])
    assert told["written"]["changed"]
    assert (folder / "models.json").is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    backup = Path(told["written"]["backup"])
    assert backup.read_text() == '{"providers": {"other": {}}} // mine\n'
    assert backup.stat().st_mode & 0o777 == 0o640
    after = real.read_text()
    assert '"other": {}' in after
    assert "// mine" in after
    assert "says so already" in run("pi", "--write")[1]
    # Twice in one second: what was first is still there.
    run("pi", "--write", "--url", "http://other")
    assert '"baseUrl"' not in backup.read_text()
    run("pi", "--write")
    assert real.read_text() == after
    assert not list(folder.glob("*.tmp")) + list(home.glob("*.tmp"))


def test_a_file_that_cannot_be_understood_stays(home: Path) -> None:
    file = home / "settings.json"
    file.write_text("{ nonsense")
    with pytest.raises(DllmError, match="cannot be added to"):
        merge_into(file, CLIENTS["zed"].recipe(HERE))
    assert file.read_text() == "{ nonsense"
    assert list(home.iterdir()) == [file]


def test_a_file_that_is_not_to_be_written_stays(home: Path) -> None:
    file, recipe = home / "settings.json", CLIENTS["zed"].recipe(HERE)
    file.write_text("{}")
    file.chmod(0o444)
    with pytest.raises(DllmError, match=r"Cannot write .* \(it is read-only\)"):
        merge_into(file, recipe)
    assert (file.read_text(), list(home.iterdir())) == ("{}", [file])
    file.unlink()
    file.symlink_to(file)
    with pytest.raises(DllmError, match="Cannot read"):
        merge_into(file, recipe)
    assert file.is_symlink()


def test_no_backup_takes_the_place_of_another(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of one made in the same second nor of a link to nothing."""
    monkeypatch.setattr(time, "strftime", lambda form: "now")
    file, recipe = home / "settings.json", CLIENTS["zed"].recipe(HERE)
    file.write_text("{}")
    link = home / "settings.json.before-dllm-now"
    link.symlink_to(home / "nothing")
    other = home / "settings.json.before-dllm-now-1"

    def late(aside: Path, backup: Path) -> None:
        if backup == other:
            other.write_text("another's")
        become(aside, backup)

    monkeypatch.setattr(merging, "become", late)
    merged = merge_into(file, recipe)
    assert merged.backup == f"{other}"[:-1] + "2"
    assert Path(merged.backup).read_text() == "{}"
    assert link.is_symlink()
    assert other.read_text() == "another's"
    assert not list(home.glob(".*"))


def test_what_is_printed(snapshot: ClusterSnapshot, home: Path) -> None:
    text, said = run("pi")
    assert json.loads(text)["providers"]["dllm"]["apiKey"] == "none"
    assert "--write merges it there" in said
    assert "pi --provider dllm --model big-q4" in said
    assert not (home / ".pi").exists()
    text, said = run("zed", "--url", "http://studio:8090")
    assert "export DLLM_API_KEY=…" in said
    assert "aider" in run("--list")[0]
    assert set(json.loads(run("--json")[0])) == set(CLIENTS)
    with pytest.raises(UsageError, match="Did you mean opencode"):
        run("opencod")
    with pytest.raises(UsageError, match="no file to write"):
        run("curl", "--write")
