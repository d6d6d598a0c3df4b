"""Speculation methods, in the words of llama-server's own help."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from backends.engine.ask import parse_flags
from backends.errors import EngineError
from backends.speculation.methods import method_for, methods_known, speculation_argv
from backends.state import DeviceMemory, Speculation

HELP = parse_flags(
    (Path(__file__).parent / "data" / "help_speculative.txt").read_text()
)
BEFORE = frozenset({"-md", "-devd", "-ngld", "--draft-max", "--device"})
"""Of a llama.cpp that had draft models alone."""
ON_CPU = Speculation(type="draft-simple", model="/d.gguf", device="a/CPU", n_layer=4)
ON_GPU = Speculation(type="draft-simple", model="/d.gguf", device="a/CUDA1", n_layer=4)


def test_the_methods_are_read_from_the_help() -> None:
    assert "--spec-type draft-simple" in HELP
    assert "--spec-type ngram-cache" in HELP
    assert method_for(HELP, "/d.gguf") == "draft-simple"
    assert method_for(HELP, "ngram") == "ngram-map-k"


def test_the_next_best_table_where_the_best_is_not_known() -> None:
    flags = {"--spec-type", "--spec-type ngram-simple"}
    assert method_for(flags, "ngram") == "ngram-simple"


@pytest.mark.parametrize(
    ("flags", "draft", "what"),
    [
        (BEFORE, "ngram", "cannot draft without a draft model"),
        (BEFORE - {"-devd"}, "/d.gguf", "cannot keep a draft model on the head"),
        (HELP - {"--spec-type draft-simple"}, "/d.gguf", "cannot keep a draft model"),
        (BEFORE | {"--spec-type"}, "/d.gguf", "cannot keep a draft model"),
    ],
)
def test_an_engine_that_cannot_is_refused(
    flags: frozenset[str], draft: str, what: str
) -> None:
    with pytest.raises(EngineError, match=what):
        method_for(flags, draft)


def test_all_of_a_draft_model_stays_on_the_head() -> None:
    argv = speculation_argv(HELP, ON_CPU, "/there/d.gguf", 8)
    assert argv == (
        *("-md", "/there/d.gguf", "-devd", "none", "-ngld", "0"),
        *("--spec-type", "draft-simple", "--spec-draft-n-max", "8"),
    )
    assert speculation_argv(HELP, ON_GPU, "/d", 8)[2:6] == (
        "-devd",
        "CUDA1",
        "-ngld",
        "5",
    )


@pytest.mark.parametrize(("mib", "told"), [(9, ("-td", "1")), (17, ()), (0, ())])
def test_a_tiny_draft_model_has_one_thread(mib: int, told: tuple[str, ...]) -> None:
    taken = DeviceMemory(device="a/CPU", model_bytes=mib << 20)
    drafted = replace(ON_CPU, memory=(taken,))
    assert speculation_argv(HELP, drafted, "/d.gguf", 8)[10:] == told
    alone = speculation_argv(HELP, drafted, "/d.gguf", 8, is_alone=True)
    assert alone[10:] == (*told, *(("-t", "1") if told else ()))
    assert speculation_argv(HELP - {"-td"}, drafted, "/d.gguf", 8)[10:] == ()
    assert "-td" not in speculation_argv(
        HELP, replace(drafted, device="a/GPU"), "/d", 8
    )


def test_an_earlier_engine_is_told_in_its_own_words() -> None:
    assert speculation_argv(BEFORE, ON_CPU, "/d.gguf", 8)[-2:] == ("--draft-max", "8")
    assert "--spec-type" not in speculation_argv(BEFORE, ON_CPU, "/d.gguf", 8)


def test_ngrams_are_as_long_as_the_draft() -> None:
    argv = speculation_argv(HELP, Speculation(type="ngram-map-k"), "", 12)
    assert argv == (
        *("--spec-type", "ngram-map-k", "--spec-ngram-map-k-size-n", "4"),
        *("--spec-ngram-map-k-size-m", "12"),
    )


def test_layers_of_the_model_itself_stay_where_they_are() -> None:
    method = method_for(HELP, "mtp")
    assert method == "draft-mtp"
    drafted = Speculation(type=method, device="w/CPU", n_layer=1)
    assert speculation_argv(HELP, drafted, "", 3) == (
        *("--spec-type", "draft-mtp", "--spec-draft-n-max", "3"),
    )
    with pytest.raises(EngineError, match="does not know the method draft-mtp"):
        method_for(HELP - {"--spec-type draft-mtp"}, "mtp")


def test_a_head_has_the_method_that_it_is_made_for() -> None:
    flags = {"--spec-type", "--spec-type draft-eagle3", "-md", "-devd", "-ngld"}
    assert methods_known(flags) == {"draft-eagle3"}
    assert method_for(flags, "/m/head.gguf", "draft-eagle3") == "draft-eagle3"
    drafted = Speculation(
        type="draft-eagle3", model="/m/head.gguf", device="local/CPU", n_layer=1
    )
    argv = speculation_argv(flags, drafted, "/m/head.gguf", 4)
    assert argv[-2:] == ("--spec-type", "draft-eagle3")
    with pytest.raises(EngineError, match="does not know the method draft-dflash"):
        method_for(flags, "/m/head.gguf", "draft-dflash")
