"""What a dry run prints."""

from __future__ import annotations

from backends.split.layout import make_split, ranges
from backends.state import (
    Command,
    DeviceMemory,
    Failure,
    Plan,
    Preview,
    ProcessRole,
    WorkerSpec,
)
from tui.cli.up import preview_json, preview_lines

SPLIT = make_split(12, ["local/CPU", "mini/MTL0", "local/CUDA0"], [0, 3, 10])
PREVIEW = Preview(
    plan=Plan(
        model="/m/a model.gguf",
        split=SPLIT,
        workers=(WorkerSpec(name="mini", peer="mini", devices=("MTL0",)),),
    ),
    layers=ranges(SPLIT),
    memory=tuple(
        DeviceMemory(device=share.device, model_bytes=share.layers << 30)
        for share in SPLIT.shares
    ),
    available_bytes={"local/CUDA0": 24 << 30},
    commands=(
        Command(
            machine="mini",
            name="mini",
            role=ProcessRole.WORKER,
            argv=("/x/rpc-server", "-p", "<port>", "-d", "MTL0", "a b"),
        ),
    ),
    notes=("It is slow.",),
    refusal=Failure(what="mini/MTL0 is too small", hint="Give it less."),
)


def test_devices_are_printed_in_the_order_in_which_a_split_counts_them() -> None:
    lines = [*preview_lines(PREVIEW)]
    rows = [line.split() for line in lines if "/" in line and "GiB" in line]
    assert [row[0] for row in rows[-2:]] == ["mini/MTL0", "local/CUDA0"]
    assert rows[-1][1:] == [
        *("10", "3–11", "+", "output", "~10.0", "GiB", "24.0", "GiB", "predicted")
    ]
    assert "?" in rows[-2], "nothing is known of its memory"


def test_notes_refusal_and_commands_are_told() -> None:
    text = "\n".join(preview_lines(PREVIEW))
    assert "It is slow." in text
    assert "It would be refused: mini/MTL0 is too small" in text
    assert "mini on mini:\n  /x/rpc-server -p <port> -d MTL0 'a b'" in text


def test_the_json_has_the_plans_layers_in_the_plan() -> None:
    value = preview_json(PREVIEW)
    layers = [list(part) for part in value["plan"]["layers"]]
    assert layers == [["mini/MTL0", 0, 2], ["local/CUDA0", 3, 12]]
    assert [m["device"] for m in value["memory"]] == [s.device for s in SPLIT.shares]
    assert value["commands"][0]["argv"][0] == "/x/rpc-server"
