"""The documents: what they point to exists, and what they list is all there is."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from backends.config import Config, PeerConfig
from backends.controller.reconciler import TRANSITIONS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
TARGET = re.compile(r"`make\s+([a-z-]+)")
TASKS = (
    *(
        "launch",
        "best-split",
        "chat",
        "get-models",
        "model-places",
        "engine",
        "benchmarks",
        "plain",
        "panes",
    ),
    *("machines", "lend", "routers", "lost-machines", "links", "copies", "sparse"),
    *("clients", "service", "troubleshooting", "doctor", "why", "records", "processes"),
    "compare",
)
"""The pages of one task each."""


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


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_heading_that_a_page_links_to_is_there(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*\.md)?#([^)]+)\)", page.read_text())
    there = {
        (path, anchor): anchor in anchors(page.parent / path if path else page)
        for path, anchor in links
    }
    assert not [link for link, found in there.items() if not found]


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_told_in_600_words(task: str) -> None:
    assert len((ROOT / "docs" / f"{task}.md").read_text().split()) <= 600


def test_the_table_of_phases_is_the_reconcilers() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = {
        cells[1].strip(): set(re.findall(r"([a-z ]+) \(([a-z, ]+)\)", cells[3]))
        for line in page.splitlines()
        if len(cells := line.split("|")) == 5
    }
    for phase, follows in TRANSITIONS.items():
        told = {
            (trigger, follower.strip())
            for follower, triggers in rows[phase.value]
            for trigger in triggers.split(", ")
        }
        assert told == {
            (trigger.value, then.value) for trigger, then in follows.items()
        }


def test_every_file_that_the_architecture_names_exists() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`((?:backends|native|tui)/[\w/.]*)`", page)
    assert len(named) > 30
    assert not [path for path in named if not (ROOT / path).exists()]
