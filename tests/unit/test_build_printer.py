"""What ``engine build`` shows on a terminal: each stage with its own clock."""

from __future__ import annotations

import time

from backends.engine.build import BuildProgress, BuildStage
from tui.cli import engine


def test_the_clock_of_a_stage_goes_on_whatever_ended_before_it() -> None:
    with engine.BuildPrinter() as printer:
        printer._bar = bar = engine._open_bar()
        for stage, fraction in (
            (BuildStage.WAIT, None),
            (BuildStage.FETCH, 1.0),
            (BuildStage.UNPACK, 1.0),
            (BuildStage.CONFIGURE, None),
            (BuildStage.COMPILE, 0.25),
        ):
            printer.show(BuildProgress(stage=stage, fraction=fraction))
        *over, compiling = bar.tasks
        assert [task.description for task in over] == [
            *("Preparing", "Fetching the source", "Unpacking", "Configuring"),
        ]
        assert all(task.finished for task in over)
        assert not compiling.finished
        assert round(compiling.percentage) == 25
        before = compiling.elapsed
        time.sleep(0.05)
        assert before is not None
        assert (compiling.elapsed or 0.0) > before
        printer.show(BuildProgress(stage=BuildStage.COMPILE, fraction=1.0))
        assert not compiling.finished
