"""``dllm-tui doctor`` as it is typed: options, questions, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.doctor import installation
from backends.doctor.check import Check, Repair, RepairKind, Verdict
from backends.paths import Paths
from tests.unit.client.test_commands import command
from tui.cli import doctor

FIRST = Repair(kind=RepairKind.INSTALL, machine="ada", text="Install it on ada")
SECOND = Repair(kind=RepairKind.KEEP_AWAKE, text="Set keep_awake")
CHECKS = [
    Check(name="peer ada", verdict=Verdict.WARN, repairs=(FIRST,)),
    Check(name="builds", verdict=Verdict.FAIL, repairs=(FIRST,)),
    Check(name="sleep", verdict=Verdict.WARN, repairs=(SECOND,)),
]


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Repair]:
    """The repairs that were done."""
    found: list[Repair] = []

    async def does(paths: Paths, repair: Repair) -> str:
        found.append(repair)
        return f"{repair.text}: done."

    monkeypatch.setattr(installation, "do_repair", does)
    return found


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["yes", "yes"], [FIRST, SECOND]),
        (["no", "yes"], [SECOND]),
        (["cancel"], []),
        (["yes", "cancel"], [FIRST]),
    ],
)
async def test_each_repair_is_asked_for_once(
    paths: Paths,
    done: list[Repair],
    monkeypatch: pytest.MonkeyPatch,
    answers: list[str],
    expected: list[Repair],
) -> None:
    given = iter(answers)
    monkeypatch.setattr(doctor, "_asked", lambda repair: next(given))
    assert await doctor._repaired(paths, CHECKS, yes=False) == expected
    assert done == expected
    assert next(given, None) is None, "no more, and no fewer questions"


async def test_yes_asks_nothing(
    paths: Paths, done: list[Repair], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_asked", lambda repair: pytest.fail("it asked"))
    assert await doctor._repaired(paths, CHECKS, yes=True) == [FIRST, SECOND]


def test_the_question_offers_cancel_first(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def prompt(text: str, **options: Any) -> str:
        asked.update(options, text=text)
        return str(options["default"])

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr(doctor, "prompting", lambda: _nothing())
    monkeypatch.setattr("click.prompt", prompt)
    assert doctor._asked(FIRST) == "cancel"
    assert asked["text"] == "Install it on ada?"
    assert next(iter(asked["type"].choices)) == "cancel"


class _nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("args", "part"),
    [
        ("doctor --yes", "--yes has no effect without --fix"),
        ("doctor --quick m.gguf", "--quick has no effect with MODEL"),
        ("doctor --bundle /nowhere/x.tar.gz", "There is no folder for /nowhere"),
        ("--readonly doctor --fix", "is refused: read-only"),
    ],
)
def test_what_makes_no_sense_is_refused(home: Path, args: str, part: str) -> None:
    refused = command(*args.split())
    assert refused.code == 2
    assert part in refused.err


def test_a_failed_check_counts_until_all_of_its_repairs_are_done() -> None:
    both = Check(name="x", verdict=Verdict.FAIL, repairs=(FIRST, SECOND))
    assert doctor._mended([both], [FIRST]) == set()
    assert doctor._mended([both], [FIRST, SECOND]) == {"x"}
    assert doctor._mended([Check(name="y", verdict=Verdict.FAIL)], []) == set()
