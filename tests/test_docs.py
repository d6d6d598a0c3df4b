"""The documents: what they point to exists, and what they list is all there is."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from backends.config import Config, PeerConfig

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
TARGET = re.compile(r"`make\s+([a-z-]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_exists(page: Path) -> None:
    links = [link for link in LINK.findall(page.read_text()) if "://" not in link]
    missing = [
        link
        for link in links
        if not (page.parent / link.replace("%5B", "[").replace("%5D", "]")).exists()
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_named_is_one(page: Path) -> None:
    rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert not set(TARGET.findall(page.read_text())) - set(rules)


@pytest.mark.parametrize("settings", [Config, PeerConfig])
def test_every_setting_is_described(settings: type[msgspec.Struct]) -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    names = {*settings.__struct_fields__} - {"keys", "peers"}
    assert not {name for name in names if f"{name} = " not in text}
    assert "[keys]" in text
    assert "[peers." in text


def test_every_test_that_the_conventions_name_exists() -> None:
    page = (ROOT / "docs" / "conventions.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 40
    code = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert not named - set(re.findall(r"def (test_\w+)\(", code))


def test_every_convention_has_a_test() -> None:
    page = (ROOT / "docs" / "conventions.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    without = [row.split("|")[1].strip() for row in rows if "`test_" not in row]
    assert without == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_holds_two_versions_of_a_text(page: Path) -> None:
    assert not re.findall(r"^(?:<{7}|>{7}) .*", page.read_text(), re.MULTILINE)
