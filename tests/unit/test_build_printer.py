"""What ``engine build`` shows: each stage with its own clock, or few lines."""

from __future__ import annotations

import pytest

from backends.engine.build import BuildProgress, BuildStage
from tui.cli import engine, progress
from tui.cli.engine import BuildPrinter
from tui.cli.progress import ProgressLine

STORY = (
    (0, BuildStage.WAIT, None, "Another build is under way"),
    (5, BuildStage.FETCH, 1.0, ""),
    (9, BuildStage.CONFIGURE, None, ""),
    (20, BuildStage.COMPILE, 0.05, ""),
    (60, BuildStage.COMPILE, 0.25, ""),
    (61, BuildStage.COMPILE, 0.29, ""),
)


@pytest.mark.parametrize("terminal", [True, False])
def test_each_stage_has_a_clock_and_compiling_few_lines(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, drawn = [0.0], list[str]()
    for module in (engine, progress):
        monkeypatch.setattr(module, "on_terminal", lambda: terminal)
    monkeypatch.setattr(progress, "redraw", drawn.append)
    monkeypatch.setenv("COLUMNS", "100")
    printer = BuildPrinter()
    printer.line = ProgressLine(lambda: now[0])
    for at, stage, fraction, text in STORY:
        now[0] = at
        printer.show(BuildProgress(stage=stage, fraction=fraction, text=text))
    said = capsys.readouterr().err.splitlines()
    assert printer.built
    if terminal:
        assert said == ["Another build is under way"]
        assert "25 %  40.0 s, ~2 m 00 s left" in drawn[-2]
        assert "Configuring" in drawn[1]
    else:
        assert drawn == []
        assert said == [
            *("Another build is under way", "Fetching the source", "Configuring"),
            *("Compiling", "Compiling 20 %"),
        ]
