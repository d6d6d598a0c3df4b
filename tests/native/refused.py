"""Requests no stock worker survives, or none should see, of many classes.

Every call makes another one of its class, with numbers at random.
"""

from __future__ import annotations

import itertools
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from operator import mul
from typing import Any

from tests.native.relaying import (
    ALLOC_BUFFER,
    BUFFER_GET_BASE,
    GET_DEVICE_MEMORY,
    GET_TENSOR,
    GRAPH_COMPUTE,
    HELLO_REPLY,
    HELLO_REQUEST,
    SET_TENSOR,
    TENSOR_BYTES,
    receive,
    request,
)

BUFFER_BYTES = 4096
ROW_BYTES = 64
F32, F16, I8, I32 = 0, 1, 24, 26
ITEM_BYTES = {F32: 4, F16: 2, I8: 1, I32: 4}
SET_TENSOR_HASH, COPY_TENSOR, INIT_TENSOR, GET_ALLOC_SIZE, MEMSET_TENSOR = (
    7,
    9,
    12,
    13,
    17,
)
SET_TENSOR_2D, GET_TENSOR_2D, COMM_ALLREDUCE = 18, 19, 21
ADD, MUL, SUM_ROWS, REPEAT, RMS_NORM, MUL_MAT, SCALE, CPY = 2, 7, 15, 20, 25, 29, 32, 34
GET_ROWS, SET_ROWS, GET_ROWS_BACK, SOFT_MAX, ROPE = 40, 42, 41, 46, 48
ARANGE, ATTENTION, SSM_CONV, UNARY, GLU = 67, 74, 76, 91, 100
CUSTOM_OP, OPS = 92, 101
MOST = 2**64 - 1
COMPUTED = 16
"""A flag: without it a node is left out."""
TOO_LONG, LONG = 200_000, 30_000
"""Tensors in a row: more than a worker's stack has room for, and more than any
model has."""


@dataclass(frozen=True)
class Part:
    shape: tuple[int, ...]
    kind: int = F32


class Given:
    def __init__(self, client: socket.socket, version: str) -> None:
        self.version = version
        client.sendall(HELLO_REQUEST)
        receive(client, len(HELLO_REPLY))
        client.sendall(request(ALLOC_BUFFER, struct.pack("<IQ", 0, BUFFER_BYTES)))
        self.buffer, self.size = struct.unpack("<8xQQ", receive(client, 24))
        client.sendall(request(BUFFER_GET_BASE, struct.pack("<Q", self.buffer)))
        (self.base,) = struct.unpack("<8xQ", receive(client, 16))

    def row(
        self,
        at: int = 0,
        *,
        kind: int = I8,
        op: int = 0,
        buffer: int = 0,
        number: int = 1,
        sources: tuple[int, ...] = (),
    ) -> bytes:
        """A row of bytes, so far behind the buffer's start."""
        made = bytearray(TENSOR_BYTES)
        struct.pack_into("<QIQ", made, 0, number, kind, buffer or self.buffer)
        struct.pack_into(f"<{len(sources)}Q", made, 124, *sources)
        each = ITEM_BYTES.get(kind, 1)
        shape = ROW_BYTES // each, 1, 1, 1, each, *[ROW_BYTES] * 3
        struct.pack_into("<4I4I", made, 20, *shape)
        struct.pack_into("<I", made, 52, op)
        struct.pack_into("<I", made, 120, COMPUTED)
        struct.pack_into("<Q", made, 220, self.base + at)
        return bytes(made)

    def crowded(
        self, count: int, *, stride: int = 0, kind: int = F32, **row: Any
    ) -> bytes:
        made = bytearray(self.row(kind=kind, **row))
        struct.pack_into("<4I4I", made, 20, count, 1, 1, 1, stride, 0, 0, 0)
        return bytes(made)

    def shape(self, op: int = 0) -> bytes:
        made = bytearray(self.row(op=op, kind=F32))
        struct.pack_into("<Q", made, 12, 0)
        struct.pack_into("<Q", made, 220, 0)
        return bytes(made)

    def sum(self, *sources: int, number: int = 2) -> bytes:
        return self.row(op=ADD, number=number, sources=sources, kind=F32)

    def chain(self, length: int) -> bytes:
        """A graph whose one node is made of a tensor that is made of another…"""
        row = bytearray(self.sum())
        rows = [self.row(kind=F32)]
        for number in range(2, length + 1):
            struct.pack_into("<Q", row, 0, number)
            struct.pack_into("<2Q", row, 124, number - 1, number - 1)
            rows.append(bytes(row))
        return self.graph(*rows, nodes=(length,))

    def op(self, op: int, made: Part, *sources: Part, parameters: bytes = b"") -> bytes:
        """A graph of one op and what it is made of, all of it at one place."""
        tensors = [
            self.part(part, number) for number, part in enumerate(sources, start=1)
        ]
        last = bytearray(self.part(made, len(tensors) + 1))
        struct.pack_into("<I", last, 52, op)
        last[56 : 56 + len(parameters)] = parameters
        struct.pack_into("<I", last, 120, COMPUTED)
        struct.pack_into(f"<{len(tensors)}Q", last, 124, *range(1, len(tensors) + 1))
        return self.graph(*tensors, bytes(last), nodes=(len(tensors) + 1,))

    def part(self, part: Part, number: int) -> bytes:
        made = bytearray(self.row(kind=part.kind, number=number))
        ne = [*part.shape, 1, 1, 1][:4]
        strides = itertools.accumulate(ne[:3], initial=ITEM_BYTES[part.kind], func=mul)
        struct.pack_into("<4I4I", made, 20, *ne, *strides)
        return bytes(made)

    def graph(self, *tensors: bytes, nodes: tuple[int, ...] = (1,)) -> bytes:
        uid = struct.pack("<Q", 5) if self.version == "8.0.0" else b""
        payload = struct.pack("<I", 0) + uid + struct.pack("<I", len(nodes))
        payload += struct.pack(f"<{len(nodes)}Q", *nodes)
        payload += struct.pack("<I", len(tensors)) + b"".join(tensors)
        return request(GRAPH_COMPUTE, payload)


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def set_tensor(tensor: bytes, offset: int, data: bytes) -> bytes:
    return request(SET_TENSOR, tensor + bytes(1) + numbers(offset) + data)


def rows_got(given: Given, count: int) -> bytes:
    """A graph that reads behind the end of a buffer."""
    return given.graph(
        given.crowded(count),
        given.crowded(1, kind=I32, number=2),
        given.crowded(count, op=GET_ROWS, number=3, sources=(1, 2)),
        nodes=(3,),
    )


def scaled(given: Given, count: int) -> bytes:
    made = given.crowded(count, op=SCALE, number=2, sources=(1,))
    return given.graph(given.crowded(count), made, nodes=(2,))


some = random.randint
FAR = 1 << 40
ROWS = Part((8, 6))
CLASSES: dict[str, Callable[[Given], bytes]] = {
    "set beyond the tensor": lambda g: set_tensor(g.row(), some(60, FAR), bytes(5)),
    "set before the buffer": lambda g: set_tensor(g.row(-some(1, FAR)), 0, b"x"),
    "set behind the buffer": lambda g: set_tensor(
        g.row(g.size - 63 + some(0, FAR)), 0, b"x"
    ),
    "set that wraps": lambda g: set_tensor(g.row(), 2**64 - some(1, 8), bytes(8)),
    "set in no buffer": lambda g: set_tensor(g.row(buffer=some(1, 99)), 0, b"x"),
    "set of 2^63 bytes": lambda _: struct.pack("<BQ", SET_TENSOR, some(1 << 63, MOST)),
    "set of a terabyte": lambda _: struct.pack("<BQ", SET_TENSOR, some(FAR, 1 << 62)),
    "set of a type that is none": lambda g: set_tensor(
        g.row(kind=random.choice((4, 5, 31, 38, some(64, FAR >> 9)))), 0, b"x"
    ),
    "get beyond the tensor": lambda g: request(
        GET_TENSOR, g.row() + numbers(0, some(65, FAR))
    ),
    "get that wraps": lambda g: request(
        GET_TENSOR, g.row() + numbers(some(8, 64), MOST - some(0, 7))
    ),
    "get outside": lambda g: request(
        GET_TENSOR, g.row(some(g.size, FAR)) + numbers(0, 1)
    ),
    "memset beyond the tensor": lambda g: request(
        MEMSET_TENSOR, g.row() + numbers(some(1, FAR), 64) + b"v"
    ),
    "hash outside": lambda g: request(
        SET_TENSOR_HASH, g.row(some(g.size, FAR)) + numbers(0, some(1, MOST))
    ),
    "copy outside": lambda g: request(
        COPY_TENSOR, g.row() + g.row(g.size - some(-FAR, 63))
    ),
    "init outside": lambda g: request(INIT_TENSOR, g.row(some(g.size, FAR))),
    "size of what lies outside": lambda g: request(
        GET_ALLOC_SIZE,
        bytes(4) + g.row(some(g.size, FAR)) + bytes(10 * TENSOR_BYTES),
    ),
    "graph with a custom op": lambda g: g.graph(g.row(op=CUSTOM_OP + some(0, 3))),
    "graph with an op beyond": lambda g: g.graph(g.row(op=some(OPS, FAR >> 9))),
    "graph outside": lambda g: g.graph(g.row(some(g.size, FAR))),
    "graph in no buffer": lambda g: g.graph(g.row(buffer=some(1, 99))),
    "rows got from behind a buffer": lambda g: rows_got(g, some(2048, FAR >> 16)),
    "numbers written behind a buffer": lambda g: scaled(g, some(2048, FAR >> 16)),
    "a read of elements that overlap": lambda g: request(
        GET_TENSOR, g.crowded(some(2, FAR >> 16), stride=some(0, 3)) + numbers(0, 4)
    ),
    "graph without a node": lambda g: g.graph(*[g.row()] * some(1, 9), nodes=(0,)),
    "graph of more nodes": lambda g: g.graph(g.row(), nodes=(1,) * some(2, 999)),
    "graph of a sum of nothing": lambda g: g.graph(g.sum(number=1)),
    "graph of half a sum": lambda g: g.graph(g.row(), g.sum(1), nodes=(2,)),
    "graph of a sum of shapes": lambda g: g.graph(g.shape(), g.sum(1, 1), nodes=(2,)),
    "graph into a shape": lambda g: g.graph(g.shape(op=ARANGE)),
    "graph of a source that is not there": lambda g: g.graph(
        g.row(), g.sum(1, some(3, FAR)), nodes=(2,)
    ),
    "graph of a node twice": lambda g: g.graph(g.row(), g.row(number=2), nodes=(1, 1)),
    "graph of an unknown node": lambda g: g.graph(g.row(), nodes=(some(2, FAR),)),
    "attention with a mask of fewer cells": lambda g: g.op(
        ATTENTION,
        Part((8, 1, 6)),
        ROWS,
        Part((8, 16), F16),
        Part((8, 16), F16),
        Part((some(1, 15), 6), F16),
    ),
    "a convolution beyond its states": lambda g: g.op(
        SSM_CONV, Part((6, some(6, 99))), Part((8, 6)), Part((4, 6))
    ),
    "an op of training": lambda g: g.op(GET_ROWS_BACK, ROWS, ROWS, Part((6,), I32)),
    "a command nobody has": lambda _: request(some(23, 255), bytes(some(0, 99))),
    "a size that is none": lambda _: request(
        GET_DEVICE_MEMORY,
        bytes(random.choice((0, 1, 2, 3, 5, 6, 7, some(8, FAR >> 20)))),
    ),
}
CLASSES_OF_8: dict[str, Callable[[Given], bytes]] = {
    "rows beyond the tensor": lambda g: request(
        GET_TENSOR_2D, g.row() + numbers(0, 8, 3, some(29, FAR))
    ),
    "a billion equal rows": lambda g: request(
        GET_TENSOR_2D, g.row() + numbers(0, 8, some(2, 1 << 30), 0)
    ),
    "rows set outside": lambda g: request(
        SET_TENSOR_2D, g.row(some(g.size, FAR)) + numbers(0, 1, 1, 1) + b"x"
    ),
    "a sum with nobody": lambda g: request(COMM_ALLREDUCE, bytes(4) + g.row()),
}

UNFIT: dict[str, Callable[[Given], bytes]] = {
    "a copy of another size": lambda g: g.op(CPY, ROWS, Part((8, some(7, 15)))),
    "a sum of what does not repeat": lambda g: g.op(
        ADD, ROWS, ROWS, Part((some(9, 15),))
    ),
    "a sum into another shape": lambda g: g.op(MUL, Part((8, some(7, 15))), ROWS, ROWS),
    "a norm into another shape": lambda g: g.op(RMS_NORM, Part((8, some(7, 15))), ROWS),
    "a norm of halves": lambda g: g.op(RMS_NORM, Part((8, 6), F16), Part((8, 6), F16)),
    "a norm of less than nothing": lambda g: g.op(
        RMS_NORM, ROWS, ROWS, parameters=struct.pack("<f", -random.uniform(1e-6, 9))
    ),
    "a product into another shape": lambda g: g.op(
        MUL_MAT, Part((6, some(7, 15))), ROWS, ROWS
    ),
    "a scale into another shape": lambda g: g.op(SCALE, Part((8, some(7, 15))), ROWS),
    "sums of rows that are rows": lambda g: g.op(SUM_ROWS, Part((some(2, 8), 6)), ROWS),
    "a repeat that does not fit": lambda g: g.op(REPEAT, Part((8, some(7, 11))), ROWS),
    "rows set by what is no number": lambda g: g.op(
        SET_ROWS, Part((8, 9)), ROWS, Part((6,))
    ),
    "a greatest of whole numbers": lambda g: g.op(
        SOFT_MAX, Part((8, 6), I32), Part((8, 6), I32)
    ),
    "a turn of too many dimensions": lambda g: g.op(
        ROPE,
        ROWS,
        ROWS,
        Part((1,), I32),
        parameters=struct.pack("<3I", 0, some(9, 99), 0),
    ),
    "a turn by what is no number": lambda g: g.op(
        ROPE, ROWS, ROWS, Part((1,)), parameters=struct.pack("<3I", 0, 8, 0)
    ),
    "attention into another shape": lambda g: g.op(
        ATTENTION, Part((some(9, 15), 1, 6)), ROWS, Part((8, 4)), Part((8, 4))
    ),
    "an op of no kind": lambda g: g.op(
        UNARY, ROWS, ROWS, parameters=struct.pack("<I", some(64, FAR >> 10))
    ),
    "a gate of another shape": lambda g: g.op(
        GLU, Part((8, some(7, 15))), Part((8, 6)), Part((8, 6)), parameters=bytes(8)
    ),
}
"""Ops whose tensors do not suit them; a worker's own checks end it."""


def of_version(version: str) -> dict[str, Callable[[Given], bytes]]:
    return CLASSES | UNFIT | (CLASSES_OF_8 if version == "8.0.0" else {})
