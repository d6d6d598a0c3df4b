"""Plant sampled faults in the code and count those that no test of their room notices.

Run as ``make mutants``, or ``python -m tools.mutants --each 20 split gateway``. The
faults are cosmic-ray's: changed comparisons, numbers, booleans, exceptions, loops and
operators. They are planted in a copy of the checkout, one at a time.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

from cosmic_ray.commands.init import init
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 300.0
SHOWN_LINES = 12
# An editable install would import the checkout instead of the copy.
SITE_CUSTOMIZE = """\
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "_editable_" not in type(f).__module__]
"""
# A room of the code, and the tests that must notice its faults.
ROOMS = {
    "state": (
        ["backends/state"],
        ["tests/unit/state", "tests/unit/planning", "tests/unit/controller"],
    ),
    "split": (["backends/split"], ["tests/unit/split", "tests/unit/planning"]),
    "planning": (["backends/planning"], ["tests/unit/planning"]),
    "speculation": (["backends/speculation"], ["tests/unit/speculation"]),
    "models": (["backends/models"], ["tests/unit/models"]),
    "engine": (["backends/engine"], ["tests/unit/engine"]),
    "link": (["backends/link"], ["tests/unit/link", "tests/unit/controller"]),
    "machines": (["backends/machines"], ["tests/unit/machines"]),
    "mesh": (["backends/mesh"], ["tests/unit/mesh"]),
    "gateway": (["backends/gateway"], ["tests/unit/gateway"]),
    "controller": (["backends/controller"], ["tests/unit/controller"]),
    "console": (["tui/model", "tui/screens"], ["tests/tui"]),
    "cli": (["tui/cli"], ["tests/unit"]),
}
KINDS = {
    "ReplaceComparisonOperator": "comparison",
    "ReplaceBinaryOperator": "arithmetic",
    "NumberReplacer": "number",
    "ReplaceTrue": "boolean",
    "ReplaceFalse": "boolean",
    "AddNot": "condition",
    "ReplaceAndWithOr": "condition",
    "ReplaceOrWithAnd": "condition",
    "Delete_Not": "condition",
    "ReplaceBreakWithContinue": "loop",
    "ReplaceContinueWithBreak": "loop",
    "ZeroIterationForLoop": "loop",
    "ExceptionReplacer": "exception",
}


def kind_of(fault: MutationSpec) -> str | None:
    name = fault.operator_name.partition("/")[2]
    found = (kind for prefix, kind in KINDS.items() if name.startswith(prefix))
    return next(found, None)


def faults_in(
    folders: list[str], random_: random.Random, count: int
) -> list[MutationSpec]:
    """Sample faults, the classes as evenly as there are faults of each."""
    files = sorted(file for folder in folders for file in Path(folder).rglob("*.py"))
    of_kind: dict[str, list[MutationSpec]] = defaultdict(list)
    with use_db(":memory:") as db:
        init(files, db, {})
        for item in db.work_items:
            fault = item.mutations[0]
            if (kind := kind_of(fault)) and not _shows_in_types_alone(fault):
                of_kind[kind].append(fault)
    chosen: list[MutationSpec] = []
    kinds = sorted(of_kind)
    for faults in of_kind.values():
        faults.sort(key=lambda each: (each.module_path, each.start_pos))
        random_.shuffle(faults)
    while len(chosen) < count and any(of_kind.values()):
        for kind in kinds:
            if of_kind[kind] and len(chosen) < count:
                chosen.append(of_kind[kind].pop())
    return chosen


def _shows_in_types_alone(fault: MutationSpec) -> bool:
    with tokenize.open(fault.module_path) as file:
        line = file.readlines()[fault.start_pos[0] - 1]
    if "ReplaceTrue" in fault.operator_name:
        return "frozen=True" in line or "kw_only=True" in line
    if "_BitOr_" not in fault.operator_name:
        return False
    return "->" in line or ":" in line or "None" in line


def sample(
    room: str, count: int, seed: int
) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Try faults of a room: counts by class and outcome, and the survivors as text."""
    folders, tests = ROOMS[room]
    present = [test for test in tests if Path(test).exists()]
    options = ("-x", "-q", "-p", "no:cacheprovider", "-m", "not trial")
    command = shlex.join([sys.executable, "-m", "pytest", *options, *present])
    if subprocess.run(shlex.split(command), stdout=subprocess.DEVNULL).returncode:
        sys.exit(f"The tests of {room} fail without a fault: {command}")
    counts: Counter[tuple[str, str]] = Counter()
    survivors = []
    for fault in faults_in(folders, random.Random(seed), count):
        result = mutate_and_test([fault], command, TIMEOUT_S)
        kind = kind_of(fault) or ""
        outcome = result.test_outcome or TestOutcome.INCOMPETENT
        counts[kind, outcome.value] += 1
        if outcome is TestOutcome.SURVIVED:
            where = f"{fault.module_path}:{fault.start_pos[0]} ({kind})"
            survivors.append(f"{where}\n{result.diff or ''}")
        place = f"{fault.module_path}:{fault.start_pos[0]}"
        print(f"{room} {kind} {place} {outcome.value}", file=sys.stderr)
    return counts, survivors


def main() -> int:
    """Copy the checkout, try the rooms there, print a table and the survivors."""
    parser = argparse.ArgumentParser(prog="tools.mutants", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=", ".join(ROOMS))
    parser.add_argument("--each", type=int, default=12, help="faults for each room")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rooms = given.rooms or list(ROOMS)
    if unknown := set(rooms) - set(ROOMS):
        parser.error(f"no such room: {', '.join(sorted(unknown))}")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    table: dict[str, Counter[tuple[str, str]]] = {}
    survivors: list[str] = []
    with tempfile.TemporaryDirectory(prefix="dllm-mutants-") as folder:
        tracked = ["git", "-C", str(ROOT), "ls-files", "-z"]
        for name in subprocess.check_output(tracked, text=True).split("\0"):
            if name and (ROOT / name).is_file():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, Path(folder) / name)
        (Path(folder) / "sitecustomize.py").write_text(SITE_CUSTOMIZE)
        os.chdir(folder)
        os.environ["PYTHONPATH"] = folder
        for room in rooms:
            table[room], survived = sample(room, given.each, given.seed)
            survivors += survived
    print_table(table)
    for survivor in survivors:
        print("\n".join(survivor.splitlines()[:SHOWN_LINES]))
    return 0


def print_table(table: dict[str, Counter[tuple[str, str]]]) -> None:
    """Print noticed / planted for each room and class, as Markdown."""
    kinds = sorted({kind for counts in table.values() for kind, _ in counts})
    print("| room | " + " | ".join(kinds) + " | all |")
    print("|---" * (len(kinds) + 2) + "|")
    for room, counts in table.items():
        cells = [_cell(counts, {kind}) for kind in kinds]
        print(f"| {room} | " + " | ".join(cells) + f" | {_cell(counts, set(kinds))} |")


def _cell(counts: Counter[tuple[str, str]], kinds: set[str]) -> str:
    planted = sum(n for (kind, _), n in counts.items() if kind in kinds)
    survived = sum(
        n
        for (kind, outcome), n in counts.items()
        if kind in kinds and outcome == TestOutcome.SURVIVED.value
    )
    return f"{planted - survived}/{planted}" if planted else "–"


if __name__ == "__main__":
    sys.exit(main())
