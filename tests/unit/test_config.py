"""Settings: strict to read, gentle to write."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backends.config import (
    Config,
    PeerConfig,
    drop_peer,
    load_config,
    put_peer,
    set_value,
)
from backends.errors import DllmError, UsageError
from backends.paths import Paths, checked_socket, make_private
from backends.writing import write_private


def write(paths: Paths, text: str) -> None:
    paths.config_dir.mkdir(exist_ok=True)
    paths.config_file.write_text(text)


def test_no_file_means_defaults(paths: Paths) -> None:
    assert load_config(paths) == Config()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("api_prot = 1", "api_prot"),
        ('workers = "two"', "workers"),
        ("workers = 0", "line 1: workers cannot be 0. Allowed: a number, 1 to 16"),
        ("api_port = 70000", "port, 1 to 65535"),
        ("= 1", "config.toml is not valid"),
    ],
)
def test_a_bad_setting_is_named(paths: Paths, text: str, message: str) -> None:
    write(paths, text)
    with pytest.raises(DllmError, match=message):
        load_config(paths)


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


def test_writing_keeps_comments_and_order(paths: Paths) -> None:
    write(paths, "# mine\nworkers = 3 # three\nctx_size = 2048\n")
    set_value(paths, "engine", "/opt/llama")
    text = paths.config_file.read_text()
    assert text.startswith("# mine\nworkers = 3 # three\nctx_size = 2048\n")
    assert load_config(paths).engine == "/opt/llama"
    set_value(paths, "workers", 4)
    assert "workers = 4 # three" in paths.config_file.read_text()


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
    file = tmp_path / "f"
    write_private(file, b"old")
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(TypeError):
        write_private(file, "not bytes")  # type: ignore[arg-type]
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_private_directories(tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir(mode=0o755)
    assert make_private(loose).stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").write_text("")
    with pytest.raises(DllmError, match="Cannot use the directory"):
        make_private(tmp_path / "file" / "below")


def test_a_socket_path_too_long_is_refused(tmp_path: Path, paths: Paths) -> None:
    long = Paths(
        config_dir=tmp_path,
        state_dir=tmp_path,
        cache_dir=tmp_path,
        runtime_dir=tmp_path / ("x" * 120),
    )
    with pytest.raises(DllmError, match="longer than the system allows"):
        checked_socket(long)


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
    "name", ["", "a b", "../x", "-x", "local", "llama-server", "worker1", "a" * 40]
)
def test_names_that_cannot_be_a_peers(paths: Paths, name: str) -> None:
    with pytest.raises(UsageError):
        put_peer(paths, name, PeerConfig(ssh="x"))
    assert not paths.config_file.exists()


def test_a_peer_needs_one_way_to_reach_it(paths: Paths) -> None:
    write(paths, "[peers.mini]\nthreads = 2\n")
    with pytest.raises(DllmError, match=r"peers\.mini needs either ssh or bare"):
        load_config(paths)


def test_what_two_write_at_once_is_all_there(paths: Paths) -> None:
    with ThreadPoolExecutor(8) as pool:
        for number in range(24):
            pool.submit(put_peer, paths, f"peer{number}", PeerConfig(ssh="ada"))
    assert len(load_config(paths).peers) == 24
