"""Record what a worker is asked at 1 k and 8 k of context, for tests of the encodings.

    python -m tools.recordings.record_depth 8.0.0

The engine of this version in the cache runs with two workers. The requests to the
second one, the last stage, are recorded. Only some weights and some batches of a long
prompt are kept. Of the hidden states of a batch the first is kept, and repeated. No
reply but HELLO's is kept. So a
recording stays some ten kilobytes small, and says the same of everything else.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kit.models import write_llama
from tests.native.stock import engine, server, start_worker
from tools.recordings.recorder import (
    FOLDER,
    REQUEST_HEADER_BYTES,
    Recorder,
    Recording,
    save,
)
from tools.recordings.recorder import Session as Recorded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LAYERS, N_EMBD, N_CTX = 24, 32, 10240
ROW_BYTES = 4 * N_EMBD
SET_TENSOR, DATA_AT, NAME = 6, 305, slice(228, 292)
# So many batches of a long prompt are kept from its beginning and from its end.
FIRST, LAST = 2, 2
WEIGHTS = 12  # that are kept


@dataclass(frozen=True)
class Variant:
    questions: tuple[tuple[int, ...], ...]  # prompt tokens of each, all at once
    tokens: int
    options: tuple[str, ...] = ()


VARIANTS = {
    # Answers that cross a multiple of 256 cells, where the graph is sent anew.
    "depth": Variant(questions=((990,), (8400,)), tokens=60),
    # Sequences that take turns in the cells of one memory.
    "slots": Variant(
        questions=((700, 600, 500, 400),), tokens=30, options=("-np", "4", "-kvu")
    ),
}


def ask(url: str, first: int, count: int, tokens: int) -> None:
    """Have a prompt of so many tokens answered; `first` tells it from others."""
    prompt = [1, first, *(50 + 7 * i % 400 for i in range(count - 2))]
    body = {"prompt": prompt, "n_predict": tokens, "ignore_eos": True}
    asked = urllib.request.Request(
        f"{url}/completion",
        json.dumps({**body, "temperature": 0, "cache_prompt": False}).encode(),
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(asked, timeout=600).close()


def run(version: str, variant: Variant, folder: Path) -> list[Recording]:
    """All that passed between the client and its second worker."""
    model = folder / "model.gguf"
    write_llama(
        model, n_layer=LAYERS, n_embd=N_EMBD, n_ff=64, n_ctx=N_CTX, repeating=True
    )
    with ExitStack() as stack:
        logs = (folder / "first.log", folder / "second.log")
        ports = [start_worker(stack, engine(version), log) for log in logs]
        recorder = stack.enter_context(Recorder(ports[1]))
        via = [ports[0], recorder.port]
        options = ("-c", str(N_CTX), *variant.options)
        log = folder / "server.log"
        url = stack.enter_context(server(version, model, via, log, *options))
        for questions in variant.questions:
            with ThreadPoolExecutor(len(questions)) as together:
                for i, count in enumerate(questions):
                    together.submit(ask, url, 60 + i, count, variant.tokens)
    return recorder.recordings


def split(stream: bytes) -> list[bytes]:
    """The requests of a stream."""
    requests = []
    at = 0
    while at < len(stream):
        end = at + REQUEST_HEADER_BYTES + struct.unpack_from("<Q", stream, at + 1)[0]
        requests.append(stream[at:end])
        at = end
    return requests


def is_hidden_state(request: bytes) -> bool:
    name = request[REQUEST_HEADER_BYTES:][NAME]
    return request[0] == SET_TENSOR and b"#l_out" in name


def passes(requests: Sequence[bytes]) -> list[list[bytes]]:
    """The requests by forward pass, each beginning with a hidden state."""
    made: list[list[bytes]] = [[]]
    for request in requests:
        if is_hidden_state(request):
            made.append([])
        made[-1].append(request)
    return made


def shorten(request: bytes) -> bytes:
    at = REQUEST_HEADER_BYTES + DATA_AT
    if not is_hidden_state(request):
        return request
    rows = (len(request) - at) // ROW_BYTES
    return request[:at] + request[at:][:ROW_BYTES] * rows


def without_weights(requests: Sequence[bytes]) -> list[bytes]:
    """The requests, of those that load weights only the first."""
    is_weight = [
        each[0] == SET_TENSOR and b".weight" in each[REQUEST_HEADER_BYTES:][NAME]
        for each in requests
    ]
    seen = accumulate(is_weight)
    return [
        request
        for request, weight, count in zip(requests, is_weight, seen, strict=True)
        if not weight or count <= WEIGHTS
    ]


def excerpt(requests: Sequence[bytes]) -> Iterator[bytes]:
    """The requests without most of a long prompt's, batch by batch of 512."""
    batch = REQUEST_HEADER_BYTES + DATA_AT + 512 * ROW_BYTES
    run: list[list[bytes]] = []
    for each in [*passes(requests), []]:
        if each and is_hidden_state(each[0]) and len(each[0]) == batch:
            run.append(each)
            continue
        kept = run if len(run) <= FIRST + LAST else [*run[:FIRST], *run[-LAST:]]
        yield from chain.from_iterable(kept)
        run.clear()
        yield from each


def make_recording(recorded: Recording) -> Recording:
    requests = [shorten(each) for each in split(recorded.stream(up=True))]
    reply = next(data for up, data in recorded.turns() if not up)
    (size,) = struct.unpack_from("<Q", reply)
    rest = b"".join(excerpt(without_weights(requests[1:])))
    return Recording([(True, requests[0]), (False, reply[: 8 + size]), (True, rest)])


def main(args: Sequence[str]) -> None:
    """Record once, and say what was written."""
    parser = argparse.ArgumentParser(prog="tools.recordings.record_depth")
    parser.add_argument("version", help="protocol version of an engine in the cache")
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="depth")
    options = parser.parse_args(args)
    with tempfile.TemporaryDirectory() as folder:
        recordings = run(options.version, VARIANTS[options.variant], Path(folder))
    longest = max(recordings, key=lambda each: len(each.stream(up=True)))
    about = {
        "source": f"engine {options.version} of the cache",
        "client": "llama-server",
    }
    session = Recorded(about, [make_recording(longest)])
    file = FOLDER / "depth" / f"{options.version}-{options.variant}.tar.xz"
    save(session, file)
    sys.stdout.write(f"{file}: {file.stat().st_size} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1:])
