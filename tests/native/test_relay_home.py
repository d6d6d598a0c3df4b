"""A pair of relays in the middle of a load by reference: either end is killed."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.kit.waiting import PATIENCE_S, wait_until
from tests.native.pairing import AS_ASKED, paired
from tests.native.relaying import (
    BASE,
    BUFFER,
    SET_TENSOR,
    TENSOR_BYTES,
    Relay,
    Worker,
    give_buffer,
    greet,
    in_thread,
    receive,
)

SIZE_BYTES = 64 << 20
NAME = "blk.0.weight"
CHUNK_BYTES = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of one large tensor."""
    file = tmp_path_factory.mktemp("model") / "one.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    data = np.random.default_rng(0).integers(-128, 127, SIZE_BYTES, dtype=np.int8)
    writer.add_tensor(NAME, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def set_weight(model: Path) -> bytes:
    """The SET_TENSOR with which the tensor of the file is loaded."""
    made = bytearray(TENSOR_BYTES)
    struct.pack_into("<IQ", made, 8, gguf.GGMLQuantizationType.I8, BUFFER)
    struct.pack_into("<4I", made, 20, SIZE_BYTES, 1, 1, 1)
    struct.pack_into("<4I", made, 36, 1, SIZE_BYTES, SIZE_BYTES, SIZE_BYTES)
    struct.pack_into("<Q", made, 220, BASE)
    made[228 : 228 + len(NAME)] = NAME.encode()
    head = bytes(made) + bytes(1) + bytes(8)
    data = gguf.GGUFReader(model).tensors[0].data.tobytes()
    return struct.pack("<BQ", SET_TENSOR, len(head) + len(data)) + head + data


def read_to_end(peer: socket.socket) -> None:
    with suppress(ConnectionError):
        while peer.recv(CHUNK_BYTES):
            pass


def half_loaded(
    near: Relay, client: socket.socket, worker: socket.socket, model: Path
) -> None:
    """A load of which some came from the file, and which goes no further."""
    greet(client, worker)
    give_buffer(client, worker, SIZE_BYTES)
    whole = set_weight(model)

    def ask() -> None:
        with suppress(OSError):
            client.sendall(whole)

    in_thread(ask)
    assert receive(worker, CHUNK_BYTES) == whole[:CHUNK_BYTES]
    with near.stats() as stats:
        seen = stats.until(
            lambda line: bool(
                line.get("pair") and line["pair"]["weight_bytes_home"] >= CHUNK_BYTES
            )
        )
    assert seen["pair"]["weight_bytes_home"] < SIZE_BYTES
    assert seen["pair"]["weight_bytes_sent"] == 0


@pytest.mark.parametrize("victim", ["near", "far"])
def test_an_end_killed_in_a_load_is_noticed_and_the_other_goes_on(
    relay: Path, model: Path, tmp_path: Path, victim: str
) -> None:
    beside = ("--model", str(model))
    stats = tmp_path / "w.sock"
    with (
        Worker() as worker,
        paired(
            relay, worker.port, stats, near_options=AS_ASKED, far_options=beside
        ) as (near, far),
        near.connect() as client,
    ):
        with worker.accept() as server:
            half_loaded(near, client, server, model)
            process = near.process if victim == "near" else far.process
            process.kill()
            process.wait(PATIENCE_S)
            # Neither side waits for what never comes.
            read_to_end(server)
            read_to_end(client)
        other = far.process if victim == "near" else near.process
        assert other.poll() is None
        log = far.log if victim == "near" else near.log
        wait_until(lambda: "the link broke" in log.read_text())
        assert log.read_text().count("the link broke") == 1


def test_a_server_that_dies_in_a_load_costs_that_session_alone(
    relay: Path, model: Path, tmp_path: Path
) -> None:
    beside = ("--model", str(model))
    stats = tmp_path / "w.sock"
    with (
        Worker() as worker,
        paired(
            relay, worker.port, stats, near_options=AS_ASKED, far_options=beside
        ) as (near, _),
    ):
        with near.connect() as client:
            with worker.accept() as server:
                half_loaded(near, client, server, model)
            read_to_end(client)
        whole = set_weight(model)
        with near.connect() as client, worker.accept() as server:
            greet(client, server)
            give_buffer(client, server, SIZE_BYTES)
            in_thread(lambda: client.sendall(whole))
            assert receive(server, len(whole)) == whole
