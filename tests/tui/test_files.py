"""Theme files and the memory file: what is read, and what is refused."""

from __future__ import annotations

import stat
from itertools import combinations
from math import dist
from pathlib import Path

import pytest
from textual.color import Color, rgb_to_lab
from textual.theme import BUILTIN_THEMES

from backends.errors import DllmError
from tests.tui import scenes
from tui.app import theming
from tui.model.files import BUILTIN_FOLDER, Remembered, recall, remember
from tui.screens.cluster.split_bar import TRAIL
from tui.widgets.palette import palette_from

OURS = (
    "dllm-dark",
    "dllm-light",
    "dllm-ansi",
    "dllm-colour-blind",
    "dllm-colour-blind-light",
)
COLOURED = [name for name in OURS if name != "dllm-ansi"]
COLOUR_BLIND = [name for name in OURS if "colour-blind" in name]


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


def linear_rgb(text: str) -> list[float]:
    channels = [c / 255 for c in Color.parse(text).rgb]
    return [
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    ]


def contrast(one: str, other: str) -> float:
    def luminance(text: str) -> float:
        red, green, blue = linear_rgb(text)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("name", COLOURED)
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
        assert contrast(theme.primary, ground) >= 4.5
        for key in ("ok", "warn", "bad", "dim", "pane-title", *devices):
            assert contrast(v[key], ground) >= 4.5, (key, ground)
    for device in devices:
        assert contrast(v["device-text"], v[device]) >= 4.5, device


@pytest.mark.parametrize("name", COLOURED)
def test_text_can_be_read_where_it_is_selected_and_under_the_pulse(name: str) -> None:
    theme = theming.find_theme(name, [BUILTIN_FOLDER])
    assert theme is not None
    v = theme.to_color_system().generate() | theme.variables
    for base in (theme.background, theme.surface, theme.panel):
        for over in ("screen-selection", "input-selection", "block-cursor-blurred"):
            ground = Color.parse(base or "") + Color.parse(v[f"{over}-background"])
            text = ground + Color.parse(v[f"{over}-foreground"])
            assert contrast(text.hex, ground.hex) >= 4.5, (over, base)
    cursor = Color.parse(v["block-cursor-background"])
    assert v["block-cursor-foreground"] == "auto 87%"
    text = cursor + cursor.get_contrast_text(0.87)
    assert contrast(text.hex, cursor.hex) >= 4.5
    palette = palette_from(v)
    for style in (
        palette.pulse,
        *(palette.lit(palette.fill(n), TRAIL) for n in range(8)),
    ):
        assert style.color
        assert style.bgcolor
        ink, paper = style.color.get_truecolor(), style.bgcolor.get_truecolor()
        assert contrast(ink.hex, paper.hex) >= 4.5, style


# Machado and others, 2009: what a person without one kind of cone sees, in linear RGB.
VISIONS = {
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def seen_by(vision: str, text: str) -> tuple[float, float, float]:
    """Where a colour is in CIELAB for somebody with this vision."""
    linear = linear_rgb(text)
    channels = [
        sum(a * b for a, b in zip(row, linear, strict=True)) for row in VISIONS[vision]
    ]
    gamma = [
        12.92 * c if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055
        for c in (min(max(c, 0), 1) for c in channels)
    ]
    red, green, blue = (round(255 * c) for c in gamma)
    lab = rgb_to_lab(Color(red, green, blue))
    return lab.L, lab.a, lab.b


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("name", COLOUR_BLIND)
def test_colours_are_told_apart_with_every_vision(name: str, vision: str) -> None:
    theme = theming.find_theme(name, [BUILTIN_FOLDER])
    assert theme is not None
    devices = [f"device-{number}" for number in range(1, 9)]
    for keys in (("ok", "warn", "bad"), devices):
        places = {key: seen_by(vision, theme.variables[key]) for key in keys}
        for one, other in combinations(keys, 2):
            assert dist(places[one], places[other]) >= 20, (one, other)


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


BROKEN = ["", "{", '{"theme": 7}', "[1]", "\xff", '{"theme": "\x80"}', "[" * 100_000]


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
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
