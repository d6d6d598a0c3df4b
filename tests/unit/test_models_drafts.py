"""``models drafts``: the drafts for a model, with the measurements of auto."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from backends.errors import UsageError
from backends.speculation.drafts import with_trials
from backends.state import ClusterSnapshot, DraftCandidate, Drafts, DraftTrial
from tui.cli import drafts as drafts_module
from tui.cli.drafts import trial_text
from tui.cli.main import cli

FIND = drafts_module._found
AT = 1_763_820_000.0
EARLIER = DraftTrial(draft="/m/small.gguf", draft_max=8, tok_per_s=40.0, at=AT - 60)
FAST = replace(EARLIER, tok_per_s=61.2, speedup=2.72, acceptance=0.71, at=AT)
SLOW = replace(EARLIER, draft="ngram", tok_per_s=20.0, speedup=0.89, at=AT)


def draft(name: str, size_bytes: int, **more: Any) -> DraftCandidate:
    return DraftCandidate(path=f"/m/{name}", name=name, size_bytes=size_bytes, **more)


FOUND = Drafts(
    model="/m/big.gguf",
    size_bytes=1 << 30,
    candidates=(
        draft("small.gguf", 1 << 26, found=(FAST, EARLIER)),
        draft("mid.gguf", 1 << 27),
        draft("o.gguf", 1, why_not="its words differ"),
    ),
    ngram=(SLOW,),
)
OWN = replace(FAST, draft="mtp", draft_max=1)


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A model about which a controller tells that."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    tells(monkeypatch, FOUND)
    model = tmp_path / "big.gguf"
    model.write_bytes(b"GGUF")
    yield model
    monkeypatch.undo()
    time.tzset()


def tells(monkeypatch: pytest.MonkeyPatch, drafts: Drafts) -> None:
    monkeypatch.setattr(drafts_module, "_found", AsyncMock(return_value=drafts))


def said(model: Path, *options: str) -> str:
    return CliRunner().invoke(cli, ["models", "drafts", str(model), *options]).output


def test_below_each_stands_what_auto_found(model: Path) -> None:
    lines = said(model).splitlines()
    assert [line.split()[0] for line in lines] == [
        *("small.gguf", "auto:", "mid.gguf", "auto:", "o.gguf", "ngram", "auto:")
    ]
    assert lines[1] == (
        "  auto: 61.2 tok/s, 22.5 without (×2.72): pays · 71 % accepted · "
        "8 tokens at a time · 2025-11-22 14:00"
    )
    assert lines[3] == "  auto: not measured yet"
    assert "(×0.89): costs more than it brings · 8 tokens" in lines[6]
    assert "not compared yet" in trial_text(EARLIER)


def test_what_auto_found_of_layers_of_the_model_itself_stands_below_them(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = replace(with_trials(FOUND, (OWN, SLOW)), heads=("draft-mtp",))
    tells(monkeypatch, layers)
    lines = said(model).splitlines()
    assert "(--draft mtp: draft-mtp)" in lines[0]
    assert lines[1].startswith("  auto: 61.2 tok/s, 22.5 without (×2.72): pays")
    assert "accepted · 1 token at a time" in lines[1]
    assert "(×0.89): costs more" in lines[-1]


def test_what_was_found_over_each_network_is_listed(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = replace(SLOW, network="under 2 ms")
    far = replace(SLOW, network="8 to 32 ms", speedup=1.9, slots=4)
    earlier = replace(far, tok_per_s=1.0, at=AT - 60)
    tells(monkeypatch, with_trials(FOUND, (near, far, earlier)))
    lines = [x for x in said(model).splitlines() if "8 tokens at a time" in x]
    assert [line.partition("at a time · ")[2] for line in sorted(lines)] == [
        "8 to 32 ms · 4 slots · 2025-11-22 14:00",
        "under 2 ms · 2025-11-22 14:00",
    ]


def test_json_has_all_of_it(model: Path) -> None:
    told = json.loads(said(model, "--json"))
    small, mid, _ = told["candidates"]
    assert [one["tok_per_s"] for one in small["found"]] == [61.2, 40.0]
    assert small["found"][0]["speedup"] == 2.72
    assert mid["found"] == []
    assert told["ngram"][0]["speedup"] == 0.89


@pytest.mark.parametrize(
    ("speedup", "verdict"),
    [
        (2.0, "pays"),
        (1.02, "makes no difference"),
        (0.98, "makes no difference"),
        (0.9, "costs more than it brings"),
    ],
)
def test_a_speedup_in_words(speedup: float, verdict: str) -> None:
    assert verdict in trial_text(replace(FAST, speedup=speedup))


async def test_only_a_model_that_runs_is_measured_again() -> None:
    client: Any = AsyncMock()
    client.snapshot.return_value = ClusterSnapshot()
    with pytest.raises(UsageError, match="does not run /m/big"):
        await FIND(client, "/m/big.gguf", measure=True)
    client.measure_drafts.assert_not_called()
