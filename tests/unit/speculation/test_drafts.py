"""Draft models and layers of the model itself: which fit, and why others do not."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from backends.demo import MODEL_PATH
from backends.errors import ModelError
from backends.models.layers import read_model
from backends.speculation.drafts import (
    best_first,
    drafts_for,
    head_method,
    own_layers_misfit,
    read_vocabulary,
    vocabulary_misfit,
)
from backends.speculation.memory import (
    own_layers,
    with_draft,
    with_own_layers,
    with_own_weights,
)
from backends.split.layout import make_split
from backends.state import (
    MTP_DRAFT,
    DeviceMemory,
    DraftCandidate,
    Drafts,
    Layer,
    ModelFile,
    ModelInfo,
    Plan,
    ServerSettings,
    Speculation,
    Split,
)
from tests.unit.models.ggufs import TOKENS, write_gguf

FLAGS = {"--spec-type", "--spec-type draft-dflash"}
WORDS = {"tokenizer.ggml.tokens": TOKENS}
SPM = {**WORDS, "tokenizer.ggml.model": "llama"}
BPE = {**WORDS, "tokenizer.ggml.model": "gpt2"}


def judged(folder: Path, **changes: object) -> str:
    """Why a small model of the same words, with changes, is no draft model."""
    model = write_gguf(folder / "model.gguf", metadata=SPM, vocabulary=False)
    other = write_gguf(folder / "other.gguf", metadata=BPE, vocabulary=False)
    size = model.stat().st_size
    file = {"path": str(model), "name": "small", "size_bytes": size // 4, **changes}
    if changes.get("path") == "other":
        file["path"] = str(other)
    found = ModelFile(source="models", **file)  # type: ignore[arg-type]
    whole = replace(read_model(model), path="/m/big.gguf", files=())
    itself = replace(found, path=whole.path)
    (candidate,) = drafts_for(whole, model, FLAGS, [found, itself]).candidates
    return candidate.why_not


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"size_bytes": 10**9}, "larger than a quarter"),
        ({"path": "other"}, "its tokenizer is BPE"),
        ({"path": "mini:/m/small.gguf"}, "on mini alone"),
        ({"path": "/nowhere/small.gguf"}, "Cannot read"),
        ({"arch": "eagle3"}, "a head for draft-eagle3, which the engine does not"),
        ({"sparse": "sparse: 0–3 of m.gguf"}, "sparse: 0–3 of m.gguf"),
    ],
)
def test_why_not(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    assert why in judged(tmp_path, **changes)


def test_one_of_the_same_words_and_a_quarter_of_the_size_does(tmp_path: Path) -> None:
    assert judged(tmp_path) == ""
    assert head_method("llama") == ""


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({}, ""),
        ({"target_hidden_size": 0}, "made for a model 0 wide"),
        ({"target_layers": [1, 99]}, "listens to layer 99"),
        ({"target_layers": [0, 1]}, ""),
    ],
)
def test_a_head_is_held_against_the_model_it_was_made_for(
    tmp_path: Path, said: dict[str, object], why: str
) -> None:
    """Its header is made up: which keys there are is read from llama.cpp itself."""
    metadata = {f"dflash.{key}": value for key, value in said.items()}
    head = write_gguf(tmp_path / "head.gguf", metadata=metadata, vocabulary=False)
    model = write_gguf(tmp_path / "m.gguf", metadata=SPM, vocabulary=False)
    file = ModelFile(
        path=str(head), name="head", size_bytes=10, source="models", arch="dflash"
    )
    (found,) = drafts_for(read_model(model), model, FLAGS, [file]).candidates
    assert found.head == "draft-dflash"
    assert (why in found.why_not) if why else not found.why_not
    able = Drafts(model="/m", size_bytes=10**9, candidates=(found,))
    assert best_first(able) == ()


def test_of_small_models_the_largest_comes_first() -> None:
    sizes = {"half": 500, "tenth": 100, "tiny": 5, "fifth": 200}
    candidates = tuple(
        DraftCandidate(path=name, name=name, size_bytes=size)
        for name, size in sizes.items()
    )
    wrong = replace(candidates[1], path="wrong", why_not="other words")
    found = Drafts(model="/m", size_bytes=1000, candidates=(*candidates, wrong))
    assert best_first(found) == ("tenth", "tiny", "fifth", "half")


@pytest.mark.parametrize(
    ("arch", "own_bytes", "why"),
    [
        ("glm4moe", (5,), ""),
        ("step35", (5, 5), ""),
        ("glm4moe", (), "m.gguf has no layers of its own"),
        ("glm4moe", (0,), "was made without the MTP layers"),
        ("glm4moe", (5, 5), "runs one MTP layer of glm4moe models, not 2"),
        ("exaone-moe", (5,), "not known to run MTP layers of exaone-moe"),
    ],
)
def test_own_layers_of_a_model(arch: str, own_bytes: tuple[int, ...], why: str) -> None:
    sizes = (9, 9, *own_bytes)
    model = ModelInfo(
        path="/m.gguf",
        arch=arch,
        n_layer=len(sizes),
        n_layer_nextn=len(own_bytes),
        n_embd=8,
        n_vocab=8,
        layers=tuple(Layer(index=i, bytes=size) for i, size in enumerate(sizes)),
    )
    said = own_layers_misfit(model)
    assert (why in said) if why else not said


MIB = 1 << 20
N_LAYER, CTX, KV_BYTES = 6, 512, 4096
TABLES = Speculation(type="ngram-map-k")
WORKER, HEAD = "w/CPU", "local/CUDA0"


def layer(index: int) -> Layer:
    """The last one drafts: it has no cache of the model's own."""
    kv_bytes = 0 if index == N_LAYER - 1 else KV_BYTES
    return Layer(
        index=index,
        bytes=MIB,
        kv_bytes_per_token=kv_bytes,
        k_bytes_per_token=kv_bytes // 2,
    )


MODEL = ModelInfo(
    path="/m.gguf",
    arch="glm4moe",
    n_layer=N_LAYER,
    n_layer_nextn=1,
    n_embd=64,
    n_vocab=512,
    n_head=4,
    layers=tuple(map(layer, range(N_LAYER))),
    output_bytes=MIB,
)


def split(*counts: int) -> Split:
    return make_split(N_LAYER, ["local/CPU", WORKER, HEAD], counts)


def plan(*counts: int) -> Plan:
    server = ServerSettings(draft="auto", cache_type_k="q8_0", cache_type_v="q8_0")
    made = Plan(model=MODEL.path, split=split(*counts), ctx_size=CTX, server=server)
    own = own_layers(made, MODEL, "draft-mtp")
    return replace(made, speculation=replace(own, instead=(TABLES,)))


def drafting(made: Plan) -> Speculation:
    assert made.speculation is not None
    return made.speculation


def test_they_are_where_the_last_layers_are() -> None:
    assert drafting(plan(2, 3, 2)).device == HEAD
    # The output alone does not draft.
    assert drafting(plan(2, 4, 1)).device == WORKER
    assert drafting(plan(7, 0, 0)).device == "local/CPU"
    assert drafting(plan(2, 3, 2)).draft == MTP_DRAFT


def test_a_cache_of_the_usual_type_and_a_compute_buffer_are_theirs() -> None:
    (memory,) = drafting(plan(2, 3, 2)).memory
    assert (memory.device, memory.model_bytes) == (HEAD, 0)
    assert memory.kv_bytes == CTX * KV_BYTES
    assert memory.compute_bytes > 0


def test_they_follow_the_split() -> None:
    moved = with_own_layers(replace(plan(2, 3, 2), split=split(3, 4, 0)), MODEL)
    assert drafting(moved).device == WORKER
    assert drafting(moved).instead == (TABLES,)
    untouched = replace(moved, speculation=TABLES)
    assert with_own_layers(untouched, MODEL) is untouched


def test_what_auto_may_choose_takes_its_memory_too() -> None:
    own = replace(drafting(plan(2, 3, 2)), instead=())
    draft = DeviceMemory(device=HEAD, model_bytes=7)
    both = Speculation(
        type="draft-simple",
        model="/d.gguf",
        device=HEAD,
        memory=(draft,),
        instead=(own, TABLES),
    )
    held = with_draft(DeviceMemory(device=HEAD), both)
    assert (held.model_bytes, held.kv_bytes) == (7, CTX * KV_BYTES)


def test_their_weights_are_added_to_what_the_engine_says() -> None:
    said = [DeviceMemory(device=name, model_bytes=10) for name in (WORKER, HEAD)]
    told = {one.device: one for one in with_own_weights(said, plan(2, 3, 2), MODEL)}
    assert told[HEAD].model_bytes == MIB + 10
    assert told[WORKER].model_bytes == 10
    plain = replace(plan(2, 3, 2), speculation=None)
    assert with_own_weights(said, plain, MODEL) == tuple(said)


# --- Which models speak the same words, by the rules of llama-server ---

MANY_WORDS = [f"word{index}" for index in range(300)]
BPE_WORDS = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2"}
LLAMA3 = {**BPE_WORDS, "tokenizer.ggml.pre": "llama-bpe"}
SPM_WORDS = {"tokenizer.ggml.model": "llama"}
PLAMO2_WORDS = {"tokenizer.ggml.model": "plamo2"}


def compared(
    folder: Path,
    model: dict[str, Any],
    draft: dict[str, Any],
    words: Sequence[str] = MANY_WORDS,
) -> str:
    """Why a draft with these keys and words cannot draft for a model."""
    found = []
    for name, keys, tokens in (("model", model, MANY_WORDS), ("draft", draft, words)):
        file = folder / f"{name}.gguf"
        metadata = {**keys, "tokenizer.ggml.tokens": list(tokens)}
        write_gguf(file, metadata=metadata, vocabulary=False)
        found.append(read_vocabulary(file))
    return vocabulary_misfit(*found)


def test_the_same_words_do(tmp_path: Path) -> None:
    assert compared(tmp_path, BPE_WORDS, BPE_WORDS) == ""
    assert vocabulary_misfit(*[read_vocabulary(MODEL_PATH)] * 2) == ""


def test_the_first_five_and_a_few_at_the_end_may_differ(tmp_path: Path) -> None:
    renamed = [*(f"other{i}" for i in range(5)), *MANY_WORDS[5:]]
    assert compared(tmp_path, BPE_WORDS, BPE_WORDS, renamed) == ""
    assert (
        compared(
            tmp_path,
            BPE_WORDS,
            BPE_WORDS,
            [*MANY_WORDS, *(f"new{i}" for i in range(128))],
        )
        == ""
    )
    assert compared(tmp_path, BPE_WORDS, BPE_WORDS, MANY_WORDS[:172]) == ""
    more = [*MANY_WORDS, *(f"new{i}" for i in range(129))]
    assert "it has 429 tokens, the model 300" in compared(
        tmp_path, BPE_WORDS, BPE_WORDS, more
    )


@pytest.mark.parametrize("index", [5, 150, 299])
def test_one_other_word_is_named(tmp_path: Path, index: int) -> None:
    words = [*MANY_WORDS]
    words[index] = "\x1b[2Jnew"
    why = compared(tmp_path, BPE_WORDS, BPE_WORDS, words)
    assert f"its token {index} is “�[2Jnew”, the model's “word{index}”" in why


@pytest.mark.parametrize(
    ("model", "draft", "why"),
    [
        (BPE_WORDS, SPM_WORDS, "its tokenizer is SPM, the model's BPE"),
        (BPE_WORDS, LLAMA3, "texts begin with token 11, the model's no token"),
        (LLAMA3, LLAMA3, ""),
        (LLAMA3, {**LLAMA3, "tokenizer.ggml.bos_token_id": 7}, "begin with token 7"),
        # What is not put around a text may be anything.
        (BPE_WORDS, {**BPE_WORDS, "tokenizer.ggml.bos_token_id": 7}, ""),
        (BPE_WORDS, {**BPE_WORDS, "tokenizer.ggml.eos_token_id": 7}, ""),
        (LLAMA3, {**LLAMA3, "tokenizer.ggml.add_bos_token": False}, "with no token"),
        (
            BPE_WORDS,
            {**BPE_WORDS, "tokenizer.ggml.add_eos_token": True},
            "texts end with token 11",
        ),
        # An id beyond the vocabulary does not count.
        (LLAMA3, {**LLAMA3, "tokenizer.ggml.bos_token_id": 5000}, ""),
        (SPM_WORDS, SPM_WORDS, ""),
        (
            SPM_WORDS,
            {**SPM_WORDS, "tokenizer.ggml.add_bos_token": False},
            "with no token",
        ),
        (PLAMO2_WORDS, {**PLAMO2_WORDS, "tokenizer.ggml.bos_token_id": 7}, ""),
        ({"tokenizer.ggml.model": "new"}, {"tokenizer.ggml.model": "new"}, ""),
    ],
)
def test_what_stands_around_a_text_counts(
    tmp_path: Path, model: dict[str, Any], draft: dict[str, Any], why: str
) -> None:
    found = compared(tmp_path, model, draft)
    assert why in found
    assert bool(found) == bool(why)


def test_a_file_cut_short_within_its_words_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(MODEL_PATH.read_bytes()[:4000])
    with pytest.raises(ModelError, match="truncated"):
        read_vocabulary(file)


def test_a_vocabulary_too_large_to_be_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hostile.gguf"
    tokens = b"tokenizer.ggml.tokens"
    named = struct.pack("<Q", len(tokens)) + tokens
    for count, length, why in (
        (1 << 30, 0, "claims 1073741824 strings"),
        (1, 1 << 31, "has a string of 2147483648 bytes"),
    ):
        array = struct.pack("<IIQQ", 9, 8, count, length)
        file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + named + array)
        os.truncate(file, 1 << 34)
        with pytest.raises(ModelError, match=why):
            read_vocabulary(file)
