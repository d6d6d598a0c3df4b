"""The parts of the chat that need no screen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from backends.state import ChatTimings, Failure, Reply, Sampling, Turn
from tui.dialogs.sampling import FIELDS, parse_sampling
from tui.screens.cluster.answer import SPEAKER_CELLS, speaker_of
from tui.screens.cluster.chat_pane import PromptHistory
from tui.screens.cluster.chat_text import (
    failure_text,
    figures_text,
    variant_texts,
    waiting_text,
)


def test_prompts_are_walked_back_and_forth_and_the_draft_is_kept() -> None:
    history = PromptHistory()
    history.replace(["one", " "])
    history.add("two")
    history.add("two")
    assert history.older("draft") == "two"
    assert history.older("two") == "one"
    assert history.older("one") is None
    assert history.newer() == "two"
    assert history.newer() == "draft"
    assert history.newer() is None


@pytest.mark.parametrize(
    ("model", "speaker"),
    [
        ("GLM-4.7-Flash-Q4_K_M", "glm"),
        ("Qwen3-Coder-480B", "qwen3"),
        ("Meta-Llama-3.1-8B", "llama"),
        ("deepseek_r1", "deepseek"),
        ("Nemotronics-9", "nemotro…"),
        ("", "model"),
        ("---", "model"),
        ("\ud7b0", "model"),
    ],
)
def test_a_model_speaks_under_a_short_name(model: str, speaker: str) -> None:
    assert speaker_of(model) == speaker


@given(st.text())
def test_a_speaker_always_fits(model: str) -> None:
    assert 0 < cell_len(speaker_of(model)) <= SPEAKER_CELLS


def test_figures_of_an_answer() -> None:
    timings = ChatTimings(tokens=42, tok_per_s=21.34, first_token_s=0.883)
    expected = "21.3 tok/s · first token 0.88 s · 42 tokens"
    assert figures_text(timings, "stop") == expected
    assert figures_text(timings, "length") == f"{expected} · stopped: token limit"
    assert figures_text(None, "stopped") == "stopped by you"
    assert figures_text(None) == ""
    assert figures_text(ChatTimings(tokens=1)) == "1 token"
    assert figures_text(ChatTimings(tokens=20_000)) == "20 000 tokens"


def test_waiting_says_how_much_of_the_prompt_is_read() -> None:
    assert waiting_text(None) == "waiting for the first token"
    half = waiting_text(0.43)
    assert half == "reading the prompt ━━━━──────  43 %"
    assert waiting_text(7).endswith("━━━━━━━━━━ 100 %")


def test_failures_read_as_sentences() -> None:
    assert failure_text(Failure(what="It broke")) == "It broke."
    failure = Failure(what="It broke", hint="Mend it.")
    assert failure_text(failure) == "It broke. Mend it."


def test_sampling_fields_understand_numbers_and_emptied_are_the_servers() -> None:
    assert parse_sampling({field.name: " " for field in FIELDS}) == Sampling()
    sampling = parse_sampling({"temperature": "0,7", "top_k": "40", "seed": "0"})
    assert sampling == Sampling(temperature=0.7, top_k=40, seed=0)


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("temperature", "hot", "temperature takes a number, 0–5."),
        ("temperature", "nan", "temperature takes a number, 0–5."),
        ("top_p", "1.5", "top p takes a number, 0–1."),
        ("top_k", "1.5", "top k takes a whole number, 0–1000000."),
        ("max_tokens", "0", "max tokens takes a whole number, 1 or more."),
        ("seed", "-1", "seed takes a whole number, 0–4294967295."),
    ],
)
def test_a_wrong_number_is_refused_in_a_sentence(
    name: str, text: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match="takes") as caught:
        parse_sampling({name: text})
    assert str(caught.value) == complaint


@given(
    st.builds(
        Sampling,
        temperature=st.none() | st.floats(0, 5),
        top_k=st.none() | st.integers(0, 1_000_000),
        seed=st.none() | st.integers(0, 2**32 - 1),
    )
)
def test_sampling_survives_its_fields(sampling: Sampling) -> None:
    texts = {field.name: field.shown(sampling) for field in FIELDS}
    parsed = parse_sampling(texts)
    assert parsed.top_k == sampling.top_k
    assert parsed.seed == sampling.seed
    if sampling.temperature is not None:
        assert parsed.temperature == pytest.approx(sampling.temperature)


def test_answers_in_other_words_show_where_the_words_differ() -> None:
    begin = "Explain how the layers of a model are split over several machines"
    replies = tuple(
        Reply(question=f"{begin}{end}", text="So.", finish_reason="stop")
        for end in (" in one sentence", " in detail, with an example for each part")
    )
    first, second = variant_texts(Turn(question=begin, replies=replies, shown=0))
    assert first.endswith("in one sentence”")
    assert "in detail, with" in second
