"""Films and pictures of a record, made without a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tui.cli.main import cli

RECORD = Path(__file__).parents[1] / "tui" / "records" / "worker-killed.jsonl.gz"


def test_a_film_draws_what_changes(tmp_path: Path) -> None:
    film = tmp_path / "one.cast"
    film.write_text("another's")
    words = f"replay {RECORD} --export {film} --from 1 --to 5 --speed 2 --size 90x24"
    assert "--force" in str(CliRunner().invoke(cli, words.split()).exception)
    assert film.read_text() == "another's"
    assert CliRunner().invoke(cli, [*words.split(), "--force"]).exit_code == 0
    header, *events = map(json.loads, film.read_text().splitlines())
    assert (header["version"], header["width"], header["height"]) == (2, 90, 24)
    times = [at_s for at_s, _, _ in events]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert 1.5 < times[-1] <= 2.0
    assert {kind for _, kind, _ in events} == {"o"}
    first = events[1][2]
    assert "SmolLM2" in first
    assert all(len(text) < len(first) / 2 for _, _, text in events[2:])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--at 3", "--at needs --export"),
        ("--export a.gif", "End it with .cast or .svg"),
        ("--export a.svg --to 3", "--to has no effect with a picture"),
        ("--export a.cast --at 3", "--at needs a picture"),
        ("--export a.cast --from 99", "There is nothing between 99 s and 1"),
        ("--export a.cast --size big", "Write it like 120x36"),
        (f"--export {'a' * 300}.svg", "Cannot write a"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(words: str, said: str) -> None:
    result = CliRunner().invoke(cli, ["replay", str(RECORD), *words.split()])
    assert said in result.output + str(result.exception)
    assert not Path("a.svg").exists()
