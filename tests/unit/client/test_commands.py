"""Commands on a scripted controller: who won, what was left, what it exits with."""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import pty
import signal
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from backends.client.client import ControllerClient, NoSuchChat, find_chat
from backends.demo import MODEL_PATH
from backends.errors import ControllerError, UsageError
from backends.paths import Paths
from backends.state import (
    ChatBrief,
    ChatListing,
    ClusterState,
    Failure,
    KnownMachine,
    Leftover,
    Peer,
    PeerState,
    ProcessInfo,
    ProcessRole,
    ProcessState,
    Transport,
)
from tests.kit.processes import processes_of
from tests.kit.waiting import PATIENCE_S, until
from tests.unit.client.conftest import controllers_of
from tests.unit.client.scripted import ScriptedController, serving
from tui.cli.command import PROGRAM
from tui.cli.main import cli, guarded

UP = ("up", str(MODEL_PATH), "--detach")
RUN = "import sys; from tui.cli.main import main; main()"


class Done(NamedTuple):
    code: int
    out: str
    err: str


async def begun(*args: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN, *args, stdout=pipe, stderr=pipe, stdin=-3
    )


async def done(process: asyncio.subprocess.Process) -> Done:
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    assert b"Traceback" not in err, err.decode()
    return Done(process.returncode or 0, out.decode(), err.decode())


def command(*args: str) -> Done:
    """One in this process, which spares the start of another."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = guarded(lambda: cli([*args], standalone_mode=False, prog_name=PROGRAM))
    assert "Traceback" not in err.getvalue()
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture
def controller(paths: Paths) -> Iterator[ScriptedController]:
    controller = ScriptedController()
    with serving(controller, paths):
        yield controller


def process(name: str, peer: str = "local", **changes: Any) -> ProcessInfo:
    role = ProcessRole.SERVER if name == "llama-server" else ProcessRole.WORKER
    state = changes.pop("state", ProcessState.RUNNING)
    return ProcessInfo(name=name, role=role, peer=peer, state=state, pid=7, **changes)


async def test_one_of_two_launches_wins_and_the_other_is_told(
    controller: ScriptedController,
) -> None:
    ups = [await begun(*UP, "--context", str(ctx)) for ctx in (1024, 2048)]
    first, second = sorted(await asyncio.gather(*map(done, ups)))
    assert (first.code, second.code) == (0, 1)
    assert "Serving" in first.err
    assert "Serving" not in second.err
    assert "came first" in second.err or "already running" in second.err
    assert len([a for a in controller.asked if a.startswith("launch")]) == 1


async def test_whoever_is_replaced_while_loading_does_not_tell_of_the_winner(
    controller: ScriptedController,
) -> None:
    first = await begun(*UP, "--context", "1024")
    await until(lambda: controller.asked)
    controller.now["default"] = controller.snapshot("default")
    plan = controller.now["default"].plan
    assert plan is not None
    controller.show(generation=9, state=ClusterState.SERVING, api_url="http://x/v1")
    told = await done(first)
    assert told.code == 1
    assert f"Another launch replaced this one: {plan.model}" in told.err


def test_same_plan_again_is_no_failure(controller: ScriptedController) -> None:
    assert command(*UP).code == 0
    again = command(*UP, "--replace")
    assert again.code == 0
    assert "already running" in again.err
    assert len([a for a in controller.asked if a.startswith("launch")]) == 1
    other = command(*UP, "--replace", "--context", "512")
    assert other.code == 0
    assert controller.asked[-1] == "launch default 512"


async def test_a_foreground_launch_ends_its_own(controller: ScriptedController) -> None:
    ours = await begun(*UP[:-1])
    await until(lambda: controller.snapshot("default").state is ClusterState.SERVING)
    controller.show(generation=7)
    ours.send_signal(signal.SIGINT)
    await done(ours)
    assert "stop default" not in controller.asked


def test_status_exits_with_1_for_a_failed_cluster(
    controller: ScriptedController,
) -> None:
    assert command("status").code == 0
    controller.show("second", state=ClusterState.SERVING)
    assert command("status").code == 0
    controller.show(state=ClusterState.FAILED, failure=Failure(what="It broke"))
    assert command("status").code == 1
    assert command("status", "--json").code == 1
    assert command("status", "--cluster", "second").code == 0
    controller.show(state=ClusterState.IDLE, failure=None)
    controller.show("second", state=ClusterState.FAILED)
    assert command("status").code == 1


def test_status_names_machines_layers_and_this_run_alone(
    controller: ScriptedController,
) -> None:
    command(*UP)
    gone = Peer(
        name="north",
        transport=Transport.SSH,
        state=PeerState.UNREACHABLE,
        since=1.0,
        note="no answer\x1b]0;mine\x07",
    )
    old = process("worker9", "north", state=ProcessState.EXITED)
    controller.show(peers=(gone,), processes=(process("llama-server"), old))
    controller.show("second", state=ClusterState.SERVING, api_url="http://s/v1")
    status = command("status")
    assert "0–5" in status.out
    assert "6–11 + output" in status.out
    assert "offline 99 d" in status.out
    assert "worker9" not in status.out
    assert "\x1b" not in status.out
    assert "cluster  second" in status.out
    other = command("status", "--cluster", "second", "--json")
    assert json.loads(other.out)["cluster"] == "second"


def test_stop_tells_what_it_stopped_and_what_it_could_not(
    controller: ScriptedController,
) -> None:
    running = (process("llama-server"), process("worker1", "north"))
    controller.show(processes=running, state=ClusterState.SERVING)
    controller.show(leftovers=(Leftover(name="worker1", peer="north", why="silent"),))
    stopped = command("down")
    assert stopped.code == 1
    assert "Stopped llama-server." in stopped.err
    assert "Cannot stop worker1 on north: silent." in stopped.err
    assert "shutdown 0" not in controller.asked, "it must see the machine come back"


def test_stop_leaves_other_clusters_alone(controller: ScriptedController) -> None:
    controller.show("default", state=ClusterState.SERVING)
    controller.show("second", state=ClusterState.SERVING)
    assert command("down").code == 0
    assert controller.asked == ["stop default"]
    controller.show("default", state=ClusterState.SERVING)
    assert command("down", "--all", "--json").code == 0
    assert controller.asked[1:] == ["stop default", "stop second", "shutdown 0"]


def test_a_trace_of_nothing_is_not_written(
    controller: ScriptedController, tmp_path: Path
) -> None:
    written = command("trace", str(tmp_path / "t.json"))
    assert written.code == 1
    assert "nothing runs" in written.err
    assert not (tmp_path / "t.json").exists()


async def test_what_another_release_says_is_told_in_a_sentence(
    controller: ScriptedController, paths: Paths
) -> None:
    client = ControllerClient(paths)
    said = r"not understood.*another release"
    for raw in (b'{"state":"levitating"}', b'{"seq":"x"}', b"[]", b"junk"):
        controller.raw = raw
        with pytest.raises(ControllerError, match=said):
            await client.snapshot()
        controller.raw = b'{"snapshot":' + raw + b"}"
        with pytest.raises(ControllerError, match=said):
            await anext(client.snapshots())
    controller.raw = b'{"changes":{}}'
    with pytest.raises(ControllerError, match=said):
        await anext(client.snapshots())


def test_without_terminal_option_is_named(controller: ScriptedController) -> None:
    """And the peer that then waits can be added again, with the option."""
    told = command("peers", "add", "mini")
    assert told.code == 1
    assert "? If it is, add it with --accept-host-key SHA256:abc" in told.err
    assert "\x1b" not in told.err
    again = command("peers", "add", "mini", "--accept-host-key", "SHA256:abc")
    assert again.code == 0
    assert controller.asked == ["add mini", "answer mini SHA256:abc"]


def test_a_known_machine_is_listed_and_added_by_its_name(
    controller: ScriptedController,
) -> None:
    """Its host key must be the one that the other console trusts."""
    right = KnownMachine(
        name="nuc",
        address="ada@10.0.0.8",
        told_by="mac",
        fingerprints=("SHA256:x", "SHA256:abc"),
    )
    controller.told = (right, KnownMachine(name="mini", address="mini"))
    (line,) = command("peers", "list").out.splitlines()[1:]
    assert line.split()[:2] == ["nuc", "known"]
    assert "told by mac: dllm-tui peers add nuc" in line
    added = command("peers", "add", "nuc")
    assert added.code == 0
    assert "ada@10.0.0.8" in added.out
    assert controller.asked == ["add nuc", "answer nuc SHA256:abc"]
    controller.peers.clear()
    controller.told = (msgspec.structs.replace(right, fingerprints=("SHA256:x",)),)
    wrong = command("peers", "add", "nuc")
    assert wrong.code == 1
    assert "Its host key is SHA256:abc, not SHA256:x" in wrong.err


@pytest.mark.parametrize("said", [b"n\n", b"\x03"], ids=["no", "ctrl-c"])
async def test_a_key_that_is_not_trusted_leaves_no_peer(
    controller: ScriptedController, said: bytes
) -> None:
    ours, theirs = pty.openpty()
    adding = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUN, "peers", "add", "mini"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=terminal_of_its_own,
    )
    os.close(theirs)
    seen = await asyncio.to_thread(read_until, ours, b"[y/N]")
    assert b"\x1b]0;" not in seen
    await asyncio.sleep(0.2)
    os.write(ours, said)
    async with asyncio.timeout(PATIENCE_S):
        assert await adding.wait() == 130
    os.close(ours)
    assert controller.asked == ["add mini", "remove mini"]


def terminal_of_its_own() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def read_until(descriptor: int, mark: bytes) -> bytes:
    seen = b""
    while mark not in seen:
        seen += os.read(descriptor, 1024)
    return seen


def test_a_controller_lists_models_and_tries_again_to_reach_a_peer(home: Path) -> None:
    """A real one: that was started for the first command."""
    assert command("peers", "-o", "name").out == ""
    listed = command("models")
    assert listed.code == 0
    (line,) = [one for one in listed.out.splitlines() if "dllm-demo" in one]
    assert line.split()[-5:] == ["12", "llama", "F16", "local", "-"], line
    found = json.loads(command("models", "--json").out)["models"]
    assert str(MODEL_PATH) in [model["path"] for model in found]
    (controller,) = controllers_of(home)
    added = command("peers", "add", "nobody.invalid", "--name", "x")
    assert added.code == 1
    assert "Added x, but it cannot be reached" in added.err
    time.sleep(1.0)
    assert controllers_of(home) == [controller]


def test_an_address_that_is_none_is_a_mistake_of_usage(home: Path) -> None:
    told = command("peers", "add", "x", "--bare", "127.0.0.1:99999")
    assert (told.code, told.out) == (2, "")
    assert "'127.0.0.1:99999' is no address of an rpc-server" in told.err


async def test_interrupted_launches_leave_nothing(home: Path, paths: Paths) -> None:
    up = await begun(*UP)
    # Without an engine it refuses by itself, on a busy machine before a look.
    await until(lambda: len(processes_of(home)) > 1 or up.returncode is not None)
    if up.returncode is None:
        up.send_signal(signal.SIGINT)
    await done(up)
    await until(lambda: not processes_of(home))


async def test_names_that_are_no_text_are_told(home: Path) -> None:
    name = os.fsdecode(os.fsencode(home) + b"/bad\xff.gguf")
    (home / "bad").write_bytes(b"GGUF")
    os.rename(home / "bad", name)
    for args in (("models", "show", name), ("up", name)):
        told = await done(await begun(*args))
        assert told.code in (1, 2)
        assert "dllm-tui: " in told.err
        assert not processes_of(home)


# --- Which chat is meant: by its id, its name or its first words ---


def brief(chat: str, title: str, name: str = "") -> ChatBrief:
    return ChatBrief(
        id=chat, cluster="default", model="m.gguf", title=name or title, name=name
    )


LISTING = ChatListing(
    chats=(
        brief("1-a", "Why is the sky blue?", name="Sky"),
        brief("2-b", "sky diving, how?"),
        brief("3-c", "Hello?", name="Twice"),
        brief("4-d", "Hello!", name="twice"),
        brief("5-e", "Grass", name="1-a"),
    )
)


@pytest.mark.parametrize(
    ("wanted", "chat"),
    [("1-a", "1-a"), (" SKY ", "1-a"), ("Sky  Diving", "2-b"), ("4-d", "4-d")],
)
def test_it_is_found(wanted: str, chat: str) -> None:
    assert find_chat(LISTING, wanted).id == chat


@pytest.mark.parametrize(("wanted", "ids"), [("twice", "3-c, 4-d")])
def test_of_several_an_id_is_asked_for(wanted: str, ids: str) -> None:
    with pytest.raises(UsageError, match="Several chats") as raised:
        find_chat(LISTING, wanted)
    assert ids in str(raised.value.hint)


@pytest.mark.parametrize("wanted", ["", " ", "grass", "Why"])
def test_there_is_none(wanted: str) -> None:
    with pytest.raises(NoSuchChat, match="There is no chat"):
        find_chat(LISTING, wanted)


def test_first_words_do_not_count_where_a_name_may_be_meant_for_a_new_one() -> None:
    assert find_chat(LISTING, "sky diving").id == "2-b"
    with pytest.raises(NoSuchChat):
        find_chat(LISTING, "sky diving", whole=True)
    assert find_chat(LISTING, "sky", whole=True).id == "1-a"
