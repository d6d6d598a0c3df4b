"""The matrix of a benchmark, its statistics, files and tables."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import psutil
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from backends.bench.chart import Chart, chart_svg
from backends.bench.matrix import CACHED, HOME, STOCK, Case, by_launch, combined
from backends.bench.published import (
    TOK_PER_S,
    latency_table,
    loads_table,
    published_table,
    seeds_cases,
    seeds_tables,
)
from backends.bench.results import (
    BenchRun,
    BusyTime,
    CaseResult,
    Conditions,
    Interval,
    Measurement,
    as_csv,
    as_markdown,
    chart_of,
    comparison_tables,
    conditions_text,
    load,
    save,
    table,
    unlike,
)
from backends.client.client import ControllerClient
from backends.errors import DllmError, ProcessFailed, UsageError
from backends.paths import user_paths
from backends.state import Ask, Failure, PairMode
from tests.kit.waiting import wait_until
from tui.cli.bench import BenchRunner
from tui.cli.main import cli

CONDITIONS = Conditions(
    at=1.0, program="1.0", machine="m", cores=2, memory_bytes=1, model="/m/x.gguf"
)


def measured(rates: Mapping[Case, tuple[float, ...]]) -> BenchRun:
    return BenchRun(
        conditions=CONDITIONS,
        base=Ask(model="/m/x.gguf"),
        prompt="p",
        tokens=8,
        rounds=2,
        results=tuple(
            CaseResult(
                case=case,
                samples=tuple(
                    Measurement(round=n, tok_per_s=rate, other_cores=0.0)
                    for n, rate in enumerate(values, 1)
                ),
            )
            for case, values in rates.items()
        ),
    )


NEAR, FAR = Case(workers=2), Case(workers=2, latency_ms=10)
RUN = measured({NEAR: (40.0, 44.0), FAR: (16.0, 17.0)})


def test_a_matrix_has_each_combination_once_and_few_launches() -> None:
    axes = {"workers": (1, 2, 2), "latency_ms": (0, 5, 10), "rate_mb_s": (0, 30)}
    cases = combined(axes | {"slots": ()})
    assert len(cases) == len(set(cases)) == 12
    launches = list(by_launch(cases))
    assert [launch.workers for launch, _ in launches] == [1, 2]
    assert all(len(of_one) == 6 and launch.lab is None for launch, of_one in launches)


def test_a_case_becomes_a_request() -> None:
    base = Ask(model="/m", peers=("mini",))
    ask = Case(split="6,7", slots=2, relay="pair").ask(base)
    assert (ask.counts, ask.split, ask.server.slots) == ((6, 7), None, 2)
    assert (ask.relay, ask.pair, ask.peers) == (True, PairMode.ALWAYS, ("mini",))
    assert "--ignore-eos" in ask.extra_args
    assert "-sm" not in ask.extra_args
    assert Case(split_mode="tensor").ask(base).extra_args[-2:] == ("-sm", "tensor")
    ask = Case(split="a/CPU=6,b/CPU=7", relay="off").ask(base)
    assert (ask.split, ask.relay) == ({"a/CPU": 6, "b/CPU": 7}, False)


def test_a_way_of_weights_has_its_relays_and_its_network_from_the_launch_on() -> None:
    ways = [Case(weights=way, rate_mb_s=20) for way in (STOCK, CACHED, HOME)]
    asks = [case.ask(Ask(model="/m"), "/cache") for case in ways]
    assert [(ask.pair, ask.worker_cache) for ask in asks] == [
        (PairMode.NEVER, ""),
        (PairMode.NEVER, "/cache"),
        (PairMode.ALWAYS, ""),
    ]
    assert [launch.lab for launch, _ in by_launch(ways)] == [one.lab for one in ways]


def test_a_run_knows_what_it_lacks(tmp_path: Path) -> None:
    run = measured({NEAR: (40.0, 44.0), FAR: (16.0,)})
    assert run.missing == 1
    assert [n for n in run.all_rounds if run.lacks(n, FAR)] == [2]
    save(run, tmp_path / "r.json")
    whole = load(tmp_path / "r.json").with_sample(
        FAR, Measurement(round=2, tok_per_s=17)
    )
    assert not whole.missing
    assert whole.of(FAR).rates == (16.0, 17.0)
    # A case that cannot run is not tried again.
    assert not run.with_failure(FAR, "no room").missing


def test_what_failed_is_tried_again_by_another_command() -> None:
    run = measured({NEAR: (40.0, 44.0), FAR: ()}).with_failure(FAR, "away")
    assert not run.missing
    again = run.retried()
    assert [n for n in again.all_rounds if again.lacks(n, FAR)] == [1, 2]
    assert again.of(NEAR) == run.of(NEAR)


def test_other_conditions_are_told() -> None:
    later = replace(CONDITIONS, at=9.0, model="/n/x.gguf")
    assert unlike(RUN, replace(RUN, conditions=later)) == []
    other = replace(CONDITIONS, model="/m/y.gguf", model_bytes=5)
    assert unlike(RUN, replace(RUN, tokens=9, conditions=other)) == [
        *("model x.gguf before, y.gguf now", "tokens 8 before, 9 now"),
        "model bytes 0 before, 5 now",
    ]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"format": 9}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(UsageError, match=r"r\.json"):
        load(tmp_path / "r.json")
    with pytest.raises(UsageError, match="Cannot read"):
        load(tmp_path / "none.json")
    with pytest.raises(DllmError, match="Cannot write"):
        save(RUN, Path("/proc/r.json"))


def test_the_table_shows_what_varies_and_what_was_measured() -> None:
    assert table(RUN) == [
        ["latency", "tok/s", "launch s"],
        ["0 ms", "42.0 ± 25.4", "0.00"],
        ["10 ms", "16.5 ± 6.36", "0.00"],
    ]
    disturbed = RUN.with_sample(FAR, Measurement(round=3, tok_per_s=9, other_cores=0.9))
    assert table(disturbed)[0][-1] == "disturbed"
    assert table(disturbed)[2][-1] == "1 of 3"
    assert table(RUN.with_failure(FAR, "x"))[2][1] == "16.5 ± 6.36"
    assert table(measured({NEAR: ()}).with_failure(NEAR, "x"))[1][1] == "failed"


def test_an_axis_that_follows_from_another_is_left_out() -> None:
    cases = [case for case in seeds_cases(30) if not case.weights]
    run = measured(dict.fromkeys(cases, (1.0,)))
    assert table(run)[0][:2] == ["workers", "latency"]
    both = [Case(workers=w, split=s) for w in (1, 2) for s in ("6,7", "7,6")]
    assert table(measured(dict.fromkeys(both, (1.0,))))[0][:2] == ["workers", "split"]


@pytest.mark.parametrize("rounds", [2, 3, 5, 30])
def test_the_interval_holds_the_median_of_rounds_in_95_of_100(rounds: int) -> None:
    """Of normal values, by trial."""
    draw, trials, held = random.Random(rounds), 1500, 0
    for _ in range(trials):
        found = Interval.of([draw.gauss(100.0, 5.0) for _ in range(rounds)])
        held += found.low <= 100.0 <= found.high
    assert 0.938 < held / trials < 0.98


def test_one_round_tells_no_interval() -> None:
    assert Interval.of([3.0]).text == "3.00"
    assert svg_tags(measured({NEAR: (4.0,), FAR: (1.0,)})).count("polyline") == 1


@pytest.mark.parametrize(
    ("rates", "verdict", "factor"),
    [
        ((41.0, 42.0, 43.0), "same", "×1.00"),
        # Apart, but no more than launches differ by.
        ((44.0, 45.0, 46.0), "same", "×1.07"),
        ((49.0, 50.0, 51.0), "faster", "×1.19"),
        ((20.0, 21.0, 22.0), "slower", "×0.50"),
        ((20.0,), "one round", "×0.48"),
    ],
)
def test_two_runs_are_compared_by_their_intervals(
    rates: tuple[float, ...], verdict: str, factor: str
) -> None:
    before = measured({NEAR: (41.0, 42.0, 43.0)})
    now = measured({NEAR: rates, Case(workers=9): (1.0, 1.0)})
    (((_, row)),) = comparison_tables(before, now)
    assert row[-2:] == [factor, verdict]


def test_launches_are_compared_where_weights_matter() -> None:
    def launched_in(*seconds: float) -> BenchRun:
        samples = tuple(
            Measurement(round=n, tok_per_s=9.0, launch_s=s)
            for n, s in enumerate(seconds, 1)
        )
        cases = replace(NEAR, weights=STOCK), NEAR
        results = tuple(CaseResult(case=case, samples=samples) for case in cases)
        return replace(RUN, results=results)

    slow, fast = launched_in(9.0, 9.1, 9.2), launched_in(3.0, 3.1, 3.2)
    _, (head, *rows) = comparison_tables(slow, fast)
    assert head[-4:] == ["launch s before", "now", "factor", "verdict"]
    assert [row[-2:] for row in rows] == [["×0.34", "faster"]]
    assert comparison_tables(fast, slow)[1][1][-1] == "slower"


def errors(rows: list[list[str]], column: str) -> list[int]:
    """The errors in brackets, in percent."""
    at = rows[0].index(column)
    cells = [row[at].partition("(")[2] for row in rows[1:] if row[at]]
    return [abs(int(cell.strip("+−% )"))) for cell in cells]


def test_the_published_table_is_met_by_counted_trips_and_not_by_the_rule() -> None:
    """Two delays for each trip of W workers here, 2 W - 1 sleeps there."""
    cases = [case for case in seeds_cases(30) if not case.weights]
    assert len(cases) == 15
    assert all(
        sum(int(part.split("=")[1]) for part in case.split.split(",")) == 31
        for case in cases
    )
    run = measured({})
    for case in cases:
        workers = case.workers or 0
        delay_ms = 2 * workers * case.latency_ms
        sample = Measurement(
            round=1,
            tok_per_s=1000 / (20 + delay_ms),
            trips_per_token=workers,
            predicted_tok_per_s=1000 / (21 + delay_ms),
        )
        result = CaseResult(case=case, samples=(sample,))
        run = replace(run, results=(*run.results, result))
    theirs = published_table(run)
    assert [row[:3] for row in theirs[1:3]] == [
        ["3", "0 ms", "60.2"],
        ["3", "5 ms", "30.1"],
    ]
    assert len(theirs) == 1 + len(TOK_PER_S)
    assert max(errors(theirs, "by trips")) == 8
    assert errors(theirs, "by our links") == errors(theirs, "by trips")
    far = [off for off in errors(theirs, "rule of thumb") if off]
    assert (min(far), max(far), len(far)) == (25, 61, 8)
    ours = latency_table(run)
    assert ours[2] == ["3", "5 ms", "25.0", "33.3 (+33 %)", "~24.4 (−2 %)"]


def test_each_way_of_weights_stands_beside_the_published_load() -> None:
    stock, _, home = [case for case in seeds_cases(30) if case.weights]
    crossed = Measurement(round=1, tok_per_s=9, launch_s=5, launch_bytes=94 << 20)
    stayed = Measurement(
        round=1, tok_per_s=9, launch_s=1, launch_bytes=1 << 18, weight_bytes_sent=0
    )
    results = [
        CaseResult(case=stock, samples=(crossed, replace(crossed, launch_s=6))),
        CaseResult(case=home, samples=(stayed,)),
    ]
    run = replace(measured({NEAR: (1.0,)}), results=tuple(results))
    assert loads_table(run)[1:] == [
        ["stock", "16.88 GB", "more than 14 m", "94.0 MiB", "", "5.50 ± 6.36 s"],
        ["home", "0 B", "9 s", "256 KiB", "0 B", "1.00 s"],
    ]
    # They are no points of a latency.
    assert chart_of(run) is None


def test_figures_that_nobody_counted_are_left_out() -> None:
    (stock, *_) = [case for case in seeds_cases(30) if case.weights]
    sample = Measurement(round=1, tok_per_s=9, launch_s=5, trips_per_token=0.0)
    still = CaseResult(case=Case(workers=2), samples=(sample,))
    run = replace(RUN, results=(CaseResult(case=stock, samples=(sample,)), still))
    assert loads_table(run)[1] == [
        "stock",
        "16.88 GB",
        "more than 14 m",
        "",
        "",
        "5.00 s",
    ]
    assert len(published_table(run)) == 1
    assert [rows[0][0] for rows in seeds_tables(run)] == ["nodes", "weights"]


def test_results_of_an_older_format_are_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    save(replace(RUN, format=1), file)
    with pytest.raises(UsageError, match="results of format 1; this dllm-tui reads 2"):
        load(file)


@pytest.fixture
def ended_pid() -> int:
    with subprocess.Popen(["true"]) as ended:
        return ended.pid


async def test_leftovers_of_runs_that_ended_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended_pid: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    caches = user_paths().cache_dir / "bench"
    names = str(os.getppid()), str(ended_pid), "rpc", str(os.getpid())
    for name in names:
        (caches / name / "rpc").mkdir(parents=True)
    await BenchRunner(ControllerClient(user_paths()), RUN, tmp_path / "r").run()
    assert [one.name for one in caches.iterdir()] == [str(os.getppid())]


async def test_predictions_are_made_before_a_round_is_learnt_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    async def prepare(_: object, ask: Ask, **__: object) -> SimpleNamespace:
        done.append(f"predict {ask.workers}")
        return SimpleNamespace(speeds=ask.workers, refusal=None)

    async def measure(_: object, number: int, launch: Case, *rest: Any) -> None:
        assert rest[1].speeds == launch.workers
        done.append(f"measure {launch.workers}")

    monkeypatch.setattr(ControllerClient, "prepare", prepare)
    monkeypatch.setattr(BenchRunner, "_measure", measure)
    run = measured({Case(workers=1): (), Case(workers=2): ()})
    await BenchRunner(ControllerClient(user_paths()), run, tmp_path / "r").run()
    each = ["predict 1", "predict 2", "measure 1", "measure 2"]
    assert done == each * 2


async def test_each_launch_is_prepared_once_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is launched that was predicted; one that is refused is not."""
    done: list[str] = []

    async def prepare(_: object, ask: Ask, **__: object) -> SimpleNamespace:
        done.append(f"prepare {ask.workers}")
        refused = Failure(what="No room", hint="") if ask.workers == 3 else None
        return SimpleNamespace(speeds=None, refusal=refused, plan=ask.workers)

    def launch(_: object, plan: int, **how: Any) -> None:
        done.append(f"launch {plan}")
        raise ProcessFailed(Failure(what=f"{plan} ended"))

    monkeypatch.setattr(ControllerClient, "prepare", prepare)
    monkeypatch.setattr("tui.cli.bench.launched", launch)
    run = measured({Case(workers=number): () for number in (1, 2, 3)})
    client = ControllerClient(user_paths())
    found = await BenchRunner(client, run, tmp_path / "r").run()
    prepared = ["prepare 1", "prepare 2", "prepare 3"]
    assert done == [*prepared, "launch 1", "launch 2"]
    said = [one.failure for one in found.results]
    assert [why.rstrip(".") for why in said] == ["1 ended", "2 ended", "No room"]


def svg_tags(run: BenchRun) -> list[str]:
    svg = chart_svg(chart_of(run) or Chart("", {}), conditions_text(run))
    return [one.tag.split("}")[1] for one in ElementTree.fromstring(svg).iter()]


def test_files_for_other_programs() -> None:
    lines = as_csv(RUN).splitlines()
    assert lines[0].startswith("workers,split,ctx_size")
    assert len(lines) == 5
    assert as_markdown([["a|b", "c"], ["1", ""]]) == (
        "| a\\|b | c |\n| --- | --- |\n| 1 |  |\n"
    )
    hostile = replace(CONDITIONS, model="/m/<script>&.gguf")
    tags = svg_tags(replace(RUN, conditions=hostile))
    assert "script" not in tags
    assert (tags.count("polyline"), tags.count("circle")) == (1, 2)
    assert chart_of(measured({NEAR: (1.0,)})) is None
    assert "polyline" not in svg_tags(measured({NEAR: (1.0,)}))


def test_processor_time_of_others_is_told_from_our_own() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as burner:
        process = psutil.Process(burner.pid)
        try:
            others, ours = BusyTime([]), BusyTime([burner.pid])
            wait_until(lambda: process.cpu_times().user > 0.2, "a fifth")
            difference_s = others.other_cores(1.0) - ours.other_cores(1.0)
        finally:
            burner.kill()
    assert difference_s > 0.12


def test_a_finished_run_is_told_compared_and_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(replace(RUN, profile="seeds"), Path("now.json"))
    save(replace(RUN, tokens=9), Path("before.json"))
    os.mkfifo("pipe")
    Path("table.md").write_text("old")
    Path("link.md").symlink_to("table.md")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    outputs = ("--csv", "pipe", "--markdown", "link.md", "--svg", "plot.svg")
    args = ["bench", "--resume", "now.json", "--compare", "before.json", *outputs]
    result = CliRunner().invoke(cli, args)
    assert result.exit_code == 0, result.output
    assert "Not alike: tokens 9 before, 8 now." in result.output
    assert os.read(reader, 7) == b"workers"
    os.close(reader)
    article = Path("table.md").read_text()
    assert "| 10 ms | 16.5" in article
    rule = "22.8 (+38 %)"
    assert f"| 3 | 10 ms | 16.5 ± 6.36 | {rule}" in article, "beside published figures"
    assert Path("link.md").is_symlink()
    ElementTree.parse("plot.svg")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["m.gguf", "--workers", "2,x"], "list of numbers from 0 to 15"),
        (["m.gguf", "--slots", "0"], "list of numbers from 1"),
        (["m.gguf", "--slots", ""], "list of numbers from 1"),
        (["m.gguf", "--slots", "9" * 5000], "list of numbers from 1"),
        (["m.gguf", "--relay", "twin"], "--relay has no value 'twin'"),
        (["m.gguf", "--relay", "off", "--latency", "5ms"], "without relays"),
        (["m.gguf", "--latency", "5 parsec"], "Cannot read '5 parsec'"),
        (["m.gguf", "--split", "6,?"], "'6,?' is not a split"),
        (["m.gguf", "--profile", "seeds", "--workers", "2"], "no effect with"),
        (["m.gguf", "--svg", "/no/such/place.svg"], "no folder for"),
        (["--resume", "r.json", "--rounds", "5"], "no effect with --resume"),
        (["--resume", "r.json", "--workers", "5"], "no effect with --resume"),
        (["--resume", "r.json", "m.gguf"], "MODEL has no effect with --resume"),
        (["--resume", "r.json", "--csv", "r.json"], "r.json is no file to write to"),
        (["--resume", "r.json", "--svg", "."], ". is no file to write to"),
        (["m.gguf", "--to", "r.json"], "r.json is there already"),
        (["m.gguf", "--latency", ""], "Cannot read ''"),
        (["m.gguf", "--draft", "./no.gguf"], "There is no model file no.gguf"),
        (["m.gguf", "--latency", "99999s"], "delays by"),
        ([], "Missing argument 'MODEL'"),
    ],
)
def test_bad_options_are_one_sentence(
    args: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.gguf").write_bytes(b"")
    save(RUN, Path("r.json"))
    result = CliRunner().invoke(cli, ["bench", *args])
    error = result.output + str(result.exception)
    assert result.exit_code
    assert says in error
