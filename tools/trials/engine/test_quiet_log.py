"""Prompts and answers are in the chats alone, and our questions do not fill the log."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

import pytest

from tests.engine.conftest import User, wait_for
from tests.native.stock import engine

pytestmark = pytest.mark.engine

WORDS = ("zebraquux", "mirabelle")
IDLE_S = 6.0
LINES_MAX = 2
"""One look at the slots and the counters; there is one in half a minute."""


def configure(user: User, version: str) -> None:
    config = user.home / "config" / "dllm-tui" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'engine = "{engine(version)}"\n')


def ask(user: User, *options: str) -> str:
    asked = f"{WORDS[0]}: what is a layer?"
    return str(user.json("chat", asked, "--temperature", "0", *options)["text"])


def stream(url: str, word: str) -> str:
    """An answer as any OpenAI client gets it, piece by piece."""
    body = {
        "messages": [{"role": "user", "content": f"{word}: what is a split?"}],
        "max_tokens": 40,
        "temperature": 0,
        "stream": True,
    }
    asked = urllib.request.Request(
        f"{url}/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        lines = [line.removeprefix(b"data: ") for line in answer if line.strip()]
    pieces = [json.loads(line)["choices"] for line in lines if line[:1] == b"{"]
    return "".join(p[0]["delta"].get("content") or "" for p in pieces if p)


def holding(folder: Path, words: list[bytes]) -> list[tuple[Path, bytes]]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    texts = [(file, file.read_bytes()) for file in files]
    return [(file, word) for file, text in texts for word in words if word in text]


def count_lines(folder: Path) -> int:
    return sum(log.read_bytes().count(b"\n") for log in folder.rglob("*log*"))


@pytest.mark.trial
@pytest.mark.parametrize(
    ("version", "launch"),
    [
        ("7.0.0", ("--workers", "2")),
        # Without a relay that tells of movement.
        ("8.0.0", ("--workers", "0")),
    ],
)
def test_nothing_is_kept_and_idle_logs_are_short(
    user: User, demo_model: str, version: str, launch: tuple[str, ...]
) -> None:
    configure(user, version)
    up = user.json("up", "--model", demo_model, "--detach", *launch)
    assert up["engine"]["rpc_protocol"] == version
    state = user.home / "state"
    answers = [
        ask(user, "--conversation", "kept"),
        ask(user),
        stream(up["api_url"], WORDS[1]),
    ]
    assert all(len(answer) > 40 for answer in answers)
    words = [*map(str.encode, WORDS), *(answer[:24].encode() for answer in answers)]
    wait_for(lambda: not user.status()["speed"]["requests_active"], "idle")
    # What the answers left to be asked is asked within a look or two.
    time.sleep(3)
    before = count_lines(state)
    assert before > 100
    time.sleep(IDLE_S)
    assert count_lines(state) - before <= LINES_MAX
    kept = user.home / "state" / "dllm-tui" / "chats"
    assert {file.parent for file, _ in holding(state, words)} == {kept}
    user.run("chats", "delete", "kept", "--yes")
    assert holding(state, words) == []


@pytest.mark.trial
def test_without_relays_all_is_kept_and_told_so(user: User, demo_model: str) -> None:
    asked = ("--model", demo_model, "--workers", "2", "--relay", "off")
    sentence = "it keeps every prompt and every answer"
    assert sentence in user.run("plan", *asked).stdout
    assert sentence in user.run("up", *asked, "--detach").stderr
    state = user.home / "state"
    words = {WORDS[0].encode()}
    # A prompt is printed when the next request comes.
    for _ in range(2):
        words.add(ask(user).encode())
    found = wait_for(lambda: holding(state, [*words]), "it is in the log")
    assert {word for _, word in found} == words
