"""The documents: what they point to exists, and what they list is all there is."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import msgspec
import pytest

from backends.config import Config, PeerConfig
from backends.controller.reconciler import TRANSITIONS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
HEADING = re.compile(r"\]\(([^)#:]*\.md)?#([^)]+)\)")
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
    *(
        "machines",
        "lend",
        "routers",
        "relay",
        "lost-machines",
        "links",
        "copies",
        "sparse",
    ),
    *("clients", "service", "troubleshooting", "doctor", "why", "records", "processes"),
    "compare",
)
"""The pages of one task each."""


def test_what_a_page_links_to_exists() -> None:
    missing = [
        (page.name, link)
        for page in PAGES
        for link in LINK.findall(page.read_text())
        if "://" not in link
        if not (page.parent / link.replace("%5B", "[").replace("%5D", "]")).exists()
    ]
    assert not missing


def test_every_make_target_named_is_one() -> None:
    rules = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = {
        (page.name, one) for page in PAGES for one in TARGET.findall(page.read_text())
    }
    assert not [one for one in named if one[1] not in rules]


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
    folders = (ROOT / "tests", ROOT / "tools" / "trials")
    files = [file for folder in folders for file in folder.rglob("*.py")]
    code = "\n".join(file.read_text() for file in files)
    assert not named - set(re.findall(r"def (test_\w+)\(", code))


def test_every_convention_has_a_test() -> None:
    page = (ROOT / "docs" / "conventions.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    without = [row.split("|")[1].strip() for row in rows if "`test_" not in row]
    assert without == []


def test_no_page_holds_two_versions_of_a_text() -> None:
    marked = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)
    assert not [page.name for page in PAGES if marked.search(page.read_text())]


@cache
def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_heading_that_a_page_links_to_is_there() -> None:
    lost = [
        (page.name, path, anchor)
        for page in PAGES
        for path, anchor in HEADING.findall(page.read_text())
        if anchor not in anchors(page.parent / path if path else page)
    ]
    assert not lost


def test_a_task_is_told_in_600_words() -> None:
    texts = {task: (ROOT / "docs" / f"{task}.md").read_text() for task in TASKS}
    assert not [task for task, text in texts.items() if len(text.split()) > 600]


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
