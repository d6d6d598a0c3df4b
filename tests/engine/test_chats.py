"""Conversations on a real cluster: whoever asks may be killed, nothing is lost."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import aclosing

import pytest

from backends.client.client import ControllerClient
from backends.state import (
    ChatChange,
    ChatState,
    ClusterState,
    Conversation,
    Lab,
    PromptCount,
    Reply,
    Sampling,
)
from tests.engine.conftest import User, somebody
from tests.engine.driving import client_of, kill_controller, settled
from tests.engine.terminal import Terminal
from tests.kit.waiting import wait_until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

KILLS = int(os.environ.get("DLLM_TEST_KILLS", "3"))
"""Of a trial."""
once_and_often = pytest.mark.parametrize(
    "kills", [1, pytest.param(KILLS, marks=pytest.mark.trial)]
)
LATENCY_MS = 12
"""A token takes some 50 ms then."""
HELD_MS = 100
"""An answer takes some ten seconds then: long enough to be seen in the middle."""
QUESTION = "zebraquux: what is a split?"
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def user(demo_model: str) -> Iterator[User]:
    """Somebody whose cluster of two workers serves, on slow links."""
    with somebody() as someone:
        someone.run("up", "--model", demo_model, "--workers", "2", "--detach")
        someone.run("lab", "set", "all", "--latency", f"{LATENCY_MS}ms")
        yield someone
        someone.run("stop", "--all")
        someone.assert_nothing_left()


@pytest.fixture
def client(user: User, monkeypatch: pytest.MonkeyPatch) -> ControllerClient:
    return client_of(user, monkeypatch)


async def begin(client: ControllerClient, model: str) -> Conversation:
    begun = await client.chats.begin(model)
    change = ChatChange(sampling=GREEDY)
    return (await client.chats.change(begun.conversation.id, change)).conversation


async def until(
    client: ControllerClient, chat: str, condition: Callable[[ChatState], object]
) -> ChatState:
    """The first state of a chat that fulfils a condition."""
    async with (
        asyncio.timeout(60),
        aclosing(client.chats.states("", chat=chat)) as all_,
    ):
        async for state in all_:
            if condition(state):
                return state
    raise AssertionError("the controller went away")


def reply(state: ChatState) -> Reply:
    return state.conversation.turns[-1].reply


def has_begun(state: ChatState) -> bool:
    return bool(state.conversation.turns) and len(reply(state).text) > 8


def has_ended(state: ChatState) -> bool:
    return bool(state.conversation.turns) and reply(state).done


def kept(user: User, chat: str, text: str) -> bool:
    """Tell if the disk has that of the newest answer."""
    file = user.home / "state/dllm-tui/chats" / f"{chat}.json"
    turns = json.loads(file.read_bytes())["conversation"].get("turns")
    newest = turns[-1]["replies"][-1] if turns else {}
    return str(newest.get("text", "")).startswith(text)


async def whole_answer(client: ControllerClient, model: str) -> str:
    chat = await begin(client, model)
    count = await client.chats.count(chat.id, QUESTION)
    await client.chats.ask(chat.id, QUESTION, turns=0)
    state = await until(client, chat.id, has_ended)
    assert reply(state).finish_reason == "stop"
    timings = reply(state).timings
    assert timings is not None
    assert count == PromptCount(tokens=timings.prompt_tokens, ctx_size=1024)
    assert timings.tok_per_s > 1
    assert [part.device for part in reply(state).layers] == [
        "worker1/CPU",
        "worker2/CPU",
    ]
    return reply(state).text


@once_and_often
async def test_an_answer_survives_any_end_of_its_console(
    user: User, client: ControllerClient, demo_model: str, kills: int
) -> None:
    """SIGHUP is what a dropped terminal is to it."""
    whole = await whole_answer(client, demo_model)
    signals = (signal.SIGHUP, signal.SIGKILL, signal.SIGTERM)
    for number in range(kills):
        chat = await begin(client, demo_model)
        with Terminal(user) as terminal:
            await asyncio.to_thread(terminal.wait_for, b"Ask something")
            await client.set_lab(None, Lab(latency_ms=HELD_MS))
            terminal.type(f"{QUESTION}\r")
            state = await until(client, chat.id, has_begun)
            assert not reply(state).done
            await asyncio.sleep(random.uniform(0.0, 0.5))
            terminal.process.send_signal(signals[number % len(signals)])
            await client.set_lab(None, Lab(latency_ms=LATENCY_MS))
            state = await until(client, chat.id, has_ended)
        assert reply(state).text == whole
        assert [turn.question for turn in state.conversation.turns] == [QUESTION]
        kept = (await client.chats.get(chat.id)).conversation
        assert kept == state.conversation
    with Terminal(user) as terminal:
        await asyncio.to_thread(terminal.wait_for, whole[:20].encode())


@once_and_often
async def test_a_killed_controller_keeps_the_question_and_what_came(
    user: User, client: ControllerClient, demo_model: str, kills: int
) -> None:
    whole = await whole_answer(client, demo_model)
    for _ in range(kills):
        chat = await begin(client, demo_model)
        await client.chats.ask(chat.id, QUESTION, turns=0)
        seen = await until(client, chat.id, has_begun)
        # What was seen is written a moment later.
        written = functools.partial(kept, user, chat.id, reply(seen).text)
        await asyncio.to_thread(wait_until, written, "what was seen on the disk")
        await asyncio.sleep(random.uniform(0.0, 0.3))
        before = await client.snapshot()
        await kill_controller(client)
        after = await settled(client, before.generation)
        assert after.state is ClusterState.SERVING
        state = await client.chats.get(chat.id)
        assert state.answering is None
        assert reply(state).text.startswith(reply(seen).text)
        assert whole.startswith(reply(state).text)
        assert reply(state).finish_reason in ("interrupted", "stop")
        turns = len(state.conversation.turns)
        assert turns == 1
        await client.chats.ask(chat.id, None, turns=turns, again=0)
        again = await until(client, chat.id, has_ended)
        assert reply(again).text == whole
        assert len(again.conversation.turns[0].replies) == 2


async def test_an_answer_goes_on_after_a_kill_of_the_gateway(
    client: ControllerClient, demo_model: str
) -> None:
    whole = await whole_answer(client, demo_model)
    chat = await begin(client, demo_model)
    processes = (await client.snapshot()).processes
    (pid,) = [one.pid for one in processes if one.name == "api-gateway" and one.pid]
    await client.chats.ask(chat.id, QUESTION, turns=0)
    seen = await until(client, chat.id, has_begun)
    assert not has_ended(seen)
    os.kill(pid, signal.SIGKILL)
    state = await until(client, chat.id, has_ended)
    assert reply(state).text == whole
    assert reply(state).finish_reason == "stop"


def test_chats_from_the_command_line(user: User, demo_model: str) -> None:
    sky = ("chat", "--conversation", "sky", "--temperature", "0")
    first = user.json(*sky, QUESTION)
    assert first["text"]
    assert user.run(*sky, "And then?").stdout.strip()
    (found,) = [c for c in user.json("chats", "list")["chats"] if c["name"] == "sky"]
    assert found["turns"] == 2
    shown = user.run("chats", "show", "sky").stdout
    assert first["text"].strip() in shown
    assert "worker1 6 | worker2 7" in shown
    again = user.json(*sky, "--again", "1", "What is a layer?")
    assert again["text"] != first["text"]
    assert "in other words" in user.run("chats", "show", "sky").stdout
    assert "1 question followed" in user.run("chats", "show", "sky").stdout
    user.run("chats", "pick", "sky", "1", "1")
    assert "And then?" in user.run("chats", "show", "sky").stdout
    assert "There is no question 9" in user.run(*sky, "--again", "9", code=2).stderr
    nobody = ("chat", "--conversation", "nobody", "--again", "1")
    assert "There is no chat" in user.run(*nobody, code=1).stderr
    file = user.home / "sky.json"
    user.run("chats", "export", "sky", str(file))
    assert "exists" in user.run("chats", "export", "sky", str(file), code=2).stderr
    user.run("chats", "rename", "sky", "blue")
    assert "There is no chat" in user.run("chats", "show", "sky", code=1).stderr
    assert "--yes" in user.run("chats", "delete", "blue", code=2).stderr
    user.run("chats", "delete", "blue", "--yes")
    assert user.run("chats", "show", "blue", code=1).stderr
