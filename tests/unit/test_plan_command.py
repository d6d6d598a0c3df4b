"""The speed that ``plan`` tells, its aims, and cluster files on the command line."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner

from backends.errors import UsageError
from backends.planning.cluster_file import read_cluster
from backends.split.layout import make_split
from backends.state import (
    Alternative,
    Ask,
    ClusterSpeeds,
    DeviceMemory,
    DeviceSpeed,
    Forecast,
    LayerRange,
    Plan,
    ProcessCommand,
    ProcessRole,
    Share,
    SpeedSource,
    Split,
    WorkerSpec,
)
from tests.unit.test_status import PREVIEW
from tui.cli.main import cli
from tui.cli.plan import plan, preview_json, preview_lines

FORECAST = Forecast(
    tok_per_s=20.6,
    low=19.4,
    high=21.8,
    first_token_s=0.9,
    first_token_low_s=0.8,
    first_token_high_s=1.0,
    bytes_per_token=10_400,
    trips_per_token=1.0,
    pass_ms=48.5,
    source=SpeedSource.MEASURED,
    depth=512,
    prompt_tokens=512,
)


def test_the_speed_is_told_with_its_band_and_its_source() -> None:
    solo = Alternative(
        name="solo on studio/MTL0",
        devices=("studio/MTL0", "mini/MTL0"),
        counts=(48, 0),
        forecast=FORECAST,
    )
    small = Alternative(name="solo on mini/MTL0", why="does not fit: it needs 17 GiB")
    preview = msgspec.structs.replace(
        PREVIEW,
        forecast=FORECAST,
        why="Because.",
        alternatives=(solo, small),
        speeds=ClusterSpeeds(
            head=DeviceSpeed(device="head", ms=(), covariance=()), residual=-0.04
        ),
    )
    text = "\n".join(preview_lines(preview))
    assert "Predicted: ~20.6 tok/s (19.4 to 21.8) at depth 512, first token " in text
    assert " ~0.90 s (0.80 s to 1.00 s) " in text
    assert "after 512 tokens, " in text
    assert "1 trip a token; from measured runs." in text
    assert "Because." in text
    assert "The model's last run took −4 % a pass against" in text
    assert preview_json(preview)["residual"] == -0.04
    assert "studio/MTL0 48" in text
    assert "does not fit: it needs 17 GiB" in text


@pytest.mark.parametrize(
    ("worker", "asked", "is_told"),
    [
        (WorkerSpec(name="mini", peer="mini", devices=("MTL0",)), {}, True),
        (WorkerSpec(name="mini", place="mini", devices=("MTL0",)), {}, True),
        (
            WorkerSpec(name="mini", place="mini", devices=("MTL0",)),
            {"worker_threads": 3},
            False,
        ),
    ],
)
def test_only_what_peers_measure_measures_is_said_to_be(
    worker: WorkerSpec, asked: dict[str, int], is_told: bool
) -> None:
    split = make_split(12, ["local/CPU", "mini/MTL0"], [0, 13])
    ask = Ask(model="/m", **asked)  # type: ignore[arg-type]
    plan = Plan(model="/m", split=split, workers=(worker,), asked=ask)
    unknown = DeviceSpeed(device="mini/MTL0", ms=(), covariance=())
    speeds = ClusterSpeeds(head=unknown, devices=(unknown,))
    preview = msgspec.structs.replace(
        PREVIEW, plan=plan, memory=PREVIEW.memory[:2], forecast=FORECAST, speeds=speeds
    )
    lines = "\n".join(preview_lines(preview))
    assert ("dllm-tui peers measure tells" in lines) is is_told


def test_what_says_the_same_is_one_row() -> None:
    """Of sixteen machines with eight devices each most have nothing to do."""
    names = tuple(f"m{number}/CUDA0" for number in range(60))
    counts = (9, 8, *[0] * 58)
    held = [Share(device=name, layers=n) for name, n in zip(names, counts, strict=True)]
    plan = msgspec.structs.replace(
        PREVIEW.plan, split=Split(n_layer=16, shares=tuple(held))
    )
    memory = [
        DeviceMemory(device=name, model_bytes=n)
        for name, n in zip(names, counts, strict=True)
    ]
    own = Alternative(
        name="whole layers, most tok/s",
        devices=names,
        counts=counts,
        head=plan.head,
        ctx_size=plan.ctx_size,
        forecast=FORECAST,
    )
    twin = msgspec.structs.replace(own, name="twin", counts=(8, 9, *[0] * 58))
    slower = msgspec.structs.replace(FORECAST, tok_per_s=9.0)
    other = msgspec.structs.replace(twin, name="other", forecast=slower)
    imagined = msgspec.structs.replace(twin, name="imagined", imagined=True)
    small = [
        Alternative(name=f"solo on {name}", why=f"does not fit: it needs {n} GiB")
        for n, name in enumerate(names)
    ]
    preview = msgspec.structs.replace(
        PREVIEW,
        plan=plan,
        memory=tuple(memory),
        forecast=FORECAST,
        alternatives=(own, twin, other, imagined, *small),
    )
    lines = list(preview_lines(preview))
    assert "58 more devices of the plan hold nothing." in lines
    assert not any(line.startswith("m7/CUDA0") for line in lines)
    (at,) = (at for at, line in enumerate(lines) if line.startswith("PLAN "))
    rows = [line.split("  ")[0] for line in lines[at + 1 : at + 4]]
    assert rows == ["other", "imagined", "solo on 60 devices"]
    assert lines[at + 3].endswith("does not fit")


def test_a_part_of_a_trip_is_told() -> None:
    shared = msgspec.structs.replace(FORECAST, trips_per_token=0.38)
    preview = msgspec.structs.replace(PREVIEW, forecast=shared)
    assert " and 0.4 trips a token; " in "\n".join(preview_lines(preview))


def test_the_speed_without_the_draft_stands_beside_it() -> None:
    slower = msgspec.structs.replace(FORECAST, tok_per_s=9.1, low=8.0, high=10.0)
    preview = msgspec.structs.replace(PREVIEW, forecast=FORECAST, undrafted=slower)
    lines = list(preview_lines(preview))
    at = lines.index("Without the draft: ~9.1 tok/s (8.0 to 10.0).")
    assert lines[at - 1].startswith("Predicted: ~20.6 tok/s (19.4 to 21.8) at depth")
    assert preview_json(preview)["tok_per_s_without_draft"] == 9.1
    alone = msgspec.structs.replace(preview, undrafted=None)
    assert preview_json(alone)["tok_per_s_without_draft"] is None
    assert "draft" not in "\n".join(preview_lines(alone))


def test_experts_elsewhere_are_told() -> None:
    moved = (LayerRange("local/CPU", 2, 5),)
    plan = msgspec.structs.replace(PREVIEW.plan, experts=moved)
    preview = msgspec.structs.replace(PREVIEW, plan=plan)
    assert "experts of 2–5 on local/CPU" in list(preview_lines(preview))
    told = preview_json(preview)["plan"]["experts"]
    assert list(map(list, told)) == [["local/CPU", 2, 5]]


def test_the_json_has_the_speed_and_the_flags_at_hand() -> None:
    server = ProcessCommand(
        machine="local",
        name="llama-server",
        role=ProcessRole.SERVER,
        argv=("llama-server", "-ngl", "13"),
    )
    value = preview_json(
        msgspec.structs.replace(PREVIEW, forecast=FORECAST, commands=(server,))
    )
    assert value["flags"] == ["llama-server", "-ngl", "13"]
    assert value["band"] == [19.4, 21.8]
    assert value["tok_per_s"] == 20.6
    assert value["first_token_s"] == 0.9
    assert value["first_token_band"] == [0.8, 1.0]
    assert value["depth"] == 512
    assert value["first_token_prompt_tokens"] == 512
    assert value["bytes_per_token"] == 10_400
    assert value["trips_per_token"] == 1.0
    assert value["layers"] == value["plan"]["layers"]
    unknown = preview_json(PREVIEW)
    assert unknown["band"] is unknown["tok_per_s"] is None


@pytest.mark.parametrize(
    ("args", "aim"),
    [
        (("m.gguf", "--best"), "decode"),
        (("--best", "m.gguf"), "decode"),
        (("--best", "context", "m.gguf"), "context"),
        (("m.gguf", "--best", "--peer", "mini"), "decode"),
        (("m.gguf", "--objective", "first-token"), "first-token"),
        (("m.gguf", "--best=throughput"), "throughput"),
        (("m.gguf",), None),
    ],
)
def test_an_aim_need_not_be_named(args: tuple[str, ...], aim: str | None) -> None:
    context = click.Context(plan)
    with context.scope():
        plan.parse_args(context, list(args))
    assert context.params["objective"] == aim
    assert context.params["path"] == "m.gguf"


def test_a_cluster_file_takes_no_workers_of_this_machine() -> None:
    words = ["plan", "m.gguf", "--cluster-file", "c.toml", "--workers", "2"]
    result = CliRunner().invoke(cli, words)
    assert "--workers has no effect" in result.output


@pytest.mark.parametrize(
    "content",
    [None, b"\xff\xfe", b"#" * (1 << 21), b"a = 1"],
    ids=["none", "no text", "large", "no cluster"],
)
def test_a_cluster_file_that_cannot_be_read_is_one_sentence(
    content: bytes | None, tmp_path: Path
) -> None:
    file = tmp_path / "c.toml"
    if content is not None:
        file.write_bytes(content)
    result = CliRunner().invoke(cli, ["plan", "m.gguf", "--cluster-file", str(file)])
    assert isinstance(result.exception, UsageError)
    assert str(file) in str(result.exception)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "Cannot read a file without a name"),
        ("/", "Cannot read / (Is a directory)"),
    ],
)
def test_what_is_no_cluster_file_is_one_sentence(path: str, says: str) -> None:
    result = CliRunner().invoke(cli, ["plan", "m.gguf", "--cluster-file", path])
    assert isinstance(result.exception, UsageError)
    assert says in str(result.exception)


def test_the_example_can_be_had_without_a_model() -> None:
    result = CliRunner().invoke(cli, ["plan", "--example"])
    assert result.exit_code == 0
    assert read_cluster(result.output).head == "studio"
