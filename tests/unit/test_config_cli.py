"""``dllm-tui config``: values and sources, problems by line, editing and going back."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from backends.client.client import ControllerClient
from backends.config import (
    Config,
    PeerConfig,
    drop_peer,
    load_config,
    problems,
    put_peer,
    rename_peer,
    set_value,
)
from backends.errors import ControllerError, DllmError, UsageError
from backends.paths import Paths, checked_socket, make_private, user_paths
from backends.writing import write_private
from tui.cli import config as config_module
from tui.cli.config import file_problems, template
from tui.cli.main import cli

GOOD = """\
# mine
workers = 3 # three

[keys]
"cluster.launch" = "f11"

[peers.mini]
ssh = "ada@mini"
memory_gib = {CPU = 12.0}
"""


@pytest.fixture(autouse=True)
def file(new_user: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("DLLM_ENGINE_DIR", raising=False)
    file = user_paths().config_file
    file.parent.mkdir(parents=True)
    return file


def config(*words: str, keys: str = "") -> Result:
    return CliRunner().invoke(cli, ["config", *words], input=keys)


def test_each_value_has_its_source(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(GOOD)
    monkeypatch.setenv("DLLM_ENGINE_DIR", "/opt/llama")
    rows = {line.split()[0]: line for line in config("show").output.splitlines()}
    assert rows["workers"].split()[1:3] == ["3", "config.toml:2"]
    assert rows["ctx_size"].split()[1:3] == ["4096", "default"]
    assert rows["engine"].split()[1:3] == ['"/opt/llama"', "DLLM_ENGINE_DIR"]
    assert "config.toml:5" in rows["keys.cluster.launch"]
    assert "config.toml:9" in rows["peers.mini.memory_gib"]
    told = {one["name"]: one for one in json.loads(config("show", "--json").output)}
    assert told["peers.mini.ssh"]["value"] == "ada@mini"
    assert told["peers.mini.ssh"]["line"] == 8
    header, one = config("show", "workers").output.splitlines()
    assert header.split() == ["NAME", "VALUE", "SOURCE", "ALLOWED"]
    assert one.startswith("workers")


def test_a_mistyped_name_is_met_halfway() -> None:
    assert "Did you mean workers?" in str(config("show", "wrokers").exception)


@pytest.mark.parametrize(
    ("text", "line", "what", "allowed"),
    [
        ("\nworkers = 0", 2, "workers cannot be 0", "1 to 15"),
        ('workers = "two"', 1, "workers cannot be 'two'", "a number"),
        ("# x\napi_prot = 1", 2, "no setting api_prot", "Did you mean api_port or"),
        ("mouse = 1", 1, "mouse cannot be 1", "true or false"),
        ('model_dirs = "/m"', 1, "model_dirs cannot be '/m'", '["/models"'),
        ("theme = = 1", 1, "This is not TOML", "lines such as"),
        (
            "[peers.mini]\nthreads = 2",
            1,
            "needs either ssh, bare or worker",
            "ada@mini",
        ),
        (
            '[peers.mini]\nworker = "dials"\nhost_key = "k"\nvia = "gate"',
            1,
            "needs for via the places of a worker",
            "ada@gate",
        ),
        ('[peers.mini]\nssh = "x"\n shh = 1', 3, "peers.mini.shh", "Did you mean ssh"),
        (
            '[peers.b]\nssh = "x"\ndata = "0.0.0.0"',
            *(3, "data cannot be 0.0.0.0", "Name the one"),
        ),
        ('[peers.local]\nssh = "x"', 1, "The name local is taken", "another"),
        ('[peers."a b"]\nssh = "x"', 1, "cannot be a peer's name", "letters"),
        ("peers = 3", 1, "peers cannot be 3", "[peers.mini]"),
        ("[peers]\nmini = 3", 2, "peers.mini is no table", "[peers.mini]"),
        ('theme = "dllm-drak"', 1, "no theme dllm-drak", "Did you mean dllm-dark"),
        (
            '[keys]\n"cluster.lanch" = "f5"',
            2,
            "no action",
            "Did you mean cluster.launch",
        ),
        ('[keys]\n"cluster.launch" = "s"', 1, "gives s to cluster.launch", ""),
    ],
)
def test_a_problem_names_line_and_what_is_allowed(
    text: str, line: int, what: str, allowed: str
) -> None:
    found = file_problems(text)[0]
    assert found.line == line
    assert what in found.what
    assert allowed in found.hint


def test_problems_are_told_with_their_file_and_fail(file: Path) -> None:
    file.write_text("\nworkers = 0")
    result = config("check")
    assert result.exit_code == 1
    assert f"{file}:2: workers cannot be 0" in result.output
    assert "1 to 15" in result.output
    told = json.loads(config("check", "--json").output)["problems"]
    assert (told[0]["line"], told[0]["what"]) == (2, "workers cannot be 0")


def test_all_problems_are_told_in_the_order_of_the_file() -> None:
    found = problems("[peers.b]\nx = 1\n[peers.a]\nssh = 2\n")
    assert [p.line for p in found] == sorted(p.line for p in found)
    assert len(found) == 3


def test_a_good_file_and_none_are_fine(file: Path) -> None:
    assert "every setting has its default" in config("check").output
    file.write_text(GOOD)
    assert config("check").output == f"{file} is fine.\n"
    assert file_problems(template()) == []


@pytest.fixture
def editor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An editor that writes what this file holds; a person is there."""
    wanted = tmp_path / "wanted.toml"
    script = tmp_path / "editor"
    script.write_text(f'#!/bin/sh\ncp {wanted} "$1"\n')
    script.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(script))
    monkeypatch.setattr(config_module, "on_terminal", lambda: True)
    return wanted


def test_what_was_edited_is_checked_and_can_be_undone(file: Path, editor: Path) -> None:
    file.write_text(GOOD)
    editor.write_text("workers = 0\n")
    result = config("edit", keys="e\nb\n")
    assert result.exit_code == 0
    assert result.output.count("workers cannot be 0") == 2
    assert file.read_text() == GOOD

    editor.write_text("workers = 4\n")
    assert "is fine" in config("edit").output
    assert file.read_text() == "workers = 4\n"

    editor.write_text("workers = 0\n")
    assert config("edit", keys="k\n").exit_code == 1
    assert file.read_text() == "workers = 0\n"


def test_going_back_to_no_file_leaves_none(file: Path, editor: Path) -> None:
    editor.write_text("workers = 0\n")
    config("edit", keys="b\n")
    assert not file.exists()


def test_without_a_person_a_bad_file_is_kept_and_told(
    file: Path, editor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_module, "on_terminal", lambda: False)
    editor.write_text("workers = 0\n")
    result = config("edit")
    assert result.exit_code == 1
    assert "workers cannot be 0" in result.output


def test_a_setting_is_set_in_its_line_and_unset_again(file: Path) -> None:
    file.write_text(GOOD)
    assert config("set", "workers", "4").exit_code == 0
    assert config("set", "model_dirs", "/a, ~/b").exit_code == 0
    assert config("set", "keys.cluster.stop", "f13").exit_code == 0
    assert config("set", "peers.mini.threads", "6").exit_code == 0
    told = {one["name"]: one for one in json.loads(config("show", "--json").output)}
    assert told["workers"]["value"] == 4
    assert told["model_dirs"]["value"] == ["/a", "~/b"]
    assert told["keys.cluster.stop"]["value"] == "f13"
    assert told["peers.mini.threads"]["value"] == 6
    assert file.read_text().startswith("# mine\nworkers = 4 # three\n")
    assert config("unset", "keys.cluster.launch").exit_code == 0
    assert "cluster.launch" not in file.read_text()
    assert config("unset", "engine").exit_code == 0


@pytest.mark.parametrize(
    "words", [("set", "workers", "4"), ("unset", "workers"), ("edit",)], ids=str
)
def test_a_running_controller_goes_by_it_before_the_command_ends(
    file: Path, editor: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    file.write_text(GOOD)
    editor.write_text("workers = 4\n")
    written: list[bool] = []

    def look() -> None:
        written.append("workers = 3" not in file.read_text())

    async def taken(_: object) -> None:
        look()
        if len(written) > 1:
            raise ControllerError("It did not answer within 5 s")

    monkeypatch.setattr(ControllerClient, "settings_taken", taken)
    assert "has not applied" not in config(*words).output
    again = config(*words)
    assert written == [True, True]
    assert again.exit_code == 0
    said = again.output.splitlines()[-1]
    assert said.startswith("The controller has not applied this yet: It did not answer")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("workers", "0", "workers cannot be 0. Allowed: a number, 1 to 15"),
        ("wrokers", "2", "There is no setting wrokers. Did you mean workers?"),
        ("mouse", "perhaps", "mouse cannot be 'perhaps'. Allowed: true or false"),
        ("keys.cluster.stop", "f11", "gives f11 to cluster.launch: cluster.stop lost"),
        ("keys.cluster.nope", "f8", "There is no action cluster.nope"),
        ("peers.nuc.threads", "4", "peers.nuc needs either ssh, bare or worker"),
        ("peers.mini.thraeds", "4", "There is no setting peers.mini.thraeds"),
    ],
)
def test_what_cannot_be_meant_is_not_written(
    file: Path, name: str, value: str, sentence: str
) -> None:
    file.write_text(GOOD)
    with pytest.raises(UsageError) as refused:
        CliRunner().invoke(
            cli,
            ["config", "set", name, value],
            catch_exceptions=False,
            standalone_mode=False,
        )
    assert sentence in str(refused.value)
    assert file.read_text() == GOOD


def test_a_setting_that_is_wrong_can_be_mended_by_another_value(file: Path) -> None:
    file.write_text("workers = 0\nctx_size = 8192\n")
    assert isinstance(config("set", "ctx_size", "4096").exception, DllmError)
    assert config("set", "workers", "1").exit_code == 0
    assert file.read_text() == "workers = 1\nctx_size = 8192\n"


# --- Settings: strict to read, gentle to write ---


def write(paths: Paths, text: str) -> None:
    paths.config_dir.mkdir(exist_ok=True)
    paths.config_file.write_text(text)


def test_no_file_means_defaults(paths: Paths) -> None:
    assert load_config(paths) == Config()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '# Mine\nworkers = 3\n\n# In the cellar.\n[peers.mini]\nssh = "m"\n',
            '# Mine\nworkers = 3\n\ntheme = "nord"\n\n'
            '# In the cellar.\n[peers.mini]\nssh = "m"\n',
        ),
        (
            '# In the cellar,\n# cold.\n[peers.mini]\nssh = "m"\n',
            'theme = "nord"\n\n# In the cellar,\n# cold.\n[peers.mini]\nssh = "m"\n',
        ),
        ("workers = 3 # two", 'workers = 3 # two\ntheme = "nord"\n'),
        ("# Nothing yet\n", '# Nothing yet\ntheme = "nord"\n'),
        ("", 'theme = "nord"\n'),
    ],
)
def test_a_new_setting_parts_no_table_from_its_comment(
    paths: Paths, before: str, after: str
) -> None:
    paths.config_dir.mkdir(parents=True, exist_ok=True)
    paths.config_file.write_text(before)
    set_value(paths, "theme", "nord")
    assert paths.config_file.read_text() == after
    assert load_config(paths).theme == "nord"


def test_a_file_kept_elsewhere_is_written_there(paths: Paths, tmp_path: Path) -> None:
    kept = tmp_path / "dotfiles.toml"
    kept.write_text("# mine\nworkers = 3\n")
    paths.config_file.parent.mkdir(parents=True, exist_ok=True)
    paths.config_file.symlink_to(kept)
    set_value(paths, "theme", "nord")
    assert paths.config_file.is_symlink()
    assert kept.read_text().startswith("# mine\nworkers = 3\n")
    assert load_config(paths).theme == "nord"


def test_a_file_that_is_not_toml_is_left_alone(paths: Paths) -> None:
    write(paths, "not toml")
    with pytest.raises(DllmError, match="not valid TOML"):
        set_value(paths, "engine", "x")
    assert paths.config_file.read_text() == "not toml"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "own" / "f"
    file.parent.mkdir()
    write_private(file, b"old")
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(TypeError):
        write_private(file, "not bytes")  # type: ignore[arg-type]
    assert file.read_bytes() == b"old"
    assert list(file.parent.iterdir()) == [file]


def test_private_directories(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir(mode=0o755)
    assert make_private(loose).stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    with pytest.raises(DllmError, match="Cannot use the directory"):
        make_private(tmp_path / "file" / "below")


def test_a_socket_path_too_long_is_refused(tmp_path: Path, paths: Paths) -> None:
    long = msgspec.structs.replace(paths, runtime_dir=tmp_path / ("x" * 120))
    with pytest.raises(DllmError, match="longer than the system allows"):
        checked_socket(long)


@pytest.mark.parametrize(
    "text",
    [
        'peers.mini.ssh = "x"\napi_port = 8080\n# mine\n[keys]\n',
        'peers.mini.ssh = "x"\napi_port = 8080\npeers.nuc.ssh = "y"\n',
    ],
)
def test_a_peer_of_dotted_keys_takes_no_other_key_along(
    paths: Paths, text: str
) -> None:
    write_private(paths.config_file, text.encode())
    rename_peer(paths, "mini", "ada")
    assert load_config(paths).api_port == 8080
    assert load_config(paths).peers["ada"] == PeerConfig(ssh="x")
    assert ("# mine" in text) == ("# mine" in paths.config_file.read_text())
    put_peer(paths, "box", PeerConfig(ssh="z"))
    assert load_config(paths).api_port == 8080
    with pytest.raises(DllmError, match="no peer mini"):
        rename_peer(paths, "mini", "ada")


def test_peers_are_written_and_removed_beside_what_is_there(paths: Paths) -> None:
    write(paths, "# mine\nworkers = 3 # three\n")
    put_peer(paths, "mini", PeerConfig(ssh="ada@mini", memory_gib={"CPU": 12.0}))
    put_peer(paths, "box", PeerConfig(bare="10.0.0.3:50052"))
    assert load_config(paths).peers == {
        "mini": PeerConfig(ssh="ada@mini", memory_gib={"CPU": 12.0}),
        "box": PeerConfig(bare="10.0.0.3:50052"),
    }
    drop_peer(paths, "mini")
    drop_peer(paths, "box")
    assert paths.config_file.read_text().strip() == "# mine\nworkers = 3 # three"


@pytest.mark.parametrize(
    "name", ["", "a b", "../x", "-x", "local", "controller", "worker1", "a" * 40]
)
def test_names_that_cannot_be_a_peers(paths: Paths, name: str) -> None:
    with pytest.raises(UsageError):
        put_peer(paths, name, PeerConfig(ssh="x"))
    assert not paths.config_file.exists()


def test_what_two_write_at_once_is_all_there(paths: Paths) -> None:
    with ThreadPoolExecutor(8) as pool:
        names = [f"peer{number}" for number in range(24)]
        list(pool.map(lambda name: put_peer(paths, name, PeerConfig(ssh="ada")), names))
    assert len(load_config(paths).peers) == 24
