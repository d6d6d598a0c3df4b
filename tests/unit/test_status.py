"""The lines of ``status`` and of the end of ``up``: only what is so then."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from backends.client.client import ControllerClient
from backends.errors import ControllerError
from backends.split.layout import make_split, ranges
from backends.state import (
    Acceptance,
    ClusterSnapshot,
    ClusterState,
    DeviceMemory,
    DraftNow,
    EngineProgress,
    EngineStage,
    Failure,
    Fallback,
    Generation,
    Lab,
    LayerRange,
    Link,
    MeasuredSplit,
    Plan,
    Preview,
    ProcessCommand,
    ProcessRole,
    Speculation,
    Step,
    StepState,
    WorkerSpec,
)
from backends.state.snapshots import KeyCounts, RequestCounts
from tests.unit.state.scene import busy_scene
from tui.cli import engine, progress
from tui.cli import up as up_command
from tui.cli.engine import EnginePrinter
from tui.cli.plan import preview_json, preview_lines
from tui.cli.progress import ProgressLine, StepPrinter, progress_text, remaining_s
from tui.cli.status import measured_text, prompts_text, status_lines
from tui.cli.up import launched
from tui.model.quantities import pairs_text

AS_PLANNED = MeasuredSplit(layers=())
ELSEWHERE = MeasuredSplit(layers=(), mismatches=("layer 3 is on RPC1",))


@pytest.mark.parametrize(
    ("state", "measured", "said"),
    [
        ("serving", AS_PLANNED, "the measured split is the planned one"),
        ("failed", AS_PLANNED, "the measured split was the planned one"),
        ("serving", ELSEWHERE, "it is NOT as planned: layer 3 is on RPC1"),
        ("failed", ELSEWHERE, "it was NOT as planned: layer 3 is on RPC1"),
        ("loading", None, "the split is not measured yet"),
        ("failed", None, "the split was not measured"),
    ],
)
def test_a_split_that_served_is_told_of_as_past(
    state: str, measured: MeasuredSplit | None, said: str
) -> None:
    scene = replace(busy_scene(0), state=ClusterState(state), measured=measured)
    assert measured_text(scene) == said


def test_what_would_go_on_without_each_is_told() -> None:
    split = (LayerRange("ada/CPU", 0, 8), LayerRange("local/CUDA0", 9, 12))
    scene = busy_scene(0)
    assert scene.plan is not None
    ready = Fallback(lost="bob", split=split, ctx_size=scene.plan.ctx_size)
    shorter = replace(ready, lost="eve", ctx_size=256)
    none = Fallback(lost="ada", why="bob/CPU is too small. Free memory there.")
    told = status_lines(replace(scene, fallbacks=(ready, shorter, none)), 0.0)
    assert [line for line in told if line.startswith("if lost")] == [
        "if lost  bob              9 | 4 on ada/CPU, local/CUDA0",
        "if lost  eve              9 | 4 on ada/CPU, local/CUDA0, context 256",
        "if lost  ada              nothing goes on: bob/CPU is too small. "
        "Free memory there",
    ]


def test_requests_are_told_once_there_were_any() -> None:
    def said(counts: RequestCounts | None) -> list[str]:
        lines = status_lines(replace(busy_scene(0), requests=counts), 0.0)
        return [line for line in lines if line.startswith("requests")]

    assert said(None) == said(RequestCounts()) == []
    some = RequestCounts(waiting=2, passed=5, failed=1, replayed=1)
    figures = "2 waiting · 0 in flight · 5 answered · 1 failed · 1 asked again"
    assert said(some) == [f"requests {figures}"]
    assert said(replace(some, continued=3)) == [f"requests {figures} · 3 continued"]
    assert said(replace(some, refused=3)) == [f"requests {figures} · 3 refused"]
    keyed = replace(some, keys={"lab": KeyCounts(requests=1)})
    lines = status_lines(replace(busy_scene(0), requests=keyed), 0.0)
    assert "key      lab              1 request · 0 in flight" in lines


def test_the_memory_for_earlier_prompts() -> None:
    said = "llama-server keeps at most 2.0 GiB of earlier prompts on the head"
    assert prompts_text(("x", "--cache-ram", "2048")) == said
    assert prompts_text(("x", "-cram", "0")) == "llama-server keeps no earlier prompts"
    assert prompts_text(("x",)) == ""


def test_a_drain_is_told_and_how_to_end_it() -> None:
    lines = status_lines(replace(busy_scene(0), drained_since=10.0), 15.0)
    assert "drained  for 5 s: requests wait (dllm-tui resume)" in lines
    assert not [x for x in status_lines(busy_scene(0), 15.0) if "drained" in x]


def test_nothing_is_said_of_a_split_that_failed_unmeasured() -> None:
    """Nor of one that was measured before this controller began."""
    failed = replace(busy_scene(0), state=ClusterState.FAILED)
    served = replace(failed, measured=AS_PLANNED)
    splits = [
        [text for text in status_lines(snapshot, 0.0) if text.startswith("split")]
        for snapshot in (failed, served)
    ]
    assert splits == [[], ["split    the measured split was the planned one"]]


def test_a_silent_worker_has_a_line() -> None:
    links = (Link(worker="box", unanswered_ms=3400.0), Link(worker="mini"))
    lines = status_lines(replace(busy_scene(0), links=links), now=0.0)
    assert [x for x in lines if x.startswith("link")] == [
        f"link     {'box':24} silent 3 s"
    ]


def test_a_simulated_network_has_a_line_for_each_link() -> None:
    slow = Link(worker="worker1", lab=Lab(latency_ms=20, rate_mb_s=30))
    snapshot = replace(busy_scene(0), links=(slow, Link(worker="worker2")))
    lines = [x for x in status_lines(snapshot, now=0.0) if "simulated" in x]
    assert len(lines) == 1
    assert "worker1" in lines[0]
    assert "simulated: +20 ms, 30 MB/s (links reset)" in lines[0]


def test_each_link_says_how_it_is_met_and_what_crossed() -> None:
    paired = Link(
        worker="mini",
        mode="pair",
        way="tunnel",
        way_reason="cannot reach 10.0.0.7:4711: nobody answers",
        rtt_ms=1.2,
        why="mini has it on disk",
        bytes_up=1 << 30,
        bytes_down=3 << 20,
        wire_bytes_up=3 << 20,
        wire_bytes_down=3 << 20,
        weight_bytes_home=1 << 30,
        weight_bytes_sent=0,
        tensors_differ=12,
    )
    alone = Link(worker="box", why="it is bare")
    lines = status_lines(replace(busy_scene(0), links=(paired, alone)), 0.0)
    assert [x for x in lines if x.startswith("link")] == [
        f"link     {'mini':24} pair      tunnel, 1.20 ms (cannot reach 10.0.0.7:4711: "
        "nobody answers) · 1.0 GiB of weights home, 0 B sent (12 tensors differ) · "
        "crossed ↑ 3.0 MiB of 1.0 GiB ↓ 3.0 of 3.0 MiB · mini has it on disk",
        f"link     {'box':24} metered   it is bare",
    ]


def test_a_draft_has_a_line_with_its_acceptance() -> None:
    scene = busy_scene(0)
    method = Speculation(type="draft-simple", model="/m/small.gguf", device="local/CPU")
    assert scene.plan is not None
    drafted = replace(scene, plan=replace(scene.plan, speculation=method))

    def said(acceptance: Acceptance | None) -> list[str]:
        speed = replace(drafted.speed, acceptance=acceptance)
        lines = status_lines(replace(drafted, speed=speed), now=0.0)
        return [line for line in lines if line.startswith("draft")]

    assert said(None) == ["draft    small on CPU, 8 tokens"]
    some = Acceptance(drafted=120, accepted=90, passes=30)
    assert said(some) == [
        "draft    small on CPU, 8 tokens · 75 % of the draft accepted · 4.0 tok/pass"
    ]
    assert not [x for x in status_lines(scene, 0.0) if x.startswith("draft")]
    now = DraftNow(draft="none", why="no draft was faster")
    lines = status_lines(replace(drafted, draft_now=now), 0.0)
    at = next(i for i, text in enumerate(lines) if text.startswith("draft"))
    assert lines[at + 1] == "         auto: without a draft · no draft was faster"


def test_layers_held_in_part_have_a_line() -> None:
    parts = (LayerRange("worker1/CPU", 2, 2), LayerRange("worker1/CPU", 4, 6))
    measured = MeasuredSplit(layers=(), in_part=parts)
    lines = status_lines(replace(busy_scene(0), measured=measured), 0.0)
    at = next(i for i, text in enumerate(lines) if text.startswith("split"))
    assert lines[at + 1] == "         worker1/CPU holds 2, 4–6 in part"


@pytest.mark.parametrize(
    ("tokens_from", "counter"),
    [("wire", "the relay before the last layer"), ("server", "llama-server itself")],
)
def test_tokens_and_who_counted_them(tokens_from: str, counter: str) -> None:
    made = Generation(tokens=602, tokens_from=tokens_from)
    scene = replace(busy_scene(0), links=(Link(worker="w", generation=made),))
    assert f"tokens   602 generated, counted by {counter}" in status_lines(scene, 0.0)
    nothing = replace(busy_scene(0), links=(Link(worker="w"),))
    assert not any(t.startswith("tokens") for t in status_lines(nothing, 0.0))


MIB = 1 << 20
PAIRED = Link(
    worker="mini",
    mode="pair",
    bytes_up=100 * MIB,
    bytes_down=4 * MIB,
    wire_bytes_up=1 * MIB,
    wire_bytes_down=5 * MIB,
    weight_bytes_home=90 * MIB,
    weight_bytes_sent=0,
)


def test_links_without_a_pair_say_nothing() -> None:
    assert pairs_text(()) == pairs_text((Link(worker="box"),)) == ""


def test_pairs_are_added_up_and_others_left_out() -> None:
    one = "1 pair · 90.0 MiB of weights home, 0 B sent · crossed ↑ 1.0 of 100 MiB"
    assert pairs_text((Link(worker="box"), PAIRED)).startswith(one)
    two = replace(PAIRED, worker="nuc", weight_bytes_sent=3 * MIB, tensors_differ=2)
    assert pairs_text((PAIRED, two)) == (
        "2 pairs · 180 MiB of weights home, 3.0 MiB sent (2 tensors differ) · "
        "crossed ↑ 2.0 of 200 MiB ↓ 10.0 of 8.0 MiB"
    )


def test_what_one_cannot_tell_is_not_told_of_all() -> None:
    older = replace(PAIRED, weight_bytes_home=None, weight_bytes_sent=None)
    assert pairs_text((PAIRED, older)).startswith("2 pairs · crossed ↑ 2.0 of 200 MiB")


class Busy:
    def __init__(self, cluster: str) -> None:
        self._cluster = cluster

    async def snapshots(self, *, holder: str) -> AsyncGenerator[ClusterSnapshot, None]:
        yield replace(busy_scene(0), cluster=self._cluster)


@pytest.mark.parametrize(
    ("cluster", "command"),
    [("default", "dllm-tui down,"), ("two", "dllm-tui down --cluster two,")],
)
async def test_the_way_to_end_what_is_in_the_way_names_its_cluster(
    cluster: str, command: str
) -> None:
    client = cast("ControllerClient", Busy(cluster))
    plan = busy_scene(0).plan
    assert plan is not None
    with pytest.raises(ControllerError, match=command):
        async with launched(client, plan, keep=True):
            pytest.fail("it was not refused")


class Slow:
    """Checks a launch for 30 s, then serves within 4 s; ``now`` is its clock."""

    def __init__(self) -> None:
        self.now = 100.0

    async def snapshots(self, *, holder: str) -> AsyncGenerator[ClusterSnapshot, None]:
        idle = replace(busy_scene(0), state=ClusterState.IDLE)
        yield idle
        self.now += 4
        yield replace(idle, state=ClusterState.SERVING, generation=idle.generation + 1)

    async def launch(self, *_: object, **__: object) -> ClusterSnapshot:
        self.now += 30
        begun = busy_scene(0)
        return replace(begun, generation=begun.generation + 1)


async def test_a_launch_takes_from_where_the_controller_took_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Slow()
    monkeypatch.setattr(
        up_command, "time", SimpleNamespace(monotonic=lambda: client.now)
    )
    plan = busy_scene(0).plan
    assert plan is not None
    running = launched(cast("ControllerClient", client), plan, keep=True, measures=True)
    async with running as (_, _, launch_s):
        assert launch_s == 4


# --- Progress on the command line, of a build too ---


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(progress, "on_terminal", lambda: True)
    monkeypatch.setattr(progress, "redraw", lines.append)
    monkeypatch.setenv("COLUMNS", "100")
    return lines


@pytest.fixture
def clock() -> tuple[Callable[[], float], list[float]]:
    now = [1000.0]
    return lambda: now[0], now


@pytest.mark.parametrize(
    ("fraction", "elapsed_s", "left_s"),
    [
        (0.25, 10.0, 30.0),
        (0.75, 60.0, 20.0),
        (0.5, 0.5, None),
        (0.001, 60.0, None),
        (None, 60.0, None),
        (1.0, 60.0, None),
    ],
)
def test_what_is_left_follows_from_the_mean_rate(
    fraction: float | None, elapsed_s: float, left_s: float | None
) -> None:
    assert remaining_s(fraction, elapsed_s) == left_s


def test_a_line_tells_part_elapsed_and_left() -> None:
    text = progress_text("model loads", 0.25, 20.0, "1 of 4 GiB")
    assert " 25 %  20.0 s, ~1 m 00 s left  1 of 4 GiB" in text
    assert text.count("█") == 6
    told = progress_text("model loads", 0.25, 20.0, "4 MiB/s · 9.00 s left")
    assert told.count("left") == 1
    assert "left" not in progress_text("worker1 listens", None, 20.0)


def test_rate_and_rest_have_room_in_a_narrow_terminal() -> None:
    told = "43 % of 94.0 MiB · 12.1 MB/s · 5.20 s left"
    text = progress_text("m-Q4_0.gguf", 0.43, 4.0, told, columns=79)
    assert text.endswith(told)
    assert len(text) <= 79
    wide = progress_text("m-Q4_0.gguf", 0.43, 4.0, told, columns=100)
    assert 0 < wide.count("█") + wide.count("░") < 24


def test_the_clock_goes_on_without_news(
    drawn: list[str], clock: tuple[Callable[[], float], list[float]]
) -> None:
    read, now = clock
    line = ProgressLine(read)
    line.show("copying", 0.5, since=990.0)
    now[0] = 1010.0
    line.tick()
    line.clear()
    first, second, cleared = drawn
    assert "10.0 s, ~10.0 s left" in first
    assert "20.0 s, ~20.0 s left" in second
    assert cleared == ""


def test_no_line_is_longer_than_the_terminal(
    drawn: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    ProgressLine().show("copying", 0.5, "x" * 200 + "\nmore")
    assert len(drawn[0]) == 59
    assert "\n" not in drawn[0]


def test_steps_are_timed_from_their_own_beginning(
    drawn: list[str], clock: tuple[Callable[[], float], list[float]]
) -> None:
    printer = StepPrinter(clock[0])
    loading = Step(
        id="load",
        title="model loads",
        state=StepState.RUNNING,
        started_at=940.0,
        progress=0.5,
    )
    printer.show(ClusterSnapshot(steps=(loading,)))
    assert "1 m 00 s, ~1 m 00 s left" in drawn[-1]


def test_elsewhere_each_thing_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine()
    for percent in range(100):
        line.show("copying", percent / 100)
        line.tick()
    line.clear()
    assert capsys.readouterr().err == "copying\n"


STORY = (
    (0, EngineStage.WAIT, None, "Another build is under way"),
    (5, EngineStage.FETCH, 1.0, ""),
    (9, EngineStage.CONFIGURE, None, ""),
    (20, EngineStage.COMPILE, 0.05, ""),
    (60, EngineStage.COMPILE, 0.25, ""),
    (61, EngineStage.COMPILE, 0.29, ""),
)


@pytest.mark.parametrize("terminal", [True, False])
def test_each_stage_has_a_clock_and_compiling_few_lines(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now, drawn = [0.0], list[str]()
    for module in (engine, progress):
        monkeypatch.setattr(module, "on_terminal", lambda: terminal)
    monkeypatch.setattr(progress, "redraw", drawn.append)
    monkeypatch.setenv("COLUMNS", "100")
    printer = EnginePrinter()
    printer.line = ProgressLine(lambda: now[0])
    for at, stage, fraction, text in STORY:
        now[0] = at
        printer.show(EngineProgress(stage=stage, fraction=fraction, text=text))
    said = capsys.readouterr().err.splitlines()
    assert printer.did == "built"
    if terminal:
        assert said == ["Another build is under way"]
        assert "25 %  40.0 s, ~2 m 00 s left" in drawn[-2]
        assert "Configuring" in drawn[1]
    else:
        assert drawn == []
        assert said == [
            *("Another build is under way", "Fetching the source", "Configuring"),
            *("Compiling", "Compiling 20 %"),
        ]


# --- What a dry run prints ---

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
        ProcessCommand(
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
