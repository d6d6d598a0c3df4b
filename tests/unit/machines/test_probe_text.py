"""Reading what the probe prints, recorded on machines of many kinds."""

from __future__ import annotations

import pytest

from backends.errors import HostError
from backends.machines.probing import facts_of, parse_clock, parse_probe, version_in
from backends.state import EngineSource


def output(*lines: str) -> str:
    """The script's output: spaces around ``|`` stand for a tab."""
    rows = ["dllm-probe | 1", *lines, "end"]
    return "".join(line.replace(" | ", "\t") + "\n" for line in rows)


# Recorded on Debian 12, with the names of a machine with a GPU put in.
DEBIAN = output(
    "clock | 1795253625.325612717",
    "engine | /usr/bin | /usr/bin/llama-server | /usr/bin/rpc-server | path | ",
    "engine | /c/7.0.0-a | /c/7.0.0-a/llama-server | /c/7.0.0-a/ggml-rpc-server | "
    'provisioned | {   "rpc_protocol": "7.0.0",   "built_at": 5.5, "flags": ["-DX=ON"],'
    ' "new": 1 }',
    "engine | /c/b | /c/b/llama-server | /c/b/ggml-rpc-server | cache | "
    '{ "built_at": 6.5, "backends": ["cpu", "cuda", "rpc"] }',
    "engine | /c/cut | /c/cut/llama-server | /c/cut/rpc-server | cache | {",
    "engine | /opt/llama | /opt/llama/llama-server | /opt/llama/rpc-server | config | ",
    "engine | /x | /x/llama-server | /x/rpc-server | elsewhere | ",
    "env | HOME | /h",
    "env | HF_HOME | ",
    "uname | Linux | x86_64",
    "hostname | box",
    "cache | /h/.cache/dllm-tui",
    "tool | cxx | /usr/bin/c++ | c++ (Debian 12.2.0-14+deb12u1) 12.2.0",
    "cores | 16",
    "disk_free_kib | 76585488",
    "system | Debian GNU/Linux 12 (bookworm)",
    "libc | glibc 2.36",
    "cpu_name | AMD  EPYC",
    "cpu_flags | fpu avx2",
    "cpus_allowed | 0-15",
    "cpus_performance | 0-7",
    "MemTotal | 24684100",
    "MemAvailable | 23547888",
    *(f"cpu_list | {n} | {n // 2 * 2}-{n // 2 * 2 + 1}" for n in range(8)),
    *(f"cpu_list | {n} | {n}" for n in range(8, 16)),
    "tool | cmake | /usr/bin/cmake | cmake version 3.25.1",
    "memory_limit | 9223372036854771712 | 2177904640 | 773550080",
    "memory_limit | 8589934592 | 5000000000 | 1000000000",
    "relay | /h/.cache/dllm-tui/relay/0.9.0/dllm-relay",
    "relay | /h/.cache/dllm-tui/relay/0.10.0/dllm-relay",
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
)


def test_a_linux_machine() -> None:
    probed = parse_probe(f"Welcome to box!\n{DEBIAN}bye\n")
    assert (probed.os, probed.arch, probed.libc) == ("Linux", "x86_64", "glibc 2.36")
    assert probed.system == "Debian GNU/Linux 12 (bookworm)"
    assert probed.cache_dir == "/h/.cache/dllm-tui"
    assert probed.disk_free_bytes == 76585488 * 1024
    assert probed.clock == pytest.approx(1795253625.3256)
    assert probed.tools["cmake"].version == "3.25.1"
    assert probed.cpu_flags == {"fpu", "avx2"}


def test_engines_come_in_the_order_of_preference() -> None:
    probed = parse_probe(DEBIAN)
    assert [(engine.directory, engine.source) for engine in probed.engines] == [
        ("/opt/llama", EngineSource.CONFIG),
        ("/c/b", EngineSource.CACHE),
        ("/c/7.0.0-a", EngineSource.PROVISIONED),
        ("/c/cut", EngineSource.CACHE),
        ("/usr/bin", EngineSource.PATH),
    ]
    assert probed.engines[1].backends == ("cpu", "cuda", "rpc")
    assert probed.engines[2].rpc_protocol == "7.0.0"
    assert probed.engine_flags["/c/7.0.0-a"] == ("-DX=ON",)


def test_what_moves_the_folders_of_models_is_told() -> None:
    assert parse_probe(DEBIAN).env == {"HOME": "/h", "HF_HOME": ""}


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
    facts = facts_of(probed, "pi")
    assert [device.name for device in facts.devices] == ["CPU"]
    assert facts.devices[0].description == "aarch64, 2 cores"
    assert (facts.engines, facts.compiler, facts.relay_path) == ((), "", "")


def test_a_mac_counts_its_fast_cores_and_its_pages() -> None:
    probed = parse_probe(MACOS)
    assert (probed.os, probed.libc, probed.performance_cores) == ("Darwin", "", 8)
    assert probed.memory_bytes == 64 << 30
    assert probed.memory_free_bytes == 1_200_000 * 16384


def test_lasting_facts() -> None:
    facts = facts_of(parse_probe(DEBIAN), "box")
    (cpu,) = facts.devices
    assert cpu.description == "AMD EPYC, 4 cores"
    assert (cpu.id, cpu.memory_pool) == ("box/CPU", "box")
    assert facts.relay_path == "/h/.cache/dllm-tui/relay/0.10.0/dllm-relay"
    assert facts.relay_version == "", "whether it runs shows when it is asked"
    assert facts.compiler.startswith("c++ (Debian")
    assert facts.cmake == "cmake 3.25.1"


@pytest.mark.parametrize("text", ["", "Welcome\n", DEBIAN[:-4], DEBIAN[20:]])
def test_half_an_answer_is_none(text: str) -> None:
    with pytest.raises(HostError, match="not complete"):
        parse_probe(text)


def test_lines_that_make_no_sense_are_passed_over() -> None:
    text = output("uname", "cores | many", "MemTotal | ", "engine | 1", "env | x", "?")
    assert parse_probe(text).cores == 0


def test_numbers_in_lines() -> None:
    assert version_in("Cuda tools, release 13.0, V13.0.88") == "13.0.88"
    assert version_in("no number") == ""
    assert parse_clock("") is None
