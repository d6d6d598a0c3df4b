"""Run the parts of a test run side by side, with a line of progress and an estimate.

``python -m tools.run_tests engine hosts relay unit native check`` is ``make test``:
each part is a make target ``test-PART``, and its output is shown when it ends.
Durations are kept in the user's cache: the next run of the same parts estimates by
them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from backends.paths import user_paths

ABREAST = 5
PROGRESS_S = 10.0
FIRST_ESTIMATE_S = 600.0
# Each pytest of a part appends a character for each test to this file.
COUNTS_VARIABLE = "DLLM_TEST_PROGRESS"
_SUMMARY = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")


@dataclass
class Part:
    """One make target: its output file, and the exit status once it has ended."""

    name: str
    output: Path
    status: int | None = None
    took_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    async def run(self, turns: asyncio.Semaphore, counts: Path) -> None:
        async with turns:
            began = time.monotonic()
            with self.output.open("wb") as output:
                process = await asyncio.create_subprocess_exec(
                    *("make", "--no-print-directory", f"test-{self.name}"),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT,
                    env=os.environ | {COUNTS_VARIABLE: str(counts)},
                )
                self.status = await process.wait()
            self.took_s = time.monotonic() - began
        self._show()

    def _show(self) -> None:
        text = self.output.read_text(errors="replace")
        for line in text.splitlines():
            if line.startswith("=") and " in " in line:
                for number, outcome in _SUMMARY.findall(line):
                    self.counts[outcome.removesuffix("s")] += int(number)
        verdict = "passed" if self.status == 0 else f"FAILED (exit {self.status})"
        print(f"{text}\n--- {self.name}: {verdict} in {_minutes(self.took_s)}\n")
        sys.stdout.flush()


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _count(counts: Path) -> int:
    return counts.stat().st_size if counts.exists() else 0


async def _progress(parts: list[Part], counts: Path, estimate_s: float) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(PROGRESS_S)
        took_s = time.monotonic() - began
        tests = _count(counts)
        running = ", ".join(part.name for part in parts if part.status is None)
        left_s = estimate_s - took_s
        left = (
            f"about {_minutes(left_s)} left" if left_s > 0 else "longer than estimated"
        )
        line = f"{_minutes(took_s)}  {tests} tests done, {left} ({running})"
        print(line, file=sys.stderr, flush=True)


async def run(names: list[str]) -> int:
    """Run the parts, at most five at a time; return the exit status."""
    kept = user_paths().cache_dir / "test-durations.json"
    durations: dict[str, float] = {}
    with contextlib.suppress(OSError, msgspec.DecodeError):
        durations = msgspec.json.decode(kept.read_bytes(), type=dict[str, float])
    key = " ".join(names)
    estimate_s = durations.get(key, FIRST_ESTIMATE_S)
    print(f"Running {', '.join(names)}: about {_minutes(estimate_s)}.", flush=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dllm-tests-") as folder:
        parts = [Part(name, Path(folder, name)) for name in names]
        counts = Path(folder, "counts")
        turns = asyncio.Semaphore(ABREAST)
        progress = asyncio.create_task(_progress(parts, counts, estimate_s))
        await asyncio.gather(*(part.run(turns, counts) for part in parts))
        progress.cancel()
    total = sum((part.counts for part in parts), Counter[str]())
    failed = [part.name for part in parts if part.status]
    if not failed:
        kept.parent.mkdir(parents=True, exist_ok=True)
        durations[key] = time.monotonic() - began
        kept.write_bytes(msgspec.json.encode(durations))
    print(f"{_minutes(time.monotonic() - began)} in all.", end=" ")
    print(f"Failed: {', '.join(failed)}." if failed else "Every part passed.")
    bad = total["failed"] + total["error"]
    print(f"{total['passed']} passed, {bad} failed, {total['skipped']} skipped")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.run_tests", description=__doc__)
    parser.add_argument("parts", nargs="+", metavar="PART")
    return asyncio.run(run(parser.parse_args().parts))


if __name__ == "__main__":
    sys.exit(main())
