"""``dllm-tui relay``: its access, its use, and its service."""

from __future__ import annotations

import json
import socket
from typing import Any
from unittest.mock import AsyncMock

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from click.testing import CliRunner, Result

from backends.errors import MachineError, UsageError
from backends.mesh.reflector import reflector_address
from backends.mesh.relay_access import RelayAccess, RelayFile, try_relay
from backends.mesh.worker_status import LogEntry
from backends.paths import user_paths
from tui.cli.main import cli
from tui.cli.worker_status import show_entry

RELAY = "http://relay.example.org:50090"
pytestmark = pytest.mark.usefixtures("new_user")


def run(*args: str, **more: Any) -> Result:
    return CliRunner().invoke(cli, args, **more)


def test_what_one_host_shows_another_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.cli.relay.try_relay", AsyncMock())
    shown = run("relay", "access", "--address", "relay.example.org").stdout
    assert shown == run("relay", "access", "--address", "relay.example.org").stdout
    assert shown.startswith("http://relay.example.org:50090#")
    file = RelayFile(user_paths().relays_file)
    used = run("relay", "use", "-", input=shown)
    assert used.exit_code == 0
    assert file.own is not None
    assert file.own.text == shown.strip()
    assert file.own.key not in used.output
    told = run("relay", "use", "-", "--json", input=shown).stdout
    assert json.loads(told) == {"relay": RELAY, "problem": ""}
    with monkeypatch.context() as patch:
        down = AsyncMock(side_effect=MachineError("It does not answer"))
        patch.setattr("tui.cli.relay.try_relay", down)
        assert "does not answer" in run("relay", "use", "-", input=shown).output
    assert file.own.url == RELAY
    assert run("relay", "leave").exit_code == 0
    assert file.own is None


def test_its_key_is_private() -> None:
    run("relay", "access")
    assert user_paths().relay_key_file.stat().st_mode & 0o077 == 0


def test_a_key_that_others_can_read_is_refused() -> None:
    run("relay", "access")
    user_paths().relay_key_file.chmod(0o644)
    error = run("relay", "access").exception
    assert isinstance(error, MachineError)
    assert "chmod 600" in error.hint


def test_another_key_can_be_made() -> None:
    shown = [run("relay", "access", *new).stdout for new in ((), ("--new",), ())]
    assert shown[0] != shown[1] == shown[2]


def test_a_reflector_listens_where_the_relay_does() -> None:
    told = [reflector_address(one) for one in ("::", "0.0.0.0", "10.0.0.1", "fd00::5")]
    assert told == ["0.0.0.0", "0.0.0.0", "10.0.0.1", ""]


@pytest.mark.parametrize(
    "wrong",
    [
        ("use", "ada@mini"),
        ("use", "http://a..b:1#k"),
        ("use", f"http://{'a' * 64}.example.org:1#k"),
        ("run", "--rate", "fast"),
        ("run", "--rate", "1kB"),
        ("run", "--clients", "1"),
        ("run", "--listen", "relay.example.org"),
        ("service", "install", "--dry-run", "--rate", "0MB"),
        ("access", "--address", "two words"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(wrong: tuple[str, ...]) -> None:
    assert isinstance(run("relay", *wrong).exception, UsageError)
    assert RelayFile(user_paths().relays_file).own is None


@pytest.mark.parametrize(
    ("status", "wrong"),
    [
        *[(400, ""), (426, ""), (401, "refuses the key"), (403, "refuses the key")],
        *[(each, f"nobody now (HTTP {each})") for each in (200, 301, 404, 429, 503)],
    ],
)
async def test_no_other_server_is_taken_for_a_relay(status: int, wrong: str) -> None:
    async def answered(_: web.BaseRequest) -> web.Response:
        return web.Response(status=status)

    async with RawTestServer(answered) as server:
        told = ""
        try:
            await try_relay(RelayAccess(url=str(server.make_url("")).rstrip("/")))
        except MachineError as error:
            told = error.what
    assert wrong in told
    assert bool(wrong) == bool(told)


async def test_a_stored_address_without_sense_does_not_answer() -> None:
    with pytest.raises(MachineError, match="does not answer"):
        await try_relay(RelayAccess(url="http://a..b:1", key="k"))


def test_a_port_that_is_taken_is_told_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        error = run("relay", "run", "--listen", place).exception
    assert isinstance(error, MachineError)
    assert error.what == f"Cannot listen at {place} (Address already in use)"


def test_a_log_in_json_has_unix_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    show_entry(LogEntry(at=1.5, text="x"), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"at": 1.5, "text": "x"}


def test_the_unit_has_the_limits_that_were_given_and_no_key() -> None:
    told = run("relay", "service", "install", "--dry-run", "--rate", "2MB").stdout
    (command,) = (line for line in told.splitlines() if line.startswith("ExecStart="))
    assert '"relay" "run" "--listen" "0.0.0.0:50090" "--rate" "2MB"' in command
    assert "KEY" not in told
    # Open to the internet, it may change nothing: here other keys lie beside its own.
    assert "ProtectSystem=strict" in told
    assert "ReadWritePaths" not in told
    assert not user_paths().relay_key_file.exists()
