"""What the Logs screen looks like."""

from __future__ import annotations

from typing import Any

import msgspec
from textual.pilot import Pilot

from backends.state import ClusterSnapshot, ProcessState
from tests.tui import scenes
from tests.tui.helpers import screen_text, settled, until
from tests.tui.looks import Look, Size, at_both_sizes
from tests.tui.scripted import ScriptedCluster

HEAD = """\
0.00.000.112 I build: 6400 (f0c1d) with cc 13.3.0 for x86_64-linux-gnu
0.00.001.204 I system info: n_threads = 8, n_threads_batch = 8, total_threads = 16
0.00.120.450 I srv    load_model: loading model '/models/GLM-4.7-Flash-Q4_K_M.gguf'
0.00.180.911 D ggml_backend_rpc_init: endpoint 127.0.0.1:50052
0.00.204.070 W llama_context: n_ctx_seq (8192) < n_ctx_train (202752) -- the full \
capacity of the model will not be utilized
"""
TAIL = """\
0.41.020.338 I srv  update_slots: all slots are idle
0.52.204.118 E ggml_backend_rpc: \x1b[31msend failed\x1b[0m to 127.0.0.1:50052
0.52.204.190 W srv  log_server_r: request: POST /v1/chat/completions 127.0.0.1 500
0.53.000.004 I slot launch_slot_: id  0 | task 12 | processing task
"""


def log() -> str:
    """A log of llama-server with a bit of everything."""
    layers = "".join(
        f"0.{2 + n // 3:02d}.{n * 7:03d}.000 I load_tensors: layer {n:3d} assigned to "
        f"device RPC{n // 16}, is_swa = 0\n"
        for n in range(48)
    )
    return HEAD + layers + TAIL


def cluster() -> ScriptedCluster:
    """The homelab, one worker of which was killed."""
    serving = scenes.homelab_serving()
    first, second, *others = serving.processes
    killed = msgspec.structs.replace(second, state=ProcessState.EXITED, exit_signal=9)
    first = msgspec.structs.replace(
        first, log_path="/home/me/.local/state/dllm-tui/run/llama-server/log"
    )
    scripted = ScriptedCluster(
        msgspec.structs.replace(serving, processes=(first, killed, *others))
    )
    scripted.logs = {info.name: log() for info in serving.processes}
    return scripted


def logs(*keys: str, until_shown: str = "processing task") -> Any:
    """Go to the Logs screen and press keys there."""

    async def run(pilot: Pilot[None]) -> None:
        await settled(pilot)
        await pilot.press("f5")
        await until(
            pilot,
            lambda: (
                "52 lines" in screen_text(pilot.app)
                or "57 lines" in screen_text(pilot.app)
            ),
        )
        await pilot.press(*keys)
        await until(pilot, lambda: until_shown in screen_text(pilot.app))

    return run


@at_both_sizes
def test_following(look: Look, size: Size) -> None:
    look(cluster(), size, logs(until_shown="slot"))


def test_wrapped_and_looking_back(look: Look) -> None:
    look(cluster(), run=logs("w", "home", until_shown="paused"))


def test_filtered(look: Look) -> None:
    keys = ("slash", "slash", *"RPC[12]", "enter")
    look(cluster(), run=logs(*keys, until_shown=" of 57 lines"))


def test_warnings_and_errors(look: Look) -> None:
    look(cluster(), run=logs("v", "v", until_shown="3 of 57 lines"))


def test_a_broken_pattern(look: Look) -> None:
    keys = ("slash", "slash", "left_square_bracket")
    look(cluster(), run=logs(*keys, until_shown="Not a pattern"))


def test_no_process_yet(look: Look) -> None:
    async def run(pilot: Pilot[None]) -> None:
        await pilot.press("f5")
        await until(pilot, lambda: "No process has run" in screen_text(pilot.app))

    look(ClusterSnapshot(), run=run)
