"""The way in at a gateway: keys in their file, and who is told what instead."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backends.errors import DllmError, UsageError
from backends.gateway import auth
from backends.gateway import server as server_module
from backends.gateway.auth import Allowance, foreign_page, is_from_here, keys_in
from backends.gateway.keys import Key, KeyFile, KeyRing
from backends.gateway.listen_settings import ListenSettings
from backends.paths import user_paths
from tests.kit.examples import FEW_OR_MANY
from tests.unit.gateway.gateway_fixture import CHAT, Stage, gateway, upstream
from tui.cli.main import cli

ELSEWHERE = {"X-Forwarded-For": "10.0.0.9"}
"""As a proxy on this machine adds it."""
BODY_BYTES_MAX = 1000


class Guarded:
    """A gateway with a door, before a llama-server that tells what it was asked."""

    def __init__(self, stage: Stage, keys: KeyFile) -> None:
        self.stage = stage
        self.keys = keys
        self.seen: list[tuple[str, bytes, list[tuple[str, str]]]] = []
        self.pause = asyncio.Event()
        self.pause.set()

    async def serve(self, request: web.BaseRequest) -> web.Response:
        body = await request.read()
        told = [(k.decode(), v.decode()) for k, v in request.raw_headers]
        self.seen.append((request.path, body, told))
        await self.pause.wait()
        return web.Response(text="llamacpp:it 1\n" if "metrics" in request.path else "")

    async def ask(
        self, path: str = CHAT, data: Any = b"{}", method: str = "POST", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        url = self.stage.url + path
        async with self.stage.client.request(
            method, url, data=data, headers=given
        ) as answer:
            return answer.status, dict(answer.headers), await answer.read()

    async def status(self, **headers: str) -> int:
        return (await self.ask(**headers))[0]


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[Guarded]:
    file = folder / "keys.json"
    access = ListenSettings(
        host="0.0.0.0", keys=str(file), body_bytes_max=BODY_BYTES_MAX
    )
    async with gateway(access) as stage:
        there = Guarded(stage, KeyFile(file))
        async with upstream(there.serve) as port:
            stage.serve(port)
            yield there


async def test_without_a_key_nothing_but_401(tmp_path: Path) -> None:
    """In the shape of the API that was asked."""
    async with guarded(tmp_path) as there:
        there.keys.add("other")
        for method in ("GET", "POST", "OPTIONS", "HEAD", "DELETE", "PROPFIND"):
            for path in (CHAT, "/v1/models", "/health", "/metrics", "/"):
                status, headers, _ = await there.ask(path, method=method, **ELSEWHERE)
                assert status == HTTPStatus.UNAUTHORIZED, (method, path)
                assert headers["WWW-Authenticate"] == "Bearer"
        wrong = {"Authorization": "Bearer dllm-x", "x_api_key": "other", **ELSEWHERE}
        error = json.loads((await there.ask(**wrong))[2])["error"]
        assert (error["code"], error["type"]) == (401, "authentication_error")
        said = json.loads((await there.ask("/v1/messages", **ELSEWHERE))[2])
        assert said["type"] == "error"
        assert said["error"]["type"] == "authentication_error"
        assert not there.seen
        assert there.stage.proxy.counters.counts.refused == 32


def asked(remote: str = "127.0.0.1", **headers: str) -> web.BaseRequest:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    transport = mock.Mock()
    # As of a client that has left.
    transport.get_extra_info.return_value = None
    request = make_mocked_request("POST", CHAT, headers=given, transport=transport)
    return request.clone(remote=remote)


def test_a_program_of_this_machine_is_one_unless_it_speaks_for_another() -> None:
    assert is_from_here(asked())
    assert not is_from_here(asked("10.0.0.9"))
    for name in (
        *("Forwarded", "Via", "x-real-ip", "True-Client-IP", "CF-Connecting-IP"),
        *("X-Forwarded-For", "X-Forwarded-Host", "x-forwarded-proto"),
    ):
        assert not is_from_here(asked(**{name: "1.1 shop"})), name


@pytest.mark.parametrize(
    ("name", "form"),
    [("authorization", "bearer  {} "), ("x_api_key", "{}"), ("X_API_KEY", " {}")],
)
def test_a_key_is_found_as_each_client_sends_it(name: str, form: str) -> None:
    assert [*keys_in(asked(**{name: form.format("k")}))] == ["k"]


async def test_with_a_key_until_revoked(tmp_path: Path) -> None:
    async with guarded(tmp_path) as there:
        secret = there.keys.add("laptop")
        given = {"Authorization": f"Bearer {secret}", **ELSEWHERE}
        assert await there.status(**given) == 200
        (_, body, headers) = there.seen.pop()
        assert body == b"{}"
        # It is nobody's business behind the door.
        assert secret not in str(headers)
        counts = there.stage.proxy.counters.counts.keys["laptop"]
        assert (counts.requests, counts.in_flight) == (1, 0)
        there.keys.remove("laptop")
        assert await there.status(**given) == 401


async def test_the_key_of_llama_server_itself_goes_on(tmp_path: Path) -> None:
    async with guarded(tmp_path) as there:
        secret = there.keys.add("laptop")
        given = {"Authorization": "Bearer its-own", "x_api_key": secret}
        assert await there.status(**given, **ELSEWHERE) == 200
        told = dict(there.seen.pop()[2])
        assert told["Authorization"] == "Bearer its-own"
        assert "x-api-key" not in told
        # Here none is needed: whatever is sent is not ours to judge.
        assert await there.status(Authorization="Bearer none") == 200
        assert dict(there.seen.pop()[2])["Authorization"] == "Bearer none"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "localhost:8090"},
        {"Host": "127.0.0.1"},
        {"Host": "[::1]:8090"},
        {"Host": "host.docker.internal:8090"},
        {"Host": "LocalHost."},
        {"Host": "8.8.8.8:8090"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "vscode-webview://abc"},
        {"Origin": "http://tauri.localhost"},
        {"Origin": "http://192.168.1.7:8080"},
        {"Origin": "http://[fd00::7]"},
        {"Origin": "http://127.0.0.2"},
        {"Origin": "http://[::1]"},
    ],
)
def test_a_page_of_this_machine_is_not_foreign(headers: dict[str, str]) -> None:
    assert foreign_page(asked(**headers)) == ""


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example:8090"},
        {"Host": "localhost.evil.example"},
        {"Host": "[::1"},
        {"Origin": "https://evil.example"},
        {"Origin": "HTTPS://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://8.8.8.8"},
        {"Origin": "http://8.8.8.8:8090"},
        {"Origin": "http://[2606:4700::1111]"},
        {"Origin": "http://[::ffff:8.8.8.8]"},
    ],
)
def test_a_page_of_another_site_is_foreign(headers: dict[str, str]) -> None:
    assert foreign_page(asked(**headers))


def test_a_page_at_a_public_address_of_this_machine_is_not_foreign(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auth, "own_addresses", lambda: ("8.8.8.8",))
    assert not foreign_page(asked(Origin="http://8.8.8.8:3000"))
    assert foreign_page(asked(Origin="http://8.8.4.4:3000"))


async def test_a_foreign_page_is_served_with_a_key_alone(tmp_path: Path) -> None:
    async with guarded(tmp_path) as there:
        for foreign in ({"Origin": "https://evil.example"}, {"Host": "evil.example"}):
            assert await there.status(**foreign) == 403
            assert not there.seen
            secret = there.keys.add(next(iter(foreign)))
            assert await there.status(x_api_key=secret, **foreign) == 200
            there.seen.clear()


async def test_bodies_that_are_too_long(tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b"x" * 100

    async with guarded(tmp_path) as there:
        for data in (b"x" * (BODY_BYTES_MAX + 1), pieces()):
            status, _, body = await there.ask(data=data)
            assert status == 413
            assert "api_request_mib" in json.loads(body)["error"]["message"]
        assert not there.seen
        assert there.stage.proxy.counters.counts.refused == 2
        said = json.loads((await there.ask("/v1/messages", b"x" * 2000))[2])
        assert said["error"]["type"] == "request_too_large"


async def test_a_body_that_does_not_say_how_long_it_is(tmp_path: Path) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'"' + b"x" * 399
        yield b"y" * 599 + b'"'

    async with guarded(tmp_path) as there:
        secret = there.keys.add("laptop")
        assert (await there.ask(data=pieces(), x_api_key=secret))[0] == 200
        assert there.seen.pop()[1] == b'"' + b"x" * 399 + b"y" * 599 + b'"'
        assert (await there.ask(data=pieces(), Expect="100-continue"))[0] == 200
        assert there.seen.pop()[1] == b'"' + b"x" * 399 + b"y" * 599 + b'"'


async def test_who_asks_too_often_is_told_when_to_come_again(tmp_path: Path) -> None:
    async with guarded(tmp_path) as there:
        seldom = there.keys.add("seldom", requests_per_minute=1)
        alone = there.keys.add("alone", requests_per_minute=0, requests_at_once=1)
        assert await there.status(x_api_key=seldom) == 200
        status, headers, body = await there.ask(x_api_key=seldom)
        assert status == 429
        assert 50 < int(headers["Retry-After"]) <= 60
        assert "seldom" in json.loads(body)["error"]["message"]
        there.pause.clear()
        first = asyncio.create_task(there.status(x_api_key=alone))
        await there.stage.until(in_flight=1)
        assert await there.status(x_api_key=alone) == 429
        there.pause.set()
        assert await first == 200
        assert await there.status(x_api_key=alone) == 200
        counts = there.stage.proxy.counters.counts
        assert counts.refused == 0
        assert (counts.keys["seldom"].limited, counts.keys["alone"].limited) == (1, 1)
        assert counts.keys["alone"].in_flight == 0


async def test_metrics_are_those_of_both(tmp_path: Path) -> None:
    async with guarded(tmp_path) as there:
        secret = there.keys.add("laptop")
        assert await there.status(x_api_key=secret) == 200
        status, headers, body = await there.ask(
            "/metrics", method="GET", data=None, x_api_key=secret, **ELSEWHERE
        )
        assert status == 200
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = body.decode()
        assert text.startswith("llamacpp:it 1\n")
        assert 'dllm_key_requests_total{key="laptop"} 2.0' in text
        assert "dllm_requests_passed_total 1.0" in text
        there.stage.tell(why="away")
        text = (await there.ask("/metrics", method="GET", data=None))[2].decode()
        assert "dllm_requests_passed_total 1.0" in text
        assert "llamacpp" not in text


async def test_who_connects_and_asks_nothing_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "FIRST_S", 0.2)

    async def left(there: Guarded, begun: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.stage.port)
        writer.write(begun)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()

    begun = b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"
    async with guarded(tmp_path) as there:
        await asyncio.gather(*(left(there, one) for one in begun))


async def test_of_connections_without_a_request_only_so_many_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest go; a request that is under way counts as none of them."""
    monkeypatch.setattr(server_module, "IDLE_MAX", 3)
    async with guarded(tmp_path) as there:
        there.pause.clear()
        asking = asyncio.create_task(there.status())
        await there.stage.until(in_flight=1)
        connect = asyncio.open_connection
        idle = [await connect("127.0.0.1", there.stage.port) for _ in range(9)]
        for reader, _ in idle[:6]:
            assert await asyncio.wait_for(reader.read(), 60) == b""
        assert not any(reader.at_eof() for reader, _ in idle[6:])
        there.pause.set()
        assert await asking == 200
        for _, writer in idle:
            writer.close()


def test_of_connections_that_come_at_once_each_ends_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of a connection is told in a later step of the loop."""
    monkeypatch.setattr(server_module, "IDLE_MAX", 3)
    server = server_module.Server.__new__(server_module.Server)
    server._idle, server._unasked = defaultdict(dict), {}
    peer = ("192.0.2.1", 1)
    idle = [mock.Mock(web.RequestHandler, peername=peer) for _ in range(5)]
    for one in idle:
        server._rests(one)
    assert [one.force_close.call_count for one in idle] == [1, 1, 0, 0, 0]


METHODS = st.one_of(
    st.sampled_from([b"GET", b"POST", b"CONNECT", b"OPTIONS", b"PRI"]), st.binary()
)
FIELDS = st.sampled_from(
    [
        *(b"Host", b"Origin", b"Authorization", b"x-api-key", b"Content-Length"),
        *(b"Transfer-Encoding", b"Expect", b"Connection", b"Upgrade", b"Content-Type"),
        *(b"Content-Encoding", b"X-Forwarded-For", b"Cookie", b"Range"),
    ]
)
VALUES = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [
            *(b"chunked", b"100-continue", b"Bearer \xff\xfe", b"0", b"5", b"-1"),
            *(b"99999999999999999999", b"[::1", b"http://[", b"gzip", b"upgrade"),
        ]
    ),
)
HEADS = st.builds(
    lambda method, path, fields: b"".join(
        [
            *(method, b" ", path, b" HTTP/1.1\r\n"),
            *(name + b": " + value + b"\r\n" for name, value in fields),
            b"\r\n",
        ]
    ),
    METHODS,
    st.one_of(
        st.sampled_from([b"/", b"*", b"/v1/messages", b"http://x/"]), st.binary()
    ),
    st.lists(st.tuples(FIELDS, VALUES), max_size=5),
)
TALK = st.lists(st.one_of(HEADS, st.binary(max_size=60)), min_size=1, max_size=3)


@FEW_OR_MANY
def test_whatever_is_sent_gets_an_answer_or_an_end(
    n_examples: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with asyncio.Runner() as runner:
        stage = AsyncExitStack()
        there = runner.run(stage.enter_async_context(guarded(tmp_path)))

        @settings(max_examples=n_examples)
        @given(talk=TALK)
        @example(talk=[b"GET / HTTP/1.1\r\nHost: \x80\r\n\r\n"])
        @example(talk=[b"GET / HTTP/1.1\r\nHost: x\r\nOrigin: http://\x80\r\n\r\n"])
        def is_answered(talk: list[bytes]) -> None:
            answer = runner.run(_said_to(there, b"".join(talk)))
            found = {int(one) for one in re.findall(rb"HTTP/1\.1 (\d+) ", answer)}
            assert not found & {500, 502}
            assert b"Traceback" not in answer
            assert "Traceback" not in caplog.text

        is_answered()
        runner.run(stage.aclose())


async def _said_to(there: Guarded, raw: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", there.stage.port)
    writer.write(raw)
    writer.write_eof()
    try:
        answer = await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        answer = b""
    writer.close()
    assert await there.status() == 200
    return answer


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "keys.json"


def test_a_key_is_kept_as_a_hash_for_this_user_alone(file: Path) -> None:
    secret = KeyFile(file).add("laptop")
    assert file.stat().st_mode & 0o777 == 0o600
    assert secret.partition("-")[2] not in file.read_text()
    assert len(secret) > 40
    assert KeyFile(file).add("nuc") != secret
    assert [key.name for key in KeyFile(file).read()] == ["laptop", "nuc"]


def test_a_ring_follows_what_is_added_and_removed(file: Path) -> None:
    ring, keys = KeyRing(file), KeyFile(file)
    assert ring.holder(["x"]) is None
    secret = keys.add("laptop")
    holder = ring.holder(["", "wrong", secret])
    assert holder is not None
    assert holder.name == "laptop"
    for almost in (secret[:-1], secret + " ", secret.upper(), holder.sha256, "\udcff"):
        assert ring.holder([almost]) is None
    keys.remove("laptop")
    assert ring.holder([secret]) is None


def test_file_that_others_can_write_or_nobody_reads_lets_nobody_in(file: Path) -> None:
    secret = KeyFile(file).add("laptop")
    ring = KeyRing(file)
    file.chmod(0o620)
    assert ring.holder([secret]) is None
    with pytest.raises(DllmError, match="chmod 600"):
        KeyFile(file).read()
    file.chmod(0o600)
    assert ring.holder([secret]) is not None
    file.write_text("{")
    assert ring.holder([secret]) is None
    with pytest.raises(DllmError, match="cannot be understood"):
        KeyFile(file).add("nuc")


@pytest.mark.parametrize(
    "told",
    [
        {"sha256": "é"},
        {"sha256": ""},
        {"sha256": "0" * 64, "requests_per_minute": -1},
        {"sha256": "0" * 64, "requests_at_once": -1},
    ],
)
def test_a_file_of_no_keys_lets_nobody_in(file: Path, told: dict[str, object]) -> None:
    file.parent.mkdir()
    file.write_text(json.dumps({"keys": [{"name": "odd", **told}]}))
    file.chmod(0o600)
    assert KeyRing(file).holder(["x"]) is None
    with pytest.raises(DllmError, match="cannot be understood"):
        KeyFile(file).read()


def test_keys_made_at_once_are_all_kept(file: Path) -> None:
    makers = [
        threading.Thread(target=KeyFile(file).add, args=(f"k{n}",)) for n in range(8)
    ]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert len(KeyFile(file).read()) == 8


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 33, "a\x1b"])
def test_names_that_cannot_be_used(file: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name"):
        KeyFile(file).add(name)
    assert not file.exists()


def test_a_minutes_worth_may_come_at_once_and_grows_back() -> None:
    now = [0.0]
    key = Key(name="k", sha256="", requests_per_minute=3, requests_at_once=0)
    allowance = Allowance(lambda: now[0])
    for _ in range(3):
        assert allowance.wait_s(key) == 0
        allowance.begin()
        allowance.end()
    assert allowance.wait_s(key) == pytest.approx(20)
    now[0] = 20.001
    assert allowance.wait_s(key) == 0


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    runner = CliRunner()

    def run(*arguments: str) -> tuple[str, str]:
        result = runner.invoke(cli, ["keys", *arguments], catch_exceptions=False)
        return result.stdout.strip(), result.stderr

    secret, said = run("add", "laptop", "--at-once", "2")
    assert "shown this once" in said
    holder = KeyRing(user_paths().keys_file).holder([secret])
    assert holder is not None
    assert holder.requests_at_once == 2
    listed, said = run("list")
    assert [line.split() for line in listed.splitlines()] == [
        ["NAME", "AGE", "PER", "MINUTE", "AT", "ONCE"],
        ["laptop", "now", "240", "2"],
    ]
    told = run("list", "--json")[0]
    assert '"requests_per_minute": 240' in told
    assert "sha256" not in told
    with pytest.raises(UsageError, match="already"):
        run("add", "laptop")
    with pytest.raises(UsageError, match="Did you mean laptop"):
        run("remove", "lapptop")
    run("remove", "laptop")
    assert run("list")[0] == ""
