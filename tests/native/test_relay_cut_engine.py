"""A pair between stock programs whose connection is cut at random bytes."""

from __future__ import annotations

import json
import logging
import random
import selectors
import socket
import struct
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from tests.kit.models import write_llama
from tests.native.pairing import FarEnd, key_file
from tests.native.relaying import in_thread, running
from tests.native.stock import SHORT_PROMPT, engine, server, start_worker

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("with_tls")]

log = logging.getLogger(__name__)

VERSION = "8.0.0"
TOKENS = 60
ANSWER_BYTES = 40_000
"""A cut comes within so many bytes of an answer; it has more."""
RESET = struct.pack("ii", 1, 0)


class Cutter:
    """Carries bytes between two relays, and cuts connections behind random bytes."""

    def __init__(self, there: int, seed: int) -> None:
        self.there = there
        self.cuts = 0
        self._random = random.Random(seed)
        self._left: int | None = None
        self._within = self._more = 0
        # Armed by the test while bytes pass.
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread = in_thread(self._run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def arm(self, within: int, times: int = 1) -> None:
        with self._lock:
            self._within, self._more = within, times
            self._next()

    def _next(self) -> None:
        again = self._more > 0
        self._more -= again
        self._left = self._random.randint(1, self._within) if again else None

    def _run(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self.there))
            except OSError:
                return
            with near, far:
                self._carry({near: far, far: near})

    def _carry(self, ends: dict[socket.socket, socket.socket]) -> None:
        with selectors.DefaultSelector() as waits:
            for end in ends:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                waits.register(end, selectors.EVENT_READ)
            while True:
                for key, _ in waits.select():
                    end = next(each for each in ends if each is key.fileobj)
                    try:
                        whole = self._pass(end.recv(1 << 16), ends[end])
                    except OSError:
                        return
                    if not whole:
                        return

    def _pass(self, data: bytes, to: socket.socket) -> bool:
        with self._lock:
            left = self._left
            if left is not None and len(data) < left:
                self._left = left - len(data)
        if left is None or len(data) < left:
            to.sendall(data)
            return bool(data)
        to.sendall(data[:left])
        if self._random.random() < 0.5:
            to.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        with self._lock:
            self.cuts += 1
            self._next()
        return False


class Answer(NamedTuple):
    """A streamed answer, and the longest time between two of its parts."""

    words: str
    gap_s: float


def stream(url: str) -> Answer:
    """An answer at temperature 0, token by token."""
    body = {
        "prompt": SHORT_PROMPT,
        "n_predict": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "return_tokens": True,
        "cache_prompt": False,
        "stream": True,
    }
    asked = urllib.request.Request(
        url + "/completion",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    tokens, gap_s, at = [], 0.0, time.monotonic()
    with urllib.request.urlopen(asked, timeout=120) as answer:
        for line in answer:
            if line.startswith(b"data: "):
                gap_s, at = max(gap_s, time.monotonic() - at), time.monotonic()
                tokens += json.loads(line[6:])["tokens"]
    return Answer(" ".join(map(str, tokens)), gap_s)


class Pauses:
    def __init__(self) -> None:
        self.ms: list[int] = []

    def watch(self, stats: Path) -> None:
        with socket.socket(socket.AF_UNIX) as reader:
            reader.connect(str(stats))
            for text in reader.makefile("r"):
                pair = json.loads(text).get("pair")
                if pair and pair["reconnects"] > len(self.ms):
                    # Those between two snapshots are told as the latest of them.
                    more = pair["reconnects"] - len(self.ms)
                    self.ms += more * [pair["pause_ms"]]


def cut_often(relay: Path, work: Path, *, loads: int, cuts: int, seed: int) -> str:
    """Loads and streamed answers over a link that is cut; what was measured."""
    model, pauses = work / "small.gguf", Pauses()
    write_llama(model, n_layer=12, n_embd=128, n_ff=256)
    with ExitStack() as stack:
        worker = start_worker(stack, engine(VERSION), work / "worker.log")
        with server(VERSION, model, [worker], work / "direct.log") as url:
            uncut = stream(url)
        key, stats = key_file(work / "key"), work / "w.sock"
        far = stack.enter_context(FarEnd(relay, worker, work / "far.log", *key))
        between = stack.enter_context(Cutter(far.port, seed))
        place = f"127.0.0.1:{between.port}"
        head = running(relay, place, stats, *key, way="--pair-dial")
        near = stack.enter_context(head)
        in_thread(lambda: pauses.watch(stats))
        between.arm(model.stat().st_size // (loads + 1), loads)
        url = stack.enter_context(
            server(VERSION, model, [near.port], work / "server.log")
        )
        while_loading, gaps_s = between.cuts, []
        while between.cuts < while_loading + cuts:
            before = between.cuts
            between.arm(ANSWER_BYTES)
            answer = stream(url)
            assert answer.words == uncut.words
            gaps_s.append(answer.gap_s)
            assert between.cuts > before, "an answer is longer than that"
        with near.stats() as reader:
            seen = reader.until(lambda line: line["type"] == "snapshot")
        assert "the link broke" not in near.log.read_text()
        assert while_loading == loads
        # A cut within the greeting of the connection before is none of the link's.
        assert 0 < seen["pair"]["reconnects"] <= between.cuts
    return (
        f"{while_loading} cuts while loading, {len(gaps_s)} answers with a cut each, "
        f"all the same; the link paused {max(pauses.ms)} ms at most "
        f"(median {sorted(pauses.ms)[len(pauses.ms) // 2]} ms), "
        f"an answer {max(gaps_s) * 1000:.0f} ms (uncut {uncut.gap_s * 1000:.0f} ms)"
    )


def test_answers_are_same_where_connection_is_cut(relay: Path, tmp_path: Path) -> None:
    log.info(cut_often(relay, tmp_path, loads=3, cuts=7, seed=1))


@pytest.mark.trial
def test_a_hundred_cuts(relay: Path, tmp_path: Path) -> None:
    log.info(cut_often(relay, tmp_path, loads=20, cuts=80, seed=time.time_ns()))
