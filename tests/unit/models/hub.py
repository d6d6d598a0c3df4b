"""A server that speaks the API of the Hugging Face hub, and sends files by ranges."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

COMMIT = "c" * 40
CHUNK_BYTES = 4096


@dataclass
class Hub:
    """One repository, ``owner/name``, and the faults of its server."""

    # The loop writes out what a task gave: that of 8 MiB takes a quarter of a second.
    files: dict[str, bytes] = field(repr=False)
    address: str = "127.0.0.1"
    url: str = ""
    cdn: str = ""
    """Another host that files are redirected to."""
    signs: bool = False
    """Of the addresses there only the newest works, once."""
    status: int = 0
    """Every answer has it, if it is set."""
    refusals: int = 0
    """Answers with ``status`` before all goes well; 0: every one."""
    error_code: str = ""
    cut_after: int | None = None
    """Bytes of a file's body before the connection breaks, once."""
    when_cut: Callable[[], None] = lambda: None
    """Called at that break."""
    announced: dict[str, str] = field(default_factory=dict)
    """SHA-256 by file, where it is not the true one."""
    anonymous: bool = False
    """Its files have no ETag."""
    deaf: bool = False
    """It ignores ``If-Range``."""
    rangeless: bool = False
    """It sends whole files, whatever part is asked for."""
    length: int = 0
    """What it says of the length of a body, if that is not the true one."""
    page: bool = False
    """It sends a web page whatever is asked, as the gate of a network does."""
    silent: str = ""
    """The path that it never answers."""
    pace_s: float = 0.0
    """Seconds for each chunk of a body."""
    elsewhere: str = ""
    """Another host that answers what this one is asked."""
    endless: bool = False
    """A body has no length, and goes on after the file."""
    hold_after: int | None = None
    """Bytes of a file's body before it waits for ``go``."""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    ranges: list[str] = field(default_factory=list)
    tokens: list[tuple[str, str]] = field(default_factory=list)
    """Host and Authorization of each request."""
    paths: list[str] = field(default_factory=list)
    """Of each request."""
    signed: int = 0
    """Addresses given so far."""
    served_bytes: int = 0

    def sha256(self, name: str) -> str:
        told = self.announced.get(name)
        return told or hashlib.sha256(self.files[name]).hexdigest()

    def fault(self) -> web.Response | None:
        if self.page:
            page = "<html>Sign in to the network</html>"
            return web.Response(text=page, content_type="text/html")
        if not self.status:
            return None
        status = self.status
        if self.refusals:
            self.refusals -= 1
            self.status = self.status if self.refusals else 0
        headers = {"Retry-After": "1"}
        if self.error_code:
            headers["X-Error-Code"] = self.error_code
        return web.json_response({"error": "refused"}, status=status, headers=headers)

    async def info(self, request: web.Request) -> web.StreamResponse:
        if fault := self.fault():
            return fault
        if request.match_info["name"] != "name":
            return web.json_response(
                {"error": "Repository not found"},
                status=401,
                headers={"X-Error-Code": "RepoNotFound"},
            )
        siblings = [
            {
                "rfilename": name,
                "size": len(content),
                "lfs": {
                    "sha256": self.sha256(name),
                    "size": len(content),
                    "pointerSize": 130,
                },
            }
            for name, content in self.files.items()
        ]
        return web.json_response(
            {"id": "owner/name", "sha": COMMIT, "siblings": siblings, "tags": []}
        )

    async def resolve(self, request: web.Request) -> web.StreamResponse:
        if fault := self.fault():
            return fault
        name = request.match_info["file"]
        size = str(len(self.files[name]))
        headers = {
            "X-Repo-Commit": COMMIT,
            "X-Linked-Etag": f'"{self.sha256(name)}"',
            "X-Linked-Size": size,
        }
        if self.cdn and request.host == self.url.removeprefix("http://"):
            self.signed += 1
            query = f"?signed={self.signed}" if self.signs else ""
            headers["Location"] = f"{self.cdn}/cdn/{name}{query}"
            return web.Response(status=302, headers=headers)
        return await self.send(request, headers)

    async def send(
        self, request: web.Request, headers: dict[str, str] | None = None
    ) -> web.StreamResponse:
        """A file, or the rest of it; over a connection that may break."""
        if fault := self.fault():
            return fault
        signed = request.query.get("signed")
        if signed is not None and int(signed) != self.signed:
            return web.Response(status=403)
        self.signed += 1
        name = request.match_info["file"]
        content = self.files[name]
        etag = f'"{self.sha256(name)}"'
        begin, end, status = 0, len(content), 200
        asked = request.headers.get("Range", "")
        fits = self.deaf or request.headers.get("If-Range", etag) == etag
        if asked and fits and not self.rangeless:
            self.ranges.append(asked)
            first, _, last = asked.removeprefix("bytes=").partition("-")
            begin, end = int(first), int(last or end - 1) + 1
            status = 206
            if begin >= len(content):
                told = {"Content-Range": f"bytes */{len(content)}"}
                return web.Response(status=416, headers=told)
        body = content[begin:end]
        told = {**(headers or {}), "ETag": etag, "Accept-Ranges": "bytes"}
        if self.anonymous:
            del told["ETag"]
        if status == 206:
            last_byte = begin + len(body) - 1
            told["Content-Range"] = f"bytes {begin}-{last_byte}/{len(content)}"
        answer = web.StreamResponse(status=status, headers=told)
        if self.endless:
            answer.enable_chunked_encoding()
        else:
            answer.content_length = self.length or len(body)
        await answer.prepare(request)
        if request.method == "HEAD":
            return answer
        cut, self.cut_after = self.cut_after, None
        for at in range(0, len(body) if cut is None else cut, CHUNK_BYTES):
            await asyncio.sleep(self.pace_s)
            to = at + CHUNK_BYTES if cut is None else min(at + CHUNK_BYTES, cut)
            await answer.write(body[at:to])
            self.served_bytes += len(body[at:to])
            if self.hold_after is not None and to >= self.hold_after:
                await self.go.wait()
        while self.endless and request.transport is not None:
            await answer.write(bytes(1 << 16))
        if cut is not None:
            self.when_cut()
        if cut is not None and request.transport is not None:
            request.transport.abort()
        return answer

    @web.middleware
    async def _asked(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.tokens.append((request.host, request.headers.get("Authorization", "")))
        self.paths.append(request.path)
        if self.elsewhere and request.host != self.elsewhere:
            raise web.HTTPFound(f"http://{self.elsewhere}{request.path_qs}")
        if self.silent == request.path:
            await self.go.wait()
        answer: web.StreamResponse = await handler(request)
        return answer

    @contextmanager
    def served_aside(self) -> Iterator[Hub]:
        """Serve it by another thread."""
        ready: Future[asyncio.Event] = Future()

        async def serve() -> None:
            ended = asyncio.Event()
            async with self.served():
                ready.set_result(ended)
                await ended.wait()

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        ended = ready.result(10)
        try:
            yield self
        finally:
            self.release()
            self._loop.call_soon_threadsafe(ended.set)
            thread.join()

    def release(self) -> None:
        """Let what waits go on, from any thread."""
        self.hold_after = None
        self._loop.call_soon_threadsafe(self.go.set)

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Serve it; the URL."""
        app = web.Application(middlewares=[self._asked])
        app.router.add_get("/api/models/owner/{name}", self.info)
        app.router.add_get("/api/models/owner/{name}/revision/{revision}", self.info)
        app.router.add_get("/owner/name/resolve/{revision}/{file:.+}", self.resolve)
        app.router.add_get("/cdn/{file:.+}", self.send)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, self.address, 0)
        await site.start()
        self._loop = asyncio.get_running_loop()
        self.url = f"http://{self.address}:{runner.addresses[0][1]}"
        try:
            yield self.url
        finally:
            self.go.set()
            await runner.cleanup()
