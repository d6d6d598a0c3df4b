"""Theme files and the memory file: what is read, and what is refused."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from textual.color import Color
from textual.theme import BUILTIN_THEMES

from backends.errors import DllmError
from tests.tui import scenes
from tui.app import theming
from tui.model.files import BUILTIN_FOLDER, Remembered, recall, remember
from tui.widgets.palette import palette_from

OURS = ("dllm-dark", "dllm-light", "dllm-ansi", "dllm-colour-blind")


def write(folder: Path, change: tuple[str, str], name: str = "mine") -> Path:
    text = (BUILTIN_FOLDER / "dllm-dark.toml").read_text()
    assert change[0] in text
    path = folder / f"{name}.toml"
    path.write_text(text.replace(*change, 1))
    return path


@pytest.mark.parametrize("name", OURS)
def test_our_themes_are_whole(name: str) -> None:
    theme = theming.find_theme(name, [BUILTIN_FOLDER])
    assert theme is not None
    assert theme.name == name
    variables = theme.to_color_system().generate() | theme.variables
    palette_from(variables)


def test_there_are_no_other_files_among_our_themes() -> None:
    themes, errors = theming.load_themes([BUILTIN_FOLDER])
    assert {theme.name for theme in themes} == set(OURS)
    assert errors == []


def contrast(one: str, other: str) -> float:
    def luminance(text: str) -> float:
        channels = [c / 255 for c in Color.parse(text).rgb]
        linear = [
            c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
            for c in channels
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("name", [name for name in OURS if name != "dllm-ansi"])
def test_text_can_be_read_on_its_ground(name: str) -> None:
    """WCAG 2 asks for 4.5; every ground of the console is looked at."""
    theme = theming.find_theme(name, [BUILTIN_FOLDER])
    assert theme is not None
    grounds = [theme.background, theme.surface, theme.panel]
    v = theme.variables
    devices = [f"device-{number}" for number in range(1, 9)]
    for ground in grounds:
        assert ground
        assert theme.foreground
        assert contrast(theme.foreground, ground) > 7
        for key in ("ok", "warn", "bad", "dim", *devices):
            assert contrast(v[key], ground) >= 4.5, (key, ground)
    for device in devices:
        assert contrast(v["device-text"], v[device]) >= 4.5, device


@pytest.mark.parametrize("name", sorted(BUILTIN_THEMES))
def test_textuals_own_themes_get_our_variables(name: str) -> None:
    theme = BUILTIN_THEMES[name]
    ours = theming.variable_defaults(theme)
    palette_from(theme.to_color_system().generate() | ours)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (('bad = "#ec7b7b"', 'bad = "rad"'), "console.bad = 'rad'"),
        (('3 = "#62bd91"', '3 = "#12"'), "devices.3 = '#12'"),
        (('8 = "#d39a72"', ""), "has no colour devices.8"),
        (("[devices]", 'surprise = "#fff"\n[devices]'), "surprise"),
        (('primary = "#7aa5e8"', "primary = 5"), "primary"),
        (('name = "dllm-dark"', ""), "name"),
        (("dark = true", "dark = "), "line"),
    ],
)
def test_a_bad_theme_names_file_and_key(
    tmp_path: Path, change: tuple[str, str], part: str
) -> None:
    path = write(tmp_path, change)
    with pytest.raises(theming.ThemeError) as caught:
        theming.load_theme(path)
    assert str(path) in str(caught.value)
    assert part in str(caught.value)


def test_a_bad_theme_does_not_hide_the_good_ones(tmp_path: Path) -> None:
    write(tmp_path, ('bad = "#ec7b7b"', 'bad = "rad"'), "broken")
    write(tmp_path, ('name = "dllm-dark"', 'name = "fine"'), "fine")
    themes, errors = theming.load_themes([tmp_path])
    assert [theme.name for theme in themes] == ["fine"]
    assert len(errors) == 1


def test_a_theme_is_found_by_its_name_though_its_file_has_another(
    tmp_path: Path,
) -> None:
    write(tmp_path, ('name = "dllm-dark"', 'name = "my-paper"'), "another-name")
    theme = theming.find_theme("my-paper", [BUILTIN_FOLDER, tmp_path])
    assert theme is not None
    assert theme.name == "my-paper"


def test_what_is_remembered_comes_back(memory_file: Path) -> None:
    memory = Remembered(
        theme="nord", zoomed="chat", plans={"default": scenes.DEMO_PLAN}
    )
    remember(memory_file, memory)
    assert recall(memory_file) == memory
    assert stat.S_IMODE(memory_file.stat().st_mode) == 0o600
    assert [path.name for path in memory_file.parent.iterdir()] == ["console.json"]


def test_consoles_on_two_clusters_remember_a_plan_each(memory_file: Path) -> None:
    default = {"default": scenes.DEMO_PLAN}
    remember(memory_file, Remembered(plans=default))
    lab = {"lab": scenes.HOMELAB_PLAN, "default": scenes.HOMELAB_PLAN}
    remember(memory_file, Remembered(plans=lab), "lab")
    plans = {"default": scenes.DEMO_PLAN, "lab": scenes.HOMELAB_PLAN}
    assert recall(memory_file).plans == plans


def test_no_file_is_an_empty_memory(memory_file: Path) -> None:
    assert recall(memory_file) == Remembered()


@pytest.mark.parametrize("text", ["", "{", '{"theme": 7}', "[1]", "\xff"])
def test_a_broken_file_is_an_error_that_says_where(
    memory_file: Path, text: str
) -> None:
    memory_file.parent.mkdir(parents=True)
    memory_file.write_bytes(text.encode("latin-1"))
    with pytest.raises(DllmError, match=r"console\.json"):
        recall(memory_file)


def test_a_disk_that_refuses_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DllmError, match="Cannot write"):
        remember(tmp_path / "file" / "console.json", Remembered())


def test_a_memory_of_an_older_shape_is_read_without_its_plan(memory_file: Path) -> None:
    memory_file.parent.mkdir(parents=True, exist_ok=True)
    memory_file.write_bytes(b'{"theme":"nord","plan":{}}')
    assert recall(memory_file) == Remembered(theme="nord")
