"""Progress on the command line, of a build too."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backends.state import ClusterSnapshot, EngineProgress, EngineStage, Step, StepState
from tui.cli import engine, progress
from tui.cli.engine import EnginePrinter
from tui.cli.progress import ProgressLine, StepPrinter, progress_text, remaining_s


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(progress, "on_terminal", lambda: True)
    monkeypatch.setattr(progress, "redraw", lines.append)
    monkeypatch.setenv("COLUMNS", "100")
    return lines


@pytest.fixture
def clock() -> tuple[Callable[[], float], list[float]]:
    now = [1000.0]
    return lambda: now[0], now


@pytest.mark.parametrize(
    ("fraction", "elapsed_s", "left_s"),
    [
        (0.25, 10.0, 30.0),
        (0.75, 60.0, 20.0),
        (0.5, 0.5, None),
        (0.001, 60.0, None),
        (None, 60.0, None),
        (1.0, 60.0, None),
    ],
)
def test_what_is_left_follows_from_the_mean_rate(
    fraction: float | None, elapsed_s: float, left_s: float | None
) -> None:
    assert remaining_s(fraction, elapsed_s) == left_s


def test_a_line_tells_part_elapsed_and_left() -> None:
    text = progress_text("model loads", 0.25, 20.0, "1 of 4 GiB")
    assert " 25 %  20.0 s, ~1 m 00 s left  1 of 4 GiB" in text
    assert text.count("█") == 6
    told = progress_text("model loads", 0.25, 20.0, "4 MiB/s · 9.00 s left")
    assert told.count("left") == 1
    assert "left" not in progress_text("worker1 listens", None, 20.0)


def test_the_clock_goes_on_without_news(
    drawn: list[str], clock: tuple[Callable[[], float], list[float]]
) -> None:
    read, now = clock
    line = ProgressLine(read)
    line.show("copying", 0.5, since=990.0)
    now[0] = 1010.0
    line.tick()
    line.clear()
    first, second, cleared = drawn
    assert "10.0 s, ~10.0 s left" in first
    assert "20.0 s, ~20.0 s left" in second
    assert cleared == ""


def test_no_line_is_longer_than_the_terminal(
    drawn: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    ProgressLine().show("copying", 0.5, "x" * 200 + "\nmore")
    assert len(drawn[0]) == 59
    assert "\n" not in drawn[0]


def test_steps_are_timed_from_their_own_beginning(
    drawn: list[str], clock: tuple[Callable[[], float], list[float]]
) -> None:
    printer = StepPrinter(clock[0])
    loading = Step(
        id="load",
        title="model loads",
        state=StepState.RUNNING,
        started_at=940.0,
        progress=0.5,
    )
    printer.show(ClusterSnapshot(steps=(loading,)))
    assert "1 m 00 s, ~1 m 00 s left" in drawn[-1]


def test_without_a_terminal_each_thing_is_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = ProgressLine()
    for percent in range(100):
        line.show("copying", percent / 100)
        line.tick()
    line.clear()
    assert capsys.readouterr().err == "copying\n"


STORY = (
    (0, EngineStage.WAIT, None, "Another build is under way"),
    (5, EngineStage.FETCH, 1.0, ""),
    (9, EngineStage.CONFIGURE, None, ""),
    (20, EngineStage.COMPILE, 0.05, ""),
    (60, EngineStage.COMPILE, 0.25, ""),
    (61, EngineStage.COMPILE, 0.29, ""),
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
    printer = EnginePrinter()
    printer.line = ProgressLine(lambda: now[0])
    for at, stage, fraction, text in STORY:
        now[0] = at
        printer.show(EngineProgress(stage=stage, fraction=fraction, text=text))
    said = capsys.readouterr().err.splitlines()
    assert printer.did == "built"
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
