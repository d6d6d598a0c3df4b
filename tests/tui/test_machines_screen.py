"""Machines and processes: their figures in words, their curves, and what keys do."""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec.structs import replace

from backends.machine_names import LOCAL
from backends.redaction import LEFT_OUT, shown_argv
from backends.state import (
    Event,
    EventKind,
    GpuUsage,
    MachineHistory,
    MachineUsage,
    ProcessInfo,
    ProcessRole,
    ProcessState,
    UsageReport,
    UsageSample,
)
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import screen_text, until
from tests.tui.pictures import Snap, seen
from tests.tui.scripted import ScriptedCluster
from tui.dialogs.dialog import ChoiceDialog
from tui.model.process_words import (
    command_text,
    events_of,
    gpu_text,
    history,
    memory_used_text,
    traffic_text,
)
from tui.screens.machines.screen import MachinesScreen
from tui.screens.machines.table import COLUMNS, ProcessDialog, arrange_processes
from tui.screens.machines.usage import curves_of
from tui.widgets.table import SortOrder, fitting_columns, rest_cells

GIB = 1 << 30
H100 = GpuUsage(
    vendor="nvidia",
    name="NVIDIA H100",
    device="CUDA0",
    load_percent=93,
    used_bytes=41 * GIB,
    total_bytes=80 * GIB,
    celsius=64,
    power_mw=312_000,
    power_limit_mw=700_000,
    clock_mhz=1980,
)
USAGE = MachineUsage(
    cores_permille=(1000, 500, 20, 0, 950, 300, 0, 40),
    memory_total_bytes=55 * GIB,
    memory_available_bytes=45 * GIB,
    swap_total_bytes=2 * GIB,
    received_bytes_per_s=1_200_000,
    sent_bytes_per_s=310_000,
    read_bytes_per_s=0,
    written_bytes_per_s=4_200_000,
    gpus=(H100,),
)
SAMPLES = tuple(
    UsageSample(
        at=int(scenes.NOW) - 300 + second,
        cpu=(second % 60) / 60,
        memory=0.18,
        gpus=(0.93 if second % 100 > 40 else 0.02,),
        link_bytes_per_s=2e6 if second > 200 else 0.0,
        tok_per_s=21.3 if second > 200 else 0.0,
    )
    for second in range(300)
    if not 120 <= second < 140
)


def process(name: str, role: ProcessRole, **changes: object) -> ProcessInfo:
    usual = ProcessInfo(
        name=name,
        role=role,
        state=ProcessState.RUNNING,
        pid=4711,
        port=50052,
        started_at=scenes.NOW - 90,
        rss_bytes=GIB,
        cpu_cores=1.5,
        argv=("/bin/llama-server", "--api-key", "abc"),
        log_path="/run/log",
    )
    return replace(usual, **changes)


SERVER = process("llama-server", ProcessRole.SERVER)
WORKER = process("worker1", ProcessRole.WORKER, peer="mini", restarts=2, cpu_cores=0.2)
DEAD = process(
    "worker2", ProcessRole.WORKER, state=ProcessState.EXITED, exit_signal=9, pid=7
)
CONTROLLER = process("controller", ProcessRole.CONTROLLER, port=None)
REPORT = UsageReport(
    machines=(
        MachineHistory(machine=LOCAL, now=USAGE, samples=SAMPLES),
        MachineHistory(machine="mini", why="The helper on mini is too old for that"),
    ),
    processes=(CONTROLLER, DEAD, WORKER, SERVER),
)


def test_figures_in_words() -> None:
    assert gpu_text(H100) == "93 % · 41/80 GiB · 64 °C · 312/700 W · 1.98 GHz"
    assert gpu_text(GpuUsage(celsius=48)) == "48 °C"
    assert traffic_text(USAGE) == "net ↓1.20 ↑0.31 MB/s · disk ↓0.00 ↑4.20 MB/s"
    assert traffic_text(replace(USAGE, read_bytes_per_s=None)).startswith("net")
    assert memory_used_text(USAGE) == "10/55 GiB"
    swapped = replace(USAGE, swap_used_bytes=GIB)
    assert memory_used_text(swapped) == "10/55 GiB, 1.0 GiB swapped"


def test_a_column_is_the_mean_of_a_stretch_and_stays_as_time_goes_on() -> None:
    samples = [UsageSample(at=at, cpu=float(at)) for at in range(99, 159)]
    columns = history(samples, lambda s: s.cpu, 60, 20)
    assert columns[-1] == 157.0
    assert len(columns) == 20
    later = [*samples, UsageSample(at=159, cpu=0.0), UsageSample(at=160, cpu=0.0)]
    assert history(later, lambda s: s.cpu, 60, 20)[:-1] == columns[1:]
    gap = [one for one in samples if not 120 <= one.at < 126]
    assert history(gap, lambda s: s.cpu, 60, 20).count(None) == 2
    assert history([], lambda s: s.cpu, 60, 20) == []


def test_only_what_is_known_has_a_curve() -> None:
    here, mini = REPORT.machines
    assert [(c.label, c.scale) for c in curves_of(here, 300)] == [
        ("cpu", "100 %"),
        ("memory", "100 %"),
        ("CUDA0", "100 %"),
        ("link", "5 MB/s"),
        ("tokens", "30 tok/s"),
    ]
    # The top is that of the time shown.
    assert [c.scale for c in curves_of(here, 60)][3:] == ["5 MB/s", "30 tok/s"]
    assert not [*curves_of(mini, 60)]


def test_processes_in_the_order_of_a_column() -> None:
    def names(column: str, *, reverse: bool = False, query: str = "") -> list[str]:
        order = SortOrder(column, reverse)
        return [one.name for one in arrange_processes(REPORT.processes, query, order)]

    usual = ["llama-server", "worker2", "controller", "worker1"]
    assert names("process") == usual
    assert names("process", reverse=True) == usual[::-1]
    assert names("restarts")[0] == "worker1"
    assert names("cpu", reverse=True)[0] == "worker1"
    assert names("process", query="mini run") == ["worker1"]


def test_keys_and_prompts_of_a_command_line_are_hidden() -> None:
    told = shown_argv(["server", "--api-key", "abc", "--hf-token=x", "-c", "4"])
    assert told == [
        "server",
        "--api-key",
        LEFT_OUT,
        f"--hf-token={LEFT_OUT}",
        "-c",
        "4",
    ]
    # The same short flag names a port of rpc-server.
    told = shown_argv(["-p", "50052", "-p", "Why?"])
    assert told == ["-p", "50052", "-p", LEFT_OUT]
    plain = ["--image-max-tokens", "9", "--cache-prompt", "-np", "2"]
    assert shown_argv(plain) == plain
    assert shown_argv(["--cors-headers", "X-Mine"])[-1] == LEFT_OUT
    (url,) = shown_argv(["https://ada:secretpw@h/x.gguf"])
    assert "secretpw" not in url
    long = ["--" + "key" * 300_000 + " ", "x"]
    assert shown_argv(long) == long, "and that in no time"


def test_wide_terminals_show_command_lines_and_no_wider_names() -> None:
    def shown(width: int) -> dict[str, int]:
        return rest_cells(fitting_columns(COLUMNS, (), width), width, 15)

    assert [*shown(120)] == ["process"]
    for width in (140, 200, 400):
        cells = shown(width)
        fixed = [column for column in COLUMNS if column.width]
        taken = sum(one.width for one in fixed) + 2 * len(COLUMNS)
        assert cells["process"] <= 40
        assert cells["command"] > cells["process"]
        assert taken + cells["process"] + cells["command"] == width
    argv = ("/opt/engines/8.0.0/llama-server", "-m", "a b.gguf", "--api-key", "x")
    told = command_text(replace(WORKER, argv=argv))
    assert told == f"llama-server -m 'a b.gguf' --api-key '{LEFT_OUT}'"


def test_events_are_those_that_name_the_process() -> None:
    def event(number: int, text: str, process: str = "") -> Event:
        at = datetime.fromtimestamp(scenes.NOW, UTC)
        return Event(
            number=number, at=at, kind=EventKind.DIED, text=text, process=process
        )

    events = [
        event(1, "it died", "worker1"),
        event(2, "worker1: it is silent"),
        event(3, "relay-worker1 died", "relay-worker1"),
    ]
    assert [one.number for one in events_of(WORKER, events)] == [1, 2]


async def test_keys_describe_restart_and_kill_what_is_pointed_at(
    started: Started, snap_compare: Snap
) -> None:
    scripted = ScriptedCluster(scenes.homelab_serving())
    scripted.reports = [REPORT]
    async with started(scripted) as (pilot, app, _):
        await pilot.press("7")
        await until(pilot, lambda: "controller" in screen_text(app))
        await seen(snap_compare, pilot)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ProcessDialog))
        assert LEFT_OUT in screen_text(app)
        assert app.screen.query_one(".dialog").size.width > 100
        assert "layer   9" in screen_text(app)
        await pilot.press("escape", "K")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        # The first answer is to do nothing.
        await pilot.press("enter")
        assert not scripted.called("kill_process")
        await pilot.press("K", "y")
        await until(pilot, lambda: scripted.called("kill_process"))
        assert scripted.called("kill_process") == [("llama-server", LOCAL, 4711)]
        await pilot.press("G", "r", "y")
        await until(pilot, lambda: scripted.called("restart_process"))
        assert scripted.called("restart_process") == [("worker1", "mini")]
        # What is not ended alone is refused without a question.
        await pilot.press("k", "K")
        await until(pilot, lambda: len(scripted.called("kill_process")) == 2)
        assert scripted.called("kill_process")[1] == ("controller", LOCAL, 4711)
        assert isinstance(app.screen, MachinesScreen)
        # Behind another screen nobody asks.
        await pilot.press("5")
        await until(pilot, lambda: app.current_mode == "logs")
        followed = [w for w in app.workers if w.group == "usage" and w.is_running]
        assert not followed
