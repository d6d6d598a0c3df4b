"""Reading what the probe prints, recorded on machines of many kinds."""

from __future__ import annotations

import pytest

from backends.errors import HostError
from backends.peers.probe import facts_of
from backends.peers.probe_text import parse_clock, parse_probe, version_in
from backends.state import DeviceKind


def output(*lines: str) -> str:
    """The script's output: spaces around ``|`` stand for a tab."""
    rows = ["dllm-probe | 1", *lines, "end"]
    return "".join(line.replace(" | ", "\t") + "\n" for line in rows)


# Recorded on Debian 12, with the names of a machine with a GPU put in.
DEBIAN = output(
    "clock | 1795253625.325612717",
    "engine | 1 | /opt/llama | /opt/llama/llama-server | /opt/llama/rpc-server | config"
    " | no",
    "engine | 2 | /h/.cache/dllm-tui/engines/7.0.0-a | /h/.cache/dllm-tui/engines/"
    "7.0.0-a/llama-server | /h/.cache/dllm-tui/engines/7.0.0-a/ggml-rpc-server | cache"
    " | yes",
    "engine | 3 | /usr/bin | /usr/bin/llama-server | /usr/bin/rpc-server | path | no",
    "uname | Linux | x86_64",
    "hostname | box",
    "cache | /h/.cache/dllm-tui",
    "engine_version | 2 | version: 0.5.0-dev (build 0, commit 0c1e57098)",
    "engine_broken | 3 | 132 | Illegal instruction",
    "tool | cxx | /usr/bin/c++ | c++ (Debian 12.2.0-14+deb12u1) 12.2.0",
    "engine_version | 1 | version: 8929 (abcdef01)",
    "cores | 16",
    "engine_manifest | 2 | "
    '{   "rpc_protocol": "7.0.0",   "built_at": 5.5, "flags": ["-DX=ON"], "new": 1 }',
    "disk_free_kib | 76585488",
    "system | Debian GNU/Linux 12 (bookworm)",
    "libc | glibc 2.36",
    "engine_protocol | 1 | 4.0.0",
    "cpu_name | AMD  EPYC",
    "cpu_flags | fpu avx2",
    "cpus_allowed | 0-15",
    "cpus_performance | 0-7",
    "MemTotal | 24684100",
    "MemAvailable | 23547888",
    "engine_devices | 1 | Available devices:",
    "engine_devices | 1 |   CUDA0: NVIDIA RTX 4090 (24210 MiB, 23000 MiB free)",
    "engine_devices | 1 |   Vulkan0: AMD Radeon 780M (RADV PHOENIX) "
    "(16000 MiB, 15000 MiB free)",
    "engine_devices | 1 |   BLAS: OpenBLAS (0 MiB, 0 MiB free)",
    *(f"cpu_list | {n} | {n // 2 * 2}-{n // 2 * 2 + 1}" for n in range(8)),
    *(f"cpu_list | {n} | {n}" for n in range(8, 16)),
    "tool | cmake | /usr/bin/cmake | cmake version 3.25.1",
    "memory_limit | 9223372036854771712 | 2177904640 | 773550080",
    "memory_limit | 8589934592 | 5000000000 | 1000000000",
    "tool | nvcc | /usr/local/bin/nvcc | Cuda compilation tools, V13.0.88",
    "gpu | nvidia",
    "relay | /h/.cache/dllm-tui/relay/0.9.0/dllm-relay | 0.9.0",
    "relay | /h/.cache/dllm-tui/relay/0.10.0/dllm-relay | 0.10.0",
    "model | 10213312 | /h/.models/it's a model.gguf",
    "model | 5 | /h/.models/other.gguf",
    "identity | 1-10213312-506c7cb00dacd0440d72aa8856fbdf49 | "
    "/h/.models/it's a model.gguf",
)

# busybox sh on Alpine 3.22, aarch64 with big and little cores.
ALPINE = output(
    "clock | 1795253625",
    "uname | Linux | aarch64",
    "cores | 6",
    "system | Alpine Linux v3.22",
    "libc | musl 1.2.5 musl",
    "cpu_flags | fp asimd",
    "cpus_allowed | 0-5",
    "MemTotal | 4000000",
    "MemAvailable | 3000000",
    *(f"cpu_list | {n} | {n}" for n in range(6)),
    *(f"cpu_capacity | {n} | {381 if n < 4 else 1024}" for n in range(6)),
)

# After the documentation of sysctl, vm_stat and llama.cpp's Metal backend.
MACOS = output(
    "clock | 1795253625.N",
    "engine | 1 | /opt/homebrew/bin | /opt/homebrew/bin/llama-server | "
    "/opt/homebrew/bin/ggml-rpc-server | path | no",
    "engine_version | 1 | version: 11063 (1a2b3c4)",
    "engine_protocol | 1 | 7.0.0",
    "engine_devices | 1 | Available devices:",
    "engine_devices | 1 |   MTL0: Apple M2 Max (49152 MiB, 49151 MiB free)",
    "engine_devices | 1 |   BLAS: Accelerate (0 MiB, 0 MiB free)",
    "uname | Darwin | arm64",
    "cores | 12",
    "system | macOS 15.5",
    "cpu_name | Apple M2 Max",
    "hw.memsize | 68719476736",
    "hw.physicalcpu | 12",
    "hw.perflevel0.physicalcpu | 8",
    "vm_stat | Mach Virtual Memory Statistics: (page size of 16384 bytes)",
    "vm_stat | Pages free:                             1000000.",
    "vm_stat | Pages active:                            500000.",
    "vm_stat | Pages inactive:                          200000.",
    "gpu | metal",
)


def test_a_linux_machine() -> None:
    probed = parse_probe(f"Welcome to box!\n{DEBIAN}bye\n")
    assert (probed.os, probed.arch, probed.libc) == ("Linux", "x86_64", "glibc 2.36")
    assert probed.system == "Debian GNU/Linux 12 (bookworm)"
    assert probed.cache_dir == "/h/.cache/dllm-tui"
    assert probed.disk_free_bytes == 76585488 * 1024
    assert probed.clock == pytest.approx(1795253625.3256)
    assert probed.tools["nvcc"].path == "/usr/local/bin/nvcc"
    assert probed.tools["cmake"].version == "3.25.1"
    assert probed.gpus == {"nvidia"}
    assert probed.cpu_flags == {"fpu", "avx2"}


def test_engines_come_in_the_order_of_preference() -> None:
    probed = parse_probe(DEBIAN)
    assert [engine.directory for engine in probed.engines] == [
        "/opt/llama",
        "/h/.cache/dllm-tui/engines/7.0.0-a",
    ]
    theirs, ours = probed.engines
    assert (theirs.version, theirs.rpc_protocol) == ("8929 (abcdef01)", "4.0.0")
    assert (ours.rpc_protocol, ours.ours) == ("7.0.0", True)
    assert probed.engine_flags[ours.directory] == ("-DX=ON",)
    assert probed.problems == (
        "The engine in /usr/bin does not run: it uses instructions this CPU does "
        "not have",
    )


def test_devices_are_what_the_first_engine_lists() -> None:
    facts = facts_of(parse_probe(DEBIAN), "box", {"CUDA0": 20, "CPU": 2.5})
    cpu, cuda, integrated = facts.devices
    assert [d.id for d in facts.devices] == ["box/CPU", "box/CUDA0", "box/Vulkan0"]
    assert (cpu.memory_pool, cpu.budget_bytes) == ("box", 5 << 29)
    assert (cuda.memory_pool, cuda.budget_bytes) == ("box/CUDA0", 20 << 30)
    assert cuda.free_bytes == 23000 << 20
    assert (integrated.memory_pool, integrated.budget_bytes) == ("box", None)


def test_a_container_may_use_less_than_the_machine_has() -> None:
    probed = parse_probe(DEBIAN)
    assert probed.memory_bytes == 8589934592
    assert probed.memory_free_bytes == 8589934592 - 5000000000 + 1000000000


def test_threads_and_efficiency_cores_do_not_count() -> None:
    probed = parse_probe(DEBIAN)
    assert (probed.cores, probed.performance_cores) == (16, 4)
    assert parse_probe(ALPINE).performance_cores == 2
    quota = ALPINE.replace("end\n", "cpu_quota\t150000\t100000\nend\n")
    assert parse_probe(quota).performance_cores == 2
    quota = ALPINE.replace("end\n", "cpu_quota\t50000\t100000\nend\n")
    assert parse_probe(quota).performance_cores == 1


def test_a_musl_machine_with_a_coarse_clock() -> None:
    probed = parse_probe(ALPINE)
    assert probed.libc == "musl 1.2.5"
    assert probed.clock == 1795253625.5
    facts = facts_of(probed, "pi", {})
    assert [device.name for device in facts.devices] == ["CPU"]
    assert facts.devices[0].description == "aarch64, 2 cores"
    assert (facts.engines, facts.compiler, facts.relay_version) == ((), "", "")


def test_a_mac_shares_its_memory() -> None:
    probed = parse_probe(MACOS)
    assert (probed.os, probed.libc, probed.performance_cores) == ("Darwin", "", 8)
    assert probed.memory_bytes == 64 << 30
    assert probed.memory_free_bytes == 1_200_000 * 16384
    facts = facts_of(probed, "studio", {})
    cpu, gpu = facts.devices
    assert (gpu.kind, gpu.total_bytes) == (DeviceKind.METAL, 48 << 30)
    assert gpu.memory_pool == cpu.memory_pool == "studio"
    assert facts.engines[0].rpc_protocol == "7.0.0"


def test_lasting_facts() -> None:
    facts = facts_of(parse_probe(DEBIAN), "box", {})
    assert facts.relay_version == "0.10.0"
    assert facts.compiler.startswith("c++ (Debian")
    assert facts.cmake == "3.25.1"
    assert [(m.size_bytes, m.identity[:10]) for m in facts.models] == [
        (10213312, "1-10213312"),
        (5, ""),
    ]


@pytest.mark.parametrize("text", ["", "Welcome\n", DEBIAN[:-4], DEBIAN[20:]])
def test_half_an_answer_is_none(text: str) -> None:
    with pytest.raises(HostError, match="not complete"):
        parse_probe(text)


def test_lines_that_make_no_sense_are_passed_over() -> None:
    text = output(
        "uname", "cores | many", "MemTotal | ", "engine | 1", "model | x", "?"
    )
    assert parse_probe(text).cores == 0


def test_numbers_in_lines() -> None:
    assert version_in("Cuda tools, release 13.0, V13.0.88") == "13.0.88"
    assert version_in("no number") == ""
    assert parse_clock("") is None
