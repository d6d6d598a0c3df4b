"""``dllm-tui logs``: the end of a log, and only what is serious enough."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from backends.client.client import ControllerClient
from backends.state import LogChunk
from tui.cli import logs as module

LOG = "".join(
    f"0.00.{n % 60:03d}.000 {'E' if n % 1000 == 5 else 'I'} line {n}\n"
    for n in range(20_000)
)


@pytest.fixture(autouse=True)
def server_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def names(cluster: str) -> list[str]:
        return ["llama-server"]

    async def read_log(
        self: ControllerClient, name: str, offset: int, limit_bytes: int
    ) -> LogChunk:
        start = max(len(LOG) + offset, 0) if offset < 0 else offset
        text = LOG[start : start + limit_bytes]
        end = start + len(text)
        return LogChunk(name=name, text=text, offset=start, next_offset=end)

    monkeypatch.setattr(module, "_names", names)
    monkeypatch.setattr(ControllerClient, "read_log", read_log)


def printed(*options: str) -> list[str]:
    done = CliRunner().invoke(module.logs, ["llama-server", *options])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def test_the_last_lines() -> None:
    shown = printed("-n", "3")
    assert [line[-10:] for line in shown] == [f"line {n}" for n in range(19997, 20000)]


def test_errors_from_anywhere_in_the_log() -> None:
    assert [line.split()[-1] for line in printed("-n", "4", "--level", "error")] == [
        *("16005", "17005", "18005", "19005"),
    ]
    assert len(printed("--level", "warning")) == 20
    assert printed("-n", "0", "--level", "error") in ([], [""])


def test_where_nothing_was_started_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_names(cluster: str) -> list[str]:
        return []

    monkeypatch.setattr(module, "_names", no_names)
    done = CliRunner().invoke(module.logs, [])
    assert (done.stdout, done.stderr) == ("", "No process has been started.\n")
    assert CliRunner().invoke(module.logs, ["--json"]).stdout == "[]\n"
