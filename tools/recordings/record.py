"""Record what a stock client and its workers say to each other, for tests to replay.

    python -m tools.recordings.record WORKER CLIENT --source "PACKAGE VERSION"

WORKER is an ``rpc-server``, CLIENT a ``llama-bench`` or a ``llama-server`` of the same
build. The recording is named by the protocol version of the worker's own HELLO and
lands in ``tests/native/recordings``. Weights repeat themselves and big ones come from
the worker's cache, so it stays a few kilobytes small.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kit.models import write_llama
from tests.native.stock import Cluster, free_port, start, wait_for_port, wait_until_up
from tools.recordings.recorder import FOLDER, Recorder, Session, save

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMPT = [1, 20, 30, 40, 50, 60]
TOKENS = 3
# Four experts of so many rows of 32 f16 are more than 10 MiB: asked for by hash.
HASHED_ROWS, FEW_ROWS = 41216, 64


@dataclass(frozen=True)
class Variant:
    workers: int = 1
    split_mode: str = "layer"
    n_embd: int = 32
    n_expert: int = 4
    quantized: bool = True
    links: bool = False  # whether workers of 8.0 may talk to each other
    worker_options: tuple[str, ...] = ()
    # Of a llama-server.
    prompt_tokens: int = len(PROMPT)
    options: tuple[str, ...] = ()


SMALL_MEMORY = ("-ctv", "q8_0", "--context-shift")
DRAFT = ("--spec-type", "draft-simple", "--spec-draft-n-max", "4")
VARIANTS = {
    "": Variant(),
    # Blocks of 32 numbers cannot be halved, nor can experts.
    "tensor": Variant(workers=2, split_mode="tensor", n_expert=0, quantized=False),
    "comm": Variant(
        workers=2, split_mode="tensor", n_expert=0, quantized=False, links=True
    ),
    # Two devices of one worker: what one computes is copied to the other.
    "devices": Variant(worker_options=("-d", "CPU,CPU")),
    # Quantized memory that runs over while the answer is written.
    "shift": Variant(n_embd=128, n_expert=0, prompt_tokens=254, options=SMALL_MEMORY),
    # Two models on one worker, and no flash attention.
    "draft": Variant(n_expert=0, options=(*DRAFT, "-devd", "RPC0", "-fa", "off")),
}


@dataclass(frozen=True)
class Build:
    """The two programs of one build, and what this recording asks of them."""

    worker: Path
    client: Path
    variant: Variant

    def caches(self) -> bool:
        if self.variant.n_expert == 0:
            return False
        told = subprocess.run(
            [self.worker, "--help"], capture_output=True, text=True, check=False
        )
        return "--cache" in told.stdout + told.stderr


def write_model(build: Build, file: Path) -> None:
    """A model of two layers, its big tensors only where they need not be sent."""
    rows = HASHED_ROWS if build.caches() else FEW_ROWS
    write_llama(
        file,
        n_layer=2,
        n_embd=build.variant.n_embd,
        n_ff=rows,
        n_expert=build.variant.n_expert,
        n_ctx=256,
        n_vocab=288,
        repeating=True,
        quantized=build.variant.quantized,
    )


def start_worker(stack: ExitStack, build: Build, log: Path) -> int:
    """The worker's port."""
    port = free_port()
    argv = [str(build.worker), "-H", "127.0.0.1", "-p", str(port)]
    argv += [*build.variant.worker_options, *["-c"] * build.caches()]
    start(stack, argv, log)
    wait_for_port(port)
    return port


def run_client(build: Build, model: Path, ports: Sequence[int], log: Path) -> None:
    """One whole life of the client: load, a prompt, some tokens, exit."""
    endpoints = ",".join(f"127.0.0.1:{port}" for port in ports)
    argv = [str(build.client), "-m", str(model), "-t", "1", "-ngl", "99"]
    argv += ["--rpc", endpoints, "-sm", build.variant.split_mode]
    if build.client.name == "llama-server":
        serve(build.variant, [*argv, *build.variant.options], model, log)
    else:
        bench = ["-p", str(len(PROMPT)), "-n", str(TOKENS), "-r", "1"]
        with log.open("wb") as out:
            subprocess.run([*argv, *bench], stdout=out, stderr=out, check=True)


def serve(variant: Variant, argv: list[str], model: Path, log: Path) -> None:
    """Ask a llama-server for tokens, before and after its memory is saved and back."""
    port = free_port()
    prompt = (PROMPT * variant.prompt_tokens)[: variant.prompt_tokens]
    if "--spec-type" in argv:
        argv += ["-md", str(model)]
    argv = [*argv, "-c", "256", "-np", "1", "-fit", "off", "--port", str(port)]
    with ExitStack() as stack:
        process = start(stack, [*argv, "--slot-save-path", str(model.parent)], log)
        url = f"http://127.0.0.1:{port}"
        wait_until_up(url, process)
        Cluster(url).complete(prompt, TOKENS)
        for action in ("save", "restore"):
            ask = urllib.request.Request(
                f"{url}/slots/0?action={action}",
                json.dumps({"filename": "slot"}).encode(),
                {"Content-Type": "application/json"},
            )
            urllib.request.urlopen(ask, timeout=60).close()
        Cluster(url).complete(prompt, TOKENS)


def record(build: Build, source: str, folder: Path) -> Session:
    """Record what passes between the client and its first worker.

    With caches, the client's second life is recorded.
    """
    os.environ["LLAMA_CACHE"] = str(folder)
    if not build.variant.links:
        os.environ["GGML_RPC_NO_COMM"] = "1"
    model = folder / "model.gguf"
    write_model(build, model)
    with ExitStack() as stack:
        logs = [folder / f"worker{i}.log" for i in range(build.variant.workers)]
        ports = [start_worker(stack, build, log) for log in logs]
        if build.caches():
            run_client(build, model, ports, folder / "client.log")
        recorders = [stack.enter_context(Recorder(port)) for port in ports]
        via = [recorder.port for recorder in recorders]
        run_client(build, model, via, folder / "client.log")
    about = {"source": source, "client": build.client.name}
    return Session(about, recorders[0].recordings)


def parse(args: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="tools.recordings.record", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("worker", type=Path)
    parser.add_argument("client", type=Path)
    parser.add_argument("--source", required=True, help="whose build: package, version")
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="")
    parser.add_argument(
        "--no-quants", action="store_true", help="for builds that cannot send them"
    )
    return parser.parse_args(args)


def main(args: Sequence[str]) -> None:
    """Record once, and say what was written."""
    options = parse(args)
    variant = VARIANTS[options.variant]
    if options.no_quants:
        variant = replace(variant, quantized=False)
    build = Build(options.worker, options.client, variant)
    with tempfile.TemporaryDirectory() as folder:
        session = record(build, options.source, Path(folder))
    parts = [session.protocol() or "no-hello", options.variant]
    file = FOLDER / ("-".join(filter(None, parts)) + ".tar.xz")
    save(session, file)
    sys.stdout.write(f"{file}: {file.stat().st_size} bytes\n")


if __name__ == "__main__":
    main(sys.argv[1:])
