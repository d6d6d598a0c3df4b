"""Compare the helper's figures of a busy NVIDIA GPU with those of nvidia-smi.

Needs the driver, Python and a C++20 compiler, and nothing else of this project:

    python3 tools/bench/compare_usage.py [DLLM-RELAY]

Without a helper program that runs it compiles one. It keeps the first GPU busy and
asks both several times. It prints a table, and ends with 1 if they differ by more than
two readings a moment apart may.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 5
BUSY_S = 60.0
HELD_BYTES = 2 << 30
QUERY = (
    "name,pci.bus_id,utilization.gpu,memory.used,memory.total,temperature.gpu,"
    "power.draw,enforced.power.limit,clocks.sm"
)
MIB = 1 << 20
# It only counts: each thread keeps its part of a core busy for some milliseconds.
SPIN = b"""
.version 6.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u32 rounds)
{
  .reg .u32 %n, %i, %x;
  .reg .pred %p;
  ld.param.u32 %n, [rounds];
  mov.u32 %i, 0;
  mov.u32 %x, 1;
again:
  mad.lo.u32 %x, %x, 1664525, 1013904223;
  add.u32 %i, %i, 1;
  setp.lt.u32 %p, %i, %n;
  @%p bra again;
  setp.eq.u32 %p, %x, 0;
  @%p trap;
  ret;
}
\0"""


def busy() -> None:
    """Hold memory of the first GPU and run kernels on it; for a process of its own."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def do(name: str, *arguments: object) -> None:
        if status := getattr(cuda, name)(*arguments):
            sys.exit(f"{name} failed with {status}")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
    memory, rounds = ctypes.c_uint64(), ctypes.c_uint32(1 << 20)
    do("cuInit", 0)
    do("cuDeviceGet", ctypes.byref(device), 0)
    do("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    do("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(HELD_BYTES))
    do("cuModuleLoadData", ctypes.byref(module), SPIN)
    do("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin")
    given = (ctypes.c_void_p * 1)(ctypes.addressof(rounds))
    until = time.monotonic() + BUSY_S
    while time.monotonic() < until:
        do("cuLaunchKernel", kernel, 4096, 1, 1, 256, 1, 1, 0, None, given, None)
        do("cuCtxSynchronize")


def helper(named: str | None, folder: Path) -> str:
    """A helper program that runs here: the named one, or one compiled now."""
    if named and subprocess.run([named, "--help"], capture_output=True).returncode == 0:
        return named
    print("compiling the helper program…", flush=True)
    source = ROOT / "native" / "src"
    flags = ["-std=c++20", "-O1", "-D_GNU_SOURCE", '-DDLLM_VERSION="0"', f"-I{source}"]

    def compiled(file: Path) -> str:
        object_file = folder / (str(file.relative_to(source)).replace("/", "_") + ".o")
        argv = ["c++", *flags, "-c", str(file), "-o", str(object_file)]
        subprocess.run(argv, check=True)
        return str(object_file)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = [*pool.map(compiled, sorted(source.rglob("*.cpp")))]
    program = str(folder / "dllm-relay")
    argv = ["c++", *objects, "-o", program, "-pthread", "-ldl"]
    subprocess.run(argv, check=True)
    return program


@contextmanager
def asked(program: str, folder: Path) -> Iterator[Callable[[], dict[str, Any]]]:
    """A function that asks a running helper for its figures."""
    pipe = subprocess.PIPE
    argv = [program, "agent", "--run-dir", str(folder / "run")]
    host = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)
    assert host.stdin is not None
    assert host.stdout is not None
    host.stdout.readline()

    def ask() -> dict[str, Any]:
        assert host.stdin is not None
        assert host.stdout is not None
        host.stdin.write('{"id":1,"do":"usage"}\n')
        host.stdin.flush()
        told: dict[str, Any] = json.loads(host.stdout.readline())["ok"]
        return told

    try:
        yield ask
    finally:
        host.stdin.close()
        host.wait(10)


def nvidia_smi() -> list[list[str]]:
    argv = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    told = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return [[word.strip() for word in row.split(",")] for row in told.splitlines()]


def compared(
    gpu: dict[str, Any], smi: list[str]
) -> Iterator[tuple[str, str, str, bool]]:
    """Figure, the helper's, nvidia-smi's, and whether they agree."""
    yield "name", gpu["name"], smi[0], gpu["name"] == smi[0]
    short = smi[1].lower().removeprefix("0000")
    yield "pci", gpu["pci"], short, gpu["pci"] == short
    near = (
        ("load %", "load_percent", 1, 2, 25.0),
        ("used MiB", "used_bytes", MIB, 3, 64.0),
        ("total MiB", "total_bytes", MIB, 4, 2.0),
        ("°C", "celsius", 1, 5, 4.0),
        ("W", "power_mw", 1000, 6, 120.0),
        ("limit W", "power_limit_mw", 1000, 7, 1.0),
        ("MHz", "clock_mhz", 1, 8, 200.0),
    )
    for label, member, unit, column, tolerance in near:
        ours = None if member not in gpu else gpu[member] / unit
        try:
            theirs = float(smi[column])
        except ValueError:
            yield label, f"{ours}", smi[column], ours is None
            continue
        fits = ours is not None and abs(ours - theirs) <= tolerance
        yield label, "—" if ours is None else f"{ours:.0f}", f"{theirs:.0f}", fits


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        program = helper(sys.argv[1] if len(sys.argv) > 1 else None, folder)
        load = subprocess.Popen([sys.executable, __file__, "--busy"])
        try:
            with asked(program, folder) as ask:
                ask()
                time.sleep(3)
                for turn in range(ROUNDS):
                    began = time.perf_counter()
                    told = ask()
                    took_ms = (time.perf_counter() - began) * 1000
                    rows = nvidia_smi()
                    print(f"\nround {turn + 1}: the helper took {took_ms:.1f} ms")
                    if len(told["gpus"]) != len(rows):
                        print(f"{len(told['gpus'])} GPUs, nvidia-smi has {len(rows)}")
                        failed += 1
                    for gpu, smi in zip(told["gpus"], rows, strict=False):
                        for label, ours, theirs, fits in compared(gpu, smi):
                            sign = "" if fits else "  DIFFERS"
                            failed += not fits
                            print(f"{label:10}{ours:>24}{theirs:>24}{sign}")
                    time.sleep(1)
                print(json.dumps({**told, "gpus": len(told["gpus"])}))
        finally:
            idle = load.poll()
            load.kill()
            load.wait()
    if idle is not None:
        print(f"nothing kept the GPU busy: status {idle}")
    print(f"\n{failed} figures differ")
    return 1 if failed or idle is not None else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--busy"]:
        busy()
    else:
        sys.exit(main())
