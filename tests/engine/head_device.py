"""A device of the head's own where it has none: an rpc-server without a relay."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.native.stock import engine, start_worker

HELD = 2
"""Layers of that device: the last one, and the output."""


@contextmanager
def engine_with_device(version: str, split: str, folder: Path) -> Iterator[Path]:
    """The directory of a stock engine whose llama-server has one more device, the last.

    It takes what it holds from the last worker of a ``split`` over two workers.
    """
    stock = engine(version)
    first, last = map(int, split.split(","))
    folder.mkdir()
    for each in stock.iterdir():
        (folder / each.name).symlink_to(each)
    with ExitStack() as stack:
        port = start_worker(stack, stock, folder / "device.log")
        more = f"--rpc 127.0.0.1:{port} --device RPC0,RPC1,RPC2"
        more += f" -ts {first},{last - HELD},{HELD}"
        server = folder / "llama-server"
        server.unlink()
        server.write_text(
            "#!/bin/sh\n"
            f'case "$*" in *"--device RPC0,RPC1"*) set -- "$@" {more} ;; esac\n'
            f'exec {shlex.quote(str(stock / "llama-server"))} "$@"\n'
        )
        server.chmod(0o755)
        yield folder
