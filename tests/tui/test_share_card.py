"""The card to share: all that it tells, and nothing that is nobody else's business."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from backends.errors import DllmError
from backends.state import ClusterSnapshot, Lab, ProcessInfo, ProcessRole, ProcessState
from tests.kit.console import Started
from tests.tui import scenes
from tests.tui.helpers import settled, until
from tui.model.share_card import ShareCard, card_of, card_svg, card_text

SERVING = scenes.homelab_serving()
ARGV = (
    *("/home/ada/.cache/engines/llama-server", "-m", "/srv/ada/models/glm.gguf"),
    *(
        "--rpc",
        "10.0.0.7:50052,ada-box.lan:50052",
        "--host",
        "ada-box.lan",
        "--port",
        "8091",
    ),
    *("--api-key", "hunter2", "--api-key-file=/home/ada/keys", "-sys", "be nice"),
    *("--lora", "/home/ada/my a.gguf", "--log-file=/home/ada/x.log"),
    *("-ot", "blk.0=RPC0[ada-box.lan:50052]", "--no-host", "--model-url"),
    "https://10.0.0.7/x?token=abc",
)
PRIVATE = ("/home", "/srv", "10.0.0.7", "ada-box", "hunter2", "be nice", "keys", "=abc")


def scene(**changes: object) -> ClusterSnapshot:
    server = ProcessInfo(
        name="llama-server",
        role=ProcessRole.SERVER,
        state=ProcessState.RUNNING,
        argv=ARGV,
    )
    plan = SERVING.plan
    assert plan is not None
    private = ("--api-key", "hunter2", "--chat-template-file", "/home/ada/t.jinja")
    plan = replace(plan, model="mini:/srv/ada/glm.gguf", extra_args=private)
    links = tuple(replace(one, lab=Lab(latency_ms=10)) for one in SERVING.links)
    found = replace(SERVING, plan=plan, processes=(server,), links=links)
    return replace(found, **changes)


def svg_words(card: ShareCard) -> str:
    """The texts of the picture, whose commands are wrapped."""
    root = ElementTree.fromstring(card_svg(card))
    return " ".join("".join(one.itertext()) for one in root)


@pytest.mark.parametrize("form", [card_text, svg_words])
def test_nothing_private_is_on_it(form: Callable[[ShareCard], str]) -> None:
    text = form(card_of(scene()))
    assert [one for one in PRIVATE if one in text] == []
    assert " -m glm.gguf --rpc mini,box --host … --port 8091 --api-key … " in text
    assert " --lora 'my a.gguf' --log-file=x.log" in text
    assert " --no-host --model-url … " in f"{text} ".replace("\n", " ")
    assert "dllm-tui up glm.gguf " in text
    assert " -- --api-key … --chat-template-file t.jinja" in text


def test_figures_have_their_conditions() -> None:
    card = card_of(scene())
    text = card_text(card)
    assert "slowed by a lab: +10 ms" in text
    assert f"context {SERVING.speed.ctx_used} of" in text
    assert "without a draft" in text
    assert card.trips in text
    assert all(f"{one.device} " in text for one in card.segments)


def test_before_an_answer_no_speed_is_made_up() -> None:
    speed = replace(SERVING.speed, tok_per_s=None, last_tok_per_s=None)
    card = card_of(scene(speed=speed, links=()))
    assert "not measured yet" in card_text(card)
    assert card.parts == ()
    assert "tok/s" not in card_svg(card)
    with pytest.raises(DllmError, match="Nothing serves"):
        card_of(ClusterSnapshot())


def test_a_speed_under_another_lab_is_none_of_this_card() -> None:
    links = (*SERVING.links[:-1], replace(SERVING.links[-1], head_ms_per_token=None))
    card = card_of(scene(links=links))
    assert (card.speed, card.trips) == ("not measured yet", card_of(scene()).trips)


def test_the_picture_is_xml_whatever_the_names() -> None:
    plan = scene().plan
    assert plan is not None
    odd = replace(plan, model="/m/<b>&'\".gguf")
    root = ElementTree.fromstring(card_svg(card_of(scene(plan=odd))))
    texts = ["".join(one.itertext()) for one in root]
    assert "<b>&'\"" in texts
    assert float(root.get("height", "0")) > 200


def test_long_rows_of_the_picture_are_wrapped() -> None:
    card = replace(card_of(scene()), facts="word " * 60, conditions=("word " * 60,))
    texts = ElementTree.fromstring(card_svg(card)).iter()
    rows = ["".join(one.itertext()) for one in texts if one.get("font-size") == "15"]
    assert sum(row.count("word") for row in rows) == 120
    assert max(map(len, rows)) <= 80


async def test_a_key_copies_it_and_writes_the_picture(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with started(SERVING) as (pilot, app, _):
        await settled(pilot)
        await pilot.press("X")
        await until(pilot, lambda: list(tmp_path.glob("dllm-card-*.svg")))
        assert app.clipboard == card_text(card_of(SERVING))
