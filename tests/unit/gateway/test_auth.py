"""The way in at a gateway: keys in their file, and who is told what instead."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backends.errors import DllmError, UsageError
from backends.gateway import auth
from backends.gateway import server as server_module
from backends.gateway.access import Access
from backends.gateway.auth import Allowance, is_from_here
from backends.gateway.keys import Key, KeyFile, KeyRing
from backends.paths import user_paths
from tests.unit.gateway.standing import CHAT, Stage, gateway, upstream
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
    access = Access(host="0.0.0.0", keys=str(file), body_bytes_max=BODY_BYTES_MAX)
    async with gateway(access) as stage:
        there = Guarded(stage, KeyFile(file))
        async with upstream(there.serve) as port:
            stage.serve(port)
            yield there


@pytest.mark.parametrize(
    "method", ["GET", "POST", "OPTIONS", "HEAD", "DELETE", "PROPFIND"]
)
async def test_without_a_key_nothing_but_401(tmp_path: Path, method: str) -> None:
    async with guarded(tmp_path) as there:
        there.keys.add("other")
        for path in (CHAT, "/v1/models", "/health", "/metrics", "/", "/v1/messages"):
            for given in ({}, {"Authorization": "Bearer dllm-x", "x_api_key": "other"}):
                status, headers, _ = await there.ask(
                    path, method=method, **ELSEWHERE, **given
                )
                assert status == HTTPStatus.UNAUTHORIZED
                assert headers["WWW-Authenticate"] == "Bearer"
        assert not there.seen
        assert there.stage.proxy.counters.counts.refused == 12


@pytest.mark.parametrize(
    "name",
    [
        *("Forwarded", "Via", "x-real-ip", "True-Client-IP", "CF-Connecting-IP"),
        *("X-Forwarded-For", "X-Forwarded-Host", "x-forwarded-proto"),
    ],
)
async def test_what_a_proxy_adds_tells_of_a_machine(tmp_path: Path, name: str) -> None:
    async with guarded(tmp_path) as there:
        assert await there.status(**{name: "1.1 shop"}) == HTTPStatus.UNAUTHORIZED
        secret = there.keys.add("laptop")
        assert await there.status(**{name: "1.1 shop"}, x_api_key=secret) == 200


def test_a_program_of_this_machine_is_one_also_once_it_has_left() -> None:
    transport = mock.Mock()
    transport.get_extra_info.return_value = None
    request = make_mocked_request("POST", CHAT, transport=transport)
    assert is_from_here(request.clone(remote="127.0.0.1"))
    assert not is_from_here(request.clone(remote="10.0.0.9"))


async def test_errors_have_the_shape_of_the_api(tmp_path: Path) -> None:
    async with guarded(tmp_path) as there:
        error = json.loads((await there.ask(**ELSEWHERE))[2])["error"]
        assert (error["code"], error["type"]) == (401, "authentication_error")
        said = json.loads((await there.ask("/v1/messages", **ELSEWHERE))[2])
        assert said["type"] == "error"
        assert said["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("Authorization", "Bearer {}"),
        ("authorization", "bearer  {} "),
        ("x_api_key", "{}"),
        ("X_API_KEY", " {}"),
    ],
)
async def test_with_a_key_until_revoked(tmp_path: Path, name: str, form: str) -> None:
    async with guarded(tmp_path) as there:
        secret = there.keys.add("laptop")
        given = {name: form.format(secret), **ELSEWHERE}
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
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8090"}, 200),
        ({"Host": "127.0.0.1"}, 200),
        ({"Host": "[::1]:8090"}, 200),
        ({"Host": "host.docker.internal:8090"}, 200),
        ({"Host": "LocalHost."}, 200),
        ({"Host": "evil.example:8090"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Origin": "http://localhost:3000"}, 200),
        ({"Origin": "vscode-webview://abc"}, 200),
        ({"Origin": "http://tauri.localhost"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "HTTPS://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "8.8.8.8:8090"}, 200),
        ({"Origin": "http://8.8.8.8"}, 403),
        ({"Origin": "http://8.8.8.8:8090"}, 403),
        ({"Origin": "http://[2606:4700::1111]"}, 403),
        ({"Origin": "http://[::ffff:8.8.8.8]"}, 403),
        ({"Origin": "http://192.168.1.7:8080"}, 200),
        ({"Origin": "http://[fd00::7]"}, 200),
        ({"Origin": "http://127.0.0.2"}, 200),
        ({"Origin": "http://[::1]"}, 200),
    ],
)
async def test_pages_of_other_sites_are_not_served(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    async with guarded(tmp_path) as there:
        assert await there.status(**headers) == status
        assert len(there.seen) == (status == 200)
        secret = there.keys.add("page")
        assert await there.status(x_api_key=secret, **headers) == 200


async def test_a_page_at_a_public_address_of_this_machine_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "own_addresses", lambda: ("8.8.8.8",))
    async with guarded(tmp_path) as there:
        assert await there.status(Origin="http://8.8.8.8:3000") == 200
        assert await there.status(Origin="http://8.8.4.4:3000") == 403


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


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_who_connects_and_asks_nothing_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(server_module, "FIRST_S", 0.2)
    async with guarded(tmp_path) as there:
        reader, writer = await asyncio.open_connection("127.0.0.1", there.stage.port)
        writer.write(begun)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()


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


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(talk=TALK)
@example(talk=[b"GET / HTTP/1.1\r\nHost: \x80\r\n\r\n"])
@example(talk=[b"GET / HTTP/1.1\r\nHost: x\r\nOrigin: http://\x80\r\n\r\n"])
def test_whatever_is_sent_gets_an_answer_or_an_end(
    talk: list[bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    answer = asyncio.run(_said_to(b"".join(talk), tmp_path))
    statuses = {int(found) for found in re.findall(rb"HTTP/1\.1 (\d+) ", answer)}
    assert not statuses & {500, 502}
    assert b"Traceback" not in answer
    assert "Traceback" not in caplog.text


async def _said_to(raw: bytes, folder: Path) -> bytes:
    async with guarded(folder) as there:
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
