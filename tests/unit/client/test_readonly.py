"""Where one only watches: every call that acts is refused before it is sent."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import click
import pytest

from backends.client.calls import ControllerConnection
from backends.client.client import ControllerClient
from backends.client.http import ASKING, ClientFacts, ReadOnly, require_allowed
from backends.config import set_value
from backends.controller.chat.store import ChatStore
from backends.demo import MODEL_PATH
from backends.paths import Paths, user_paths
from backends.split.layout import make_split
from backends.state import (
    Ask,
    ChatChange,
    ChatRequest,
    Conversation,
    Lab,
    PeerAnswer,
    Plan,
    QuestionKind,
    Reply,
    Turn,
)
from backends.state.races import Contestant, RaceRequest
from tests.kit.processes import processes_of
from tests.unit.clicked import commands
from tests.unit.client.test_commands import command
from tui.api.services import ChatService, ClusterService


def public(seam: type) -> list[str]:
    return [name for name in vars(seam) if not name.startswith("_")]


WATCHING = {
    *("snapshots", "propose", "inspect", "catalogue", "read_log", "events", "memory"),
    *("removal", "passes", "peers_to_pick", "probe_peer", "chat", "names_after"),
    *("speeds", "best", "found_workers", "pairing_outcome", "usages", "why"),
    "joined_peer",
    # Talking changes nothing of the cluster; a chat that is deleted is lost.
    *(f"chats.{name}" for name in public(ChatService) if name != "delete"),
}
"""Calls of the seam that change nothing; a new one belongs here or is refused."""
NOT_SENT = {"cluster", "use", "chats"}
PLAN = Plan(model="m.gguf", split=make_split(1, ["a/CPU"], [2]))
MADE_UP: dict[str, Any] = {
    "ask": Ask(model="m.gguf"),
    "model": "m.gguf",
    "plan": PLAN,
    "path": "m.gguf",
    "source": "pypi:m",
    "name": "mini",
    "new": "box",
    "life_s": 60.0,
    "invitation": "0",
    "machine": "mini",
    "offset": 0,
    "worker": None,
    "place": "10.0.0.7:50080",
    "digits": "123456",
    "agrees": True,
    "lab": Lab(latency_ms=5),
    "answer": PeerAnswer(kind=QuestionKind.PASSWORD, text="x"),
    "request": ChatRequest(messages=()),
    "chat": "0",
    "question": "Why?",
    "turns": 0,
    "change": ChatChange(name="Sky"),
    "asked": RaceRequest(contestants=(Contestant(name="a"), Contestant(name="b"))),
}


class Sent(Exception):
    """A request would have left."""


@pytest.fixture
def watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Only watch; what is sent all the same is noticed."""

    async def running(self: ControllerConnection) -> bool:
        return True

    async def start(self: ControllerConnection) -> Path:
        raise Sent

    monkeypatch.setattr(ControllerConnection, "running", running)
    monkeypatch.setattr(ControllerConnection, "start", start)
    token = ASKING.set(ClientFacts(program="console", readonly=True))
    yield
    ASKING.reset(token)


def calls() -> list[str]:
    return [*public(ClusterService), *(f"chats.{name}" for name in public(ChatService))]


async def asked(client: ControllerClient, name: str) -> None:
    """Make a call, with made-up arguments where it must have some."""
    method = attrgetter(name)(client)
    needed = [
        p.name
        for p in inspect.signature(method).parameters.values()
        if p.default is inspect.Parameter.empty
    ]
    result = method(**{argument: MADE_UP[argument] for argument in needed})
    if isinstance(result, AsyncIterator):
        async for _ in result:
            break
    else:
        await result


async def test_every_call_of_the_seam(paths: Paths, watching: None) -> None:
    client = ControllerClient(paths)
    for name in sorted(set(calls()) - NOT_SENT):
        with pytest.raises((Sent, ReadOnly)) as raised:
            await asked(client, name)
        assert raised.type is (Sent if name in WATCHING else ReadOnly), name


def test_the_seam_has_calls_that_act() -> None:
    assert {"launch", "stop", "set_lab", "add_peer"} <= set(calls()) - WATCHING


def test_what_is_not_known_is_refused(watching: None) -> None:
    for method, target in (
        ("DELETE", "/v1/chats/x"),
        ("POST", "/v1/peers/x/probe/../clean"),
        ("POST", "/v1/anything-new?cluster=chat"),
        ("PUT", "/v1/propose"),
    ):
        with pytest.raises(ReadOnly):
            require_allowed(method, target)


# --- commands -----------------------------------------------------------------


WATCHES = {
    *(
        "chat",
        "completion",
        "doctor",
        "events",
        "logs",
        "plan",
        "status",
        "trace",
        "replay",
    ),
    *("config show", "config check", "config paths", "engine show", "links list"),
    *("models list", "models verify", "models show", "models drafts"),
    *(
        "models cache list",
        "peers list",
        "peers show",
        "peers discover",
        "service status",
    ),
    *("worker list", "worker status", "worker service status", "relay service status"),
    *("plans list", "plans launches", "plans show", "plans diff"),
    *("chats list", "chats show", "chats export", "keys list"),
    *("processes list", "processes show", "why", "share"),
}
"""Commands that change nothing; a new one belongs here or is refused."""


def test_every_command_is_known_to_watch_or_refuses(watching: None) -> None:
    found = dict(commands())
    assert {name for name, leaf in found.items() if leaf.watches} == WATCHES
    for name, leaf in found.items():
        if name not in WATCHES:
            context = click.Context(leaf, info_name=f"dllm-tui {name}")
            with pytest.raises(ReadOnly, match=f"dllm-tui {name} is refused"):
                leaf.invoke(context)
    assert {"up", "down", "demo", "links slow", "engine build", "config edit"} <= {
        *found
    }


def test_commands_by_option_variable_and_setting(paths: Paths, home: Path) -> None:
    refused = command("--readonly", "down")
    assert refused.code == 2
    assert "dllm-tui down is refused: read-only" in refused.err
    assert command("--readonly", "status").code == 0
    for args in (
        *("chats list", "chats show sky", "peers list", f"models drafts {MODEL_PATH}"),
        "models cache list --peer local",
    ):
        refused = command("--readonly", *args.split())
        assert refused.code == 1, args
        said = "Nothing is running here, and read-only starts nothing"
        assert said in refused.err, args
    assert processes_of(home) == []
    assert not ASKING.get().readonly, "the option outlives no command"
    set_value(user_paths(), "readonly", True)
    assert "is refused" in command("peers", "add", "mini").err
    assert command("status").code == 0


def test_chats_are_read_by_who_only_watches(paths: Paths) -> None:
    client = ControllerClient(paths)
    turns = (
        Turn(question="Hello?", replies=(Reply(text="You!", finish_reason="stop"),)),
    )
    chat = Conversation(id="1", cluster="default", name="sky", turns=turns)
    ChatStore(paths.chats_dir).save(chat)
    asyncio.run(client.start())
    assert "sky" in command("--readonly", "chats", "list").out
    assert "You!" in command("--readonly", "chats", "show", "sky").out
    file = paths.state_dir / "sky.md"
    done = command("--readonly", "chats", "export", "sky", str(file))
    assert done.code == 0
    assert "You!" in file.read_text()
    for acting in ("rename sky blue", "pick sky 1 1", "delete sky --yes"):
        refused = command("--readonly", "chats", *acting.split())
        assert (refused.code, "is refused" in refused.err) == (2, True), acting
    (kept,) = asyncio.run(client.chats.listing()).chats
    assert kept.name == "sky"
