"""The time of a best split of ten devices and 200 layers, and of ``dllm-tui plan``.

Every device, layer and link differs from all others, so that nothing can be counted
together. The command plans for 16 machines with 8 devices each, from a cold start. The
CPU time is that of the planning alone, for a MoE that must be spread over many of them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING

from backends.controller.best_plans import best_plan, told_of
from backends.controller.preparation import imagined_options
from backends.models.layers import read_model
from backends.planning.cluster_file import read_cluster
from backends.split.cost import workload
from backends.split.objectives import best_split
from backends.split.problem import SplitProblem, parse_pins
from backends.state import (
    Ask,
    GivenCluster,
    Layer,
    ModelInfo,
    Objective,
    ServerSettings,
)
from backends.units import MS_PER_S
from tests.kit.families import FAMILIES, write_header

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

GIB = 1 << 30
N_LAYERS = 200
DEVICES = 10
MACHINES, DEVICES_EACH = 16, 8
MOE = "Qwen3 Next 80B A3B"
INSTANCES = 10
RUNS = 5


def model_of(random: Random) -> ModelInfo:
    return ModelInfo(
        path="/deep.gguf",
        arch="llama",
        n_layer=N_LAYERS - 1,
        n_embd=8192,
        n_vocab=128_000,
        n_head=64,
        n_head_kv=8,
        n_ctx_train=131_072,
        layers=tuple(
            Layer(
                index=index,
                bytes=random.randint(300, 900) << 20,
                quants={"Q4_K": 1 << 20},
                kv_bytes_per_token=(per_token := random.choice([2048, 4096])),
                k_bytes_per_token=per_token // 2,
            )
            for index in range(N_LAYERS - 1)
        ),
        output_bytes=GIB,
        embedding_bytes=GIB,
    )


def cluster_text(
    random: Random,
    n_machines: int,
    n_devices: int,
    gpu_gib: tuple[int, int] = (10, 60),
) -> str:
    """The head's CPU, and accelerators that all differ; none holds all layers."""
    parts = ['head = "m0"']
    for machine in range(n_machines):
        parts += [f"[machines.m{machine}]", 'memory = "40 GiB"']
        parts.append(f'bandwidth = "{random.randint(15, 90)} GB/s"')
        if n_machines == DEVICES and not machine:
            continue
        for device in range(n_devices):
            parts += [
                f"[machines.m{machine}.devices.CUDA{device}]",
                f'memory = "{random.randint(*gpu_gib)} GiB"',
                f'bandwidth = "{random.randint(100, 1800)} GB/s"',
            ]
        if machine:
            parts += ["[[links]]", f'between = ["m0", "m{machine}"]']
            parts.append(f'rtt = "{random.uniform(0.1, 9):.3f} ms"')
            parts.append(f'rate = "{random.randint(50, 1200)} MB/s"')
    return "\n".join(parts)


def problems(objective: Objective, *, pinned: bool) -> Iterator[SplitProblem]:
    random = Random(26)
    for _ in range(INSTANCES):
        model = model_of(random)
        given = read_cluster(cluster_text(random, DEVICES, 1))
        ask = Ask(
            model=model.path,
            ctx_size=8192,
            server=ServerSettings(slots=4 if objective is Objective.THROUGHPUT else 1),
            objective=objective,
        )
        (option,) = imagined_options(given, ask, model)
        names = [share.device for share in option.plan.split.shares]
        assert len(names) == DEVICES, names
        pins = [f"output={names[3]}", f"{names[5]}>=4", f"{names[7]}<=9"]
        yield SplitProblem(
            model=model,
            plan=option.plan,
            devices=option.devices,
            speeds=option.speeds,
            pins=parse_pins(pins if pinned else ()),
            load=workload(option.plan, objective),
        )


async def optimiser() -> None:
    print(f"| {DEVICES} devices, {N_LAYERS} layers | pins | median, ms | largest, ms |")
    print("|---|---|---|---|")
    for objective in Objective:
        for pinned in (False, True):
            took_ms = []
            for problem in problems(objective, pinned=pinned):
                begin = time.perf_counter()
                found = await asyncio.to_thread(best_split, problem, objective)
                took_ms.append((time.perf_counter() - begin) * MS_PER_S)
                assert found.exact
            print(
                f"| {objective.value} | {'three' if pinned else 'none'} "
                f"| {median(took_ms):.0f} | {max(took_ms):.0f} |",
                flush=True,
            )


def spread() -> None:
    print()
    print("| spread over many | median, CPU s | largest, CPU s |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        moe = read_model(str(write_header(FAMILIES[MOE], Path(folder) / "moe.gguf")))
    text = cluster_text(Random(27), MACHINES, DEVICES_EACH, gpu_gib=(3, 5))
    for name, given in (
        ("a head", read_cluster(text)),
        ("every head", read_cluster(text.partition("\n")[2])),
    ):
        for objective in (Objective.DECODE, Objective.CONTEXT):
            took_s = [
                asyncio.run(_searched(given, moe, objective)) for _ in range(RUNS)
            ]
            for words, runs in zip(
                ("", " --explain"), zip(*took_s, strict=True), strict=True
            ):
                shown = f"plan --best {objective.value}{words}"
                print(f"| `{shown}`, {name} | {median(runs):.2f} | {max(runs):.2f} |")


async def _searched(
    given: GivenCluster, model: ModelInfo, objective: Objective
) -> tuple[float, float]:
    """CPU seconds of a best plan, and with all that it is compared with."""
    begin = time.process_time()
    ask = Ask(model=model.path, ctx_size=4096, objective=objective)
    options = imagined_options(given, ask, model)
    found = await best_plan(options, objective)
    took_s = time.process_time() - begin
    option = next(one for one in options if one.plan.head == found.plan.head)
    chosen = replace(option, plan=found.plan)
    await told_of(chosen, objective, found, explain=True)
    return took_s, time.process_time() - begin


def command(model: str) -> None:
    print()
    print(
        f"| `plan` for {MACHINES} × {DEVICES_EACH} devices | median, s | largest, s |"
    )
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.toml"
        random = Random(27)
        with_head = cluster_text(random, MACHINES, DEVICES_EACH)
        for name, text in (
            ("a head", with_head),
            ("every head", with_head.partition("\n")[2]),
        ):
            file.write_text(text)
            for words in ("--best", "--best context", "--best --explain"):
                took_s = [
                    _planned(model, file, words.split(), folder) for _ in range(RUNS)
                ]
                shown = f"plan {words}"
                print(
                    f"| `{shown}`, {name} | {median(took_s):.2f} | {max(took_s):.2f} |",
                    flush=True,
                )


def _planned(model: str, file: Path, words: Sequence[str], folder: str) -> float:
    """Seconds from the command to its end; it starts a controller, and ends it."""
    program = str(Path(sys.executable).with_name("dllm-tui"))
    argv = [program, "plan", model, "--cluster-file", str(file), *words]
    begin = time.perf_counter()
    done = subprocess.run(
        [*argv, "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": folder},
        check=False,
    )
    took_s = time.perf_counter() - begin
    assert done.returncode == 0, done.stderr
    return took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="for the command")
    parser.add_argument("--only", choices=["optimiser", "spread", "command"])
    options = parser.parse_args()
    if options.only in (None, "optimiser"):
        asyncio.run(optimiser())
    if options.only in (None, "spread"):
        spread()
    if options.only in (None, "command"):
        command(options.model)


if __name__ == "__main__":
    main()
