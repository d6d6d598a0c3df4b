"""``dllm-tui --plain``: sentences, events, and what a line means."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from backends.client.client import ControllerClient
from backends.errors import UsageError
from backends.state import ClusterSnapshot, Event, EventKind, EventTone
from tui.cli import plain
from tui.cli.main import cli
from tui.cli.plain import News, PlainConsole, SentenceStream, linear_words


def sentences(*pieces: str) -> list[str]:
    given_on: list[str] = []
    stream = SentenceStream(given_on.append)
    for piece in pieces:
        stream.feed(piece)
    stream.end()
    return given_on


def test_an_answer_comes_in_sentences() -> None:
    pieces = ("It is 3", ".5 km", " away. Rea", "lly!", " \nAsk", " more")
    assert sentences(*pieces) == ["It is 3.5 km away.", "Really!", "Ask more"]
    code = "1. def f():\n    return 1\n"
    assert sentences(code) == ["1. def f():\n    return 1"]


@given(st.lists(st.text(alphabet="ab.!? \n", max_size=6)))
def test_no_word_is_lost(pieces: list[str]) -> None:
    whole = "".join(pieces)
    assert re.sub(r"\s", "", "".join(sentences(*pieces))) == re.sub(r"\s", "", whole)


def event(text: str, **fields: object) -> Event:
    values = {"number": 1, "at": datetime.now(UTC), "kind": EventKind.LAUNCH} | fields
    return Event(text=text, **values)  # type: ignore[arg-type]


def test_events_wait_for_the_end_of_an_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    news = News(ControllerClient(cluster="lab"))
    died = event("worker1 died", cluster="lab", tone=EventTone.ERROR, hint="See logs.")
    news.add([died, event("other", cluster="second")])
    assert capsys.readouterr().err == ""
    with news.while_waiting():
        assert capsys.readouterr().err == "Error: worker1 died See logs.\n"
        news.add([event("mini is back")])
        assert capsys.readouterr().err == "mini is back\n"
    news.add([event("later")])
    assert capsys.readouterr().err == ""


def console(
    monkeypatch: pytest.MonkeyPatch, *lines: str
) -> tuple[PlainConsole, list[list[str]]]:
    typed, ran = iter(lines), list[list[str]]()

    def read(prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    async def nothing_runs(cluster: str) -> ClusterSnapshot:
        return ClusterSnapshot(cluster=cluster)

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr(plain, "current_snapshot", nothing_runs)
    monkeypatch.setattr(News, "begin", lambda self: None)

    def command(words: list[str]) -> int:
        ran.append(words)
        return 0

    return PlainConsole("lab", command=command, names=["up", "status", "demo"]), ran


def test_a_slash_runs_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ("/status -o json", "", "/stauts", '/up "my m.gguf"', "/up 'm", "/demo")
    made, ran = console(monkeypatch, *lines, "/again", "/edit", "/quit", "/status")
    made.run()
    assert ran == [["status", "-o", "json"], ["up", "--detach", "my m.gguf"]]
    out, err = capsys.readouterr()
    assert out.startswith("dllm-tui, cluster lab. Nothing runs. ")
    told = err.splitlines()
    assert [line.partition(". ")[0] for line in told] == [
        "dllm-tui: There is no command /stauts",
        "dllm-tui: A quote is not closed",
        "dllm-tui: demo draws a screen",
        "dllm-tui: Nothing was asked yet",
        "dllm-tui: There is no terminal here for an editor",
    ]
    assert "status" in told[0]


def test_a_command_comes_back_to_the_prompt() -> None:
    words = ["up", "m", "--", "--detach"]
    assert linear_words(words) == ["up", "--detach", "m", "--", "--detach"]
    assert linear_words(["plans", "launch", "x"]) == [
        "plans",
        "launch",
        "--detach",
        "x",
    ]
    assert linear_words(["up", "m", "--dry-run"]) == ["up", "m", "--dry-run"]
    assert linear_words(["up", "m", "--detach"]) == ["up", "m", "--detach"]
    assert linear_words(["up", "--help"]) == ["up", "--help"]
    assert linear_words(["demo", "--headless"]) == ["demo", "--headless"]
    with pytest.raises(UsageError):
        linear_words(["demo", "--bundled"])


def test_options_of_the_screen_are_refused() -> None:
    done = CliRunner().invoke(cli, ["--plain", "--ascii"])
    assert "--ascii has no effect with --plain" in done.output
