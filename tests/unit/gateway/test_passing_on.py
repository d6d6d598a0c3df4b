"""What goes through a gateway goes through unchanged, and at once."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import aiohttp
import pytest
from aiohttp import StreamReader, web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from backends.gateway.api_shapes import EVENTS
from backends.gateway.reply import ClientLeft, ResponseWriter
from backends.gateway.request import read_options
from backends.gateway.resumable_stream import resumable
from backends.gateway.upstream import Upstream
from tests.kit.waiting import PATIENCE_S, until
from tests.unit.gateway.gateway_fixture import (
    CHAT,
    WHOLE,
    abort,
    gateway,
    serving,
    stream_of,
    streaming,
    upstream,
)


async def test_method_path_headers_and_body_arrive_as_they_were_sent() -> None:
    seen: dict[str, object] = {}

    async def handler(request: web.BaseRequest) -> web.Response:
        seen.update(
            method=request.method,
            path=request.raw_path,
            body=await request.read(),
            headers=[(k.decode(), v.decode()) for k, v in request.raw_headers],
        )
        return web.Response(
            status=418, reason="I am", headers={"X-Two": "b"}, body=b"x"
        )

    sent = {"X-One": "a", "Authorization": "Bearer k", "Cookie": "c=1"}
    async with serving(handler) as stage:
        place = f"{stage.url}/a%2Fb//c?q=%C3%A4&q=2"
        async with stage.client.put(place, data=b"\x00\xff", headers=sent) as answer:
            got = answer.status, answer.reason, answer.headers["X-Two"]
            assert (*got, await answer.read()) == (418, "I am", "b", b"x")
    assert (seen["method"], seen["path"]) == ("PUT", "/a%2Fb//c?q=%C3%A4&q=2")
    assert seen["body"] == b"\x00\xff"
    headers = seen["headers"]
    assert isinstance(headers, list)
    assert set(sent.items()) <= set(headers)
    assert dict(headers)["Host"] == f"127.0.0.1:{stage.port}"


async def test_nothing_is_added_that_the_client_did_not_send() -> None:
    seen: list[str] = []

    async def handler(request: web.BaseRequest) -> web.Response:
        seen.extend(request.headers)
        return web.Response()

    async with serving(handler) as stage:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
        writer.write(
            b"GET /props HTTP/1.1\r\nHost: h\r\nConnection: X-Mine\r\nX-Mine: 1\r\n"
            b"TE: trailers\r\nKeep-Alive: timeout=5\r\n\r\n"
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
    assert {name.lower() for name in seen} <= {"host", "connection"}


async def test_each_piece_of_a_stream_arrives_before_the_next_is_made() -> None:
    pieces = [b"data: %d\n\n" % number for number in range(5)]
    arrived = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        response = await stream_of(request)
        for piece in (*pieces, b"data: [DONE]\n\n"):
            await response.write(piece)
            await asyncio.wait_for(arrived.wait(), 60)
            arrived.clear()
        return response

    async with serving(handler) as stage:
        async with stage.client.post(stage.url + CHAT, json={"stream": True}) as answer:
            for piece in (*pieces, b"data: [DONE]\n\n"):
                assert await answer.content.readexactly(len(piece)) == piece
                arrived.set()
            assert await answer.read() == b""
        await stage.until(passed=1, in_flight=0)


HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize("path", [CHAT, "/other"])
@pytest.mark.parametrize("together", [True, False])
async def test_the_head_of_an_answer_waits_for_nothing_but_goes_with_what_is_there(
    together: bool, path: str
) -> None:
    piece = b"%x\r\n%s\r\n" % (len(WHOLE[0]), WHOLE[0])
    body, seen = b'{"stream":true}', asyncio.Event()

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + piece if together else HEAD)
        await asyncio.wait_for(seen.wait(), 30)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, gateway() as stage:
        stage.serve(server.sockets[0].getsockname()[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        writer.write(head.encode() + b"\r\n\r\n" + body)
        first = await asyncio.wait_for(reader.read(1 << 16), 30)
        seen.set()
        writer.close()
    assert first.startswith(b"HTTP/1.1 200")
    assert (WHOLE[0] in first) == together


async def test_who_leaves_before_the_head_is_not_taken_for_llama_server() -> None:
    gone = aiohttp.ClientConnectionResetError("Cannot write to closing transport")
    writer = mock.Mock(write_headers=mock.AsyncMock())
    writer.send_headers.side_effect = gone
    request = make_mocked_request("POST", CHAT, writer=writer)
    content = StreamReader(request.protocol, 1 << 16, loop=asyncio.get_running_loop())
    content.feed_data(WHOLE[0][:5])
    events = {"Content-Type": "text/event-stream"}
    answer: Any = mock.Mock(
        status=200, headers=CIMultiDict(events), content_type=EVENTS, content=content
    )
    raw = b'{"stream":true}'
    stream = resumable(CHAT, raw, read_options(raw), may_seed=False)
    assert stream is not None
    with pytest.raises(ClientLeft):
        await ResponseWriter(request, stream).take(answer)


async def test_an_upload_is_passed_on_while_it_comes() -> None:
    first = asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.Response:
        got = await request.content.readexactly(4)
        first.set()
        return web.Response(body=got + await request.content.read())

    async def body() -> AsyncIterator[bytes]:
        yield b"1234"
        await asyncio.wait_for(first.wait(), 60)
        yield b"56"

    async with (
        serving(handler) as stage,
        stage.client.post(stage.url + "/x", data=body()) as answer,
    ):
        assert await answer.read() == b"123456"


async def test_a_compressed_answer_stays_as_it_is() -> None:
    packed = b"\x1f\x8b not really gzip"

    async def handler(request: web.BaseRequest) -> web.Response:
        accepted = request.headers.get("Accept-Encoding", "none")
        headers = {"Content-Encoding": "gzip", "X-Accepted": accepted}
        return web.Response(body=packed, headers=headers)

    async with serving(handler) as stage:
        asked = {"Accept-Encoding": "br"}
        async with (
            aiohttp.ClientSession(auto_decompress=False) as client,
            client.get(stage.url, headers=asked) as got,
        ):
            assert await got.read() == packed
            assert got.headers["X-Accepted"] == "br"


async def test_head_has_the_length_and_no_body() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(body=b"12345")

    async with serving(handler) as stage, stage.client.head(stage.url) as answer:
        assert answer.headers["Content-Length"] == "5"
        assert await answer.read() == b""


async def test_a_client_that_leaves_ends_its_request() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        response = await stream_of(request)
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return response

    async with serving(handler) as stage:
        asking = asyncio.create_task(stage.ask(stream=True))
        await asyncio.wait_for(begun.wait(), 60)
        asking.cancel()
        await asyncio.wait_for(ended.wait(), 60)
        await stage.until(left=1, in_flight=0, passed=0)


async def test_what_only_counts_tokens_is_no_answer() -> None:
    async with serving(streaming(*WHOLE)) as stage:
        for path in ("/tokenize", "/apply-template", "/v1/messages/count_tokens", CHAT):
            async with stage.client.post(stage.url + path, json={}) as answer:
                await answer.read()
        await stage.until(passed=1, in_flight=0)


@pytest.mark.parametrize("pieces", [WHOLE, WHOLE[:1]])
async def test_a_stream_that_breaks_off_ends_by_an_error_event(
    pieces: tuple[bytes, ...],
) -> None:
    """Also where llama-server closed it as if it were whole."""
    async with gateway() as stage:
        async with upstream(streaming(*pieces[:2], broken=len(pieces) > 1)) as port:
            stage.serve(port)
            status, body = await stage.ask(stream=True)
        whole, last = body[: len(b"".join(pieces[:2]))], body.splitlines()[-2]
        assert (status, whole) == (200, b"".join(pieces[:2]))
        error = json.loads(last.removeprefix(b"data: "))["error"]
        assert "ended in the middle" in error["message"]
        await stage.until(failed=1, passed=0, in_flight=0)


async def test_what_breaks_off_within_an_event_is_no_whole_answer() -> None:
    async with gateway() as stage:
        async with upstream(streaming(WHOLE[0], b'data: {"n"', broken=True)) as port:
            stage.serve(port)
            with pytest.raises(aiohttp.ClientError):
                await stage.ask(CHAT, stream=True, n=2)
        await stage.until(failed=1)


async def test_a_client_that_waits_for_leave_to_send_its_body_gets_it() -> None:
    async def handler(request: web.BaseRequest) -> web.Response:
        return web.Response(body=await request.read())

    async with serving(handler) as stage:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
        writer.write(
            b"POST /x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
            b"Connection: close\r\nContent-Length: 5\r\n\r\n"
        )
        leave = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        assert leave == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b'"hel"')
        answer = await asyncio.wait_for(reader.read(), 60)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b'\r\n\r\n"hel"')
        writer.close()


async def test_what_is_no_json_reaches_no_llama_server() -> None:
    """It would write all of it into its log."""
    seen: list[bytes] = []

    async def handler(request: web.BaseRequest) -> web.Response:
        seen.append(await request.read())
        return web.Response()

    body = b'{"messages":[{"role":"user","content":"a secret'
    wrong = b"", b'"', b'"}]', b'"}]} x', b'\n"}]}', b'\xff"}]}', b'\\ud800"}]}'
    async with serving(handler) as stage:
        for rest in wrong:
            status, raw = await stage.post(CHAT, body + rest)
            error = json.loads(raw)["error"]
            assert (status, error["type"]) == (400, "invalid_request_error"), rest
            assert "no JSON" in error["message"], rest
            assert b"secret" not in raw, rest
        said = json.loads((await stage.post("/v1/messages", body))[1])
        assert said["type"] == "error"
        assert "no JSON" in said["error"]["message"]
        await stage.until(refused=len(wrong) + 1, in_flight=0)
        assert not seen
        whole = b"\xef\xbb\xbf" + body + b'"}]}'
        assert (await stage.post(CHAT, whole))[0] == 200
    assert len(seen) == 1


async def test_a_compressed_question_stays_as_it_is() -> None:
    packed, seen = gzip.compress(b"hello" * 100), bytearray()

    async def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend(await reader.readuntil(b"\r\n\r\n"))
        seen.extend(await reader.readexactly(len(packed)))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(taken, "127.0.0.1", 0)
    async with server, gateway() as stage:
        stage.serve(server.sockets[0].getsockname()[1])
        headers = {"Content-Encoding": "gzip"}
        place = f"{stage.url}/x"
        async with asyncio.timeout(PATIENCE_S):
            async with stage.client.post(place, data=packed, headers=headers) as got:
                assert got.status == 200
    assert b"Content-Encoding: gzip\r\n" in seen
    assert seen.endswith(packed)


async def test_a_look_that_breaks_off_after_its_head_is_not_begun_again() -> None:
    async with gateway() as stage, upstream(streaming(broken=True)) as port:
        stage.serve(port)
        async with stage.client.get(f"{stage.url}/events") as answer:
            assert answer.status == 200
            body = await answer.read()
    error = json.loads(body.removeprefix(b"data: "))["error"]
    assert "ended in the middle" in error["message"]


FIELDS = (b'data: {"content":"a","stop":false}\n\n', b'data: {"content":""}\n\n')


@pytest.mark.parametrize("pieces", [FIELDS, FIELDS[:1]])
async def test_a_stream_whose_last_event_the_client_shaped_is_whole(
    pieces: tuple[bytes, ...],
) -> None:
    async with serving(streaming(*pieces)) as stage:
        body = {"prompt": "x", "stream": True, "response_fields": ["content"]}
        _, raw = await stage.ask("/completion", **body)
        assert raw.startswith(b"".join(pieces))
        assert (raw == b"".join(pieces)) == (pieces == FIELDS)


@pytest.mark.parametrize(
    ("path", "error"),
    [
        (CHAT, b'data: {"error":{"code":500,"message":"no"}}\n\n'),
        ("/v1/messages", b'event: error\ndata: {"type":"error"}\n\n'),
        ("/v1/responses", b'data: {"error":{"code":500}}\n\n'),
    ],
)
async def test_an_error_of_llama_server_is_told_once(path: str, error: bytes) -> None:
    asked = {"stream": True, "tools": [{"x": 1}]}
    async with gateway() as stage:
        for begun in (b"", b'data: {"n":1}\n\n'):
            pieces = filter(None, (begun, error))
            async with upstream(streaming(*pieces)) as port:
                stage.serve(port)
                assert await stage.ask(path, **asked) == (200, begun + error)
        await stage.until(passed=2, failed=0)


class Server:
    """Answers, and knows over which connection it was asked."""

    def __init__(self) -> None:
        self.connections: list[web.BaseRequest] = []
        self.aborts_at = -1
        self.go_on = asyncio.Event()
        self.go_on.set()

    @property
    def count(self) -> int:
        return len({id(one.protocol) for one in self.connections})

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        self.connections.append(request)
        if len(self.connections) == self.aborts_at:
            abort(request)
        await request.read()
        await self.go_on.wait()
        return web.Response(text=str(len(self.connections)))


async def test_who_comes_alone_finds_a_connection_there() -> None:
    server = Server()
    async with serving(server) as stage:
        for number in "123":
            assert await stage.ask(n=1) == (200, number.encode())
        assert server.count == 1


async def test_of_several_none_holds_a_connection_that_others_wait_for() -> None:
    """A kept one takes a thread of llama-server, which may have few."""
    server = Server()
    server.go_on.clear()
    async with serving(server) as stage:
        asking = [asyncio.create_task(stage.ask(n=n)) for n in range(4)]
        await until(lambda: len(server.connections) == 4)
        server.go_on.set()
        await asyncio.gather(*asking)
        kept = [one for one in server.connections if one.keep_alive]
        assert (server.count, len(kept)) == (4, 1)


@pytest.mark.parametrize("told", [b"Connection: close\r\n", b""])
async def test_where_each_is_closed_another_is_there_for_who_comes_next(
    monkeypatch: pytest.MonkeyPatch, told: bytes
) -> None:
    """llama-server closes a connection after a stream, and does not say so before."""
    kept_s = "backends.gateway.upstream.KEPT_S"
    monkeypatch.setattr(kept_s, 60)
    there = 0

    async def answer(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal there
        there += 1
        with contextlib.suppress(EOFError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            head = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n" + told
            writer.write(head + b"\r\nwell")
        writer.close()
        there -= 1

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, gateway() as stage:
        stage.serve(server.sockets[0].getsockname()[1])
        for _ in range(3):
            assert await stage.ask(n=1) == (200, b"well")
            await until(lambda: there == 1)
        # Who comes last has nobody behind.
        monkeypatch.setattr(kept_s, 0.01)
        await stage.ask(n=1)
        await until(lambda: there == 0)


async def test_who_left_holds_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.gateway.proxy.PEEK_TIMEOUT_S", 0.05)
    there = 0

    async def silent(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        nonlocal there
        there += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        # A client that leaves before it has read all of it resets the connection.
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        there -= 1

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server, gateway() as stage:
        stage.serve(server.sockets[0].getsockname()[1])
        looking = asyncio.create_task(stage.proxy.peek("/props"))
        await until(lambda: there == 1)
        assert await looking == b""
        await until(lambda: there == 0)


async def test_one_that_was_closed_at_that_moment_delays_nobody() -> None:
    server = Server()
    server.aborts_at = 2
    async with serving(server) as stage:
        await stage.ask(n=1)
        assert await stage.ask(n=2) == (200, b"3")
        await stage.until(passed=2, failed=0, replayed=0)


async def test_a_long_body_has_a_connection_of_its_own() -> None:
    server = Server()
    async with serving(server) as stage:
        for _ in range(2):
            await stage.ask(n="x" * (1 << 19))
        assert server.count == 2


async def test_none_that_is_being_made_ready_outlives_the_gateway() -> None:
    async with upstream(Server()) as port:
        async with Upstream() as asking:
            preparing = []
            for _ in range(2):
                asking._prepare(port)
                preparing.append(asking._preparing)
        await asyncio.wait([one for one in preparing if one])
        assert asking._kept is None
