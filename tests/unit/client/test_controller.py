"""A real controller, without engine: found, lost, frozen, replaced, asked badly."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from aiohttp import web

from backends.client import start
from backends.client.calls import RequestFailed
from backends.client.client import ControllerClient
from backends.client.http import ASKING, ClientFacts
from backends.client.start import answers, ensure_running, is_busy
from backends.config import PeerConfig, put_peer
from backends.controller.http_server import Listening
from backends.controller.lock import lock_holder
from backends.demo import MODEL_PATH
from backends.errors import ControllerError
from backends.paths import Paths, user_paths
from backends.planning.proposal import local_workers
from backends.split.layout import make_split
from backends.state import API_VERSION, Ask, ClusterState, Plan, ServerSettings
from backends.tasks import forever
from tests.kit.forking import ForkingPopen
from tests.kit.processes import processes_of
from tests.kit.waiting import until
from tests.unit.client.conftest import controllers_of, new_home


@pytest.fixture(scope="module")
def standing() -> Iterator[Paths]:
    """One controller for all tests that leave it as it was."""
    with pytest.MonkeyPatch.context() as patch, new_home(patch):
        if sys.platform == "linux":
            patch.setattr(subprocess, "Popen", ForkingPopen)
        client = ControllerClient(paths := user_paths())
        asyncio.run(client.start())
        assert client.started_controller
        yield paths


@pytest.fixture
def client(standing: Paths) -> ControllerClient:
    return ControllerClient(standing)


async def raw(paths: Paths, request: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(paths.socket))
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(65536), 60)
    writer.close()
    return answer


def post(target: str, body: bytes) -> bytes:
    head = f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def test_what_follows_changed_settings_finds_them_taken(
    client: ControllerClient, standing: Paths
) -> None:
    for name in ("box", "attic"):
        put_peer(standing, name, PeerConfig(bare="127.0.0.1:9"))
        await client.settings_taken()
        assert (await client.peers())[-1].name == name
    standing.config_file.write_text("workers = 0\n")
    with pytest.raises(RequestFailed, match="workers cannot be 0"):
        await client.settings_taken()
    standing.config_file.write_text("")
    await client.settings_taken()
    assert "box" not in [peer.name for peer in await client.peers()]


async def test_a_controller_that_does_not_take_settings_is_waited_for_no_longer(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ControllerClient(paths)
    await client.settings_taken()
    assert not client.started_controller

    async def always() -> bool:
        return True

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(client, "running", always)
    monkeypatch.setattr(client, "_post", never)
    monkeypatch.setattr("backends.client.client.SETTINGS_S", 0.01)
    with pytest.raises(ControllerError, match="did not answer within"):
        await client.settings_taken()


async def test_one_started_too_late_does_not_stay(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another's answers while ours begins: it would take over when that one dies."""
    real = start._spawn
    late: list[subprocess.Popen[bytes]] = []

    def two(paths: Paths) -> subprocess.Popen[bytes]:
        real(paths)
        late.append(subprocess.Popen(["sleep", "600"]))
        return late[0]

    monkeypatch.setattr(start, "_spawn", two)
    found = await ensure_running(paths)
    assert not found.started
    assert late[0].poll() == -signal.SIGKILL
    holder = lock_holder(paths.lock)
    assert holder
    assert psutil.pid_exists(holder.pid)


async def test_a_socket_that_vanished_is_made_anew(
    client: ControllerClient, standing: Paths
) -> None:
    """The next question is answered by the same controller, and there is no other."""
    pid = (await client.snapshot()).controller_pid
    holder = lock_holder(standing.lock)
    assert holder is not None
    assert (holder.api, holder.pid) == (API_VERSION, pid)
    assert holder.socket == str(standing.socket)
    assert standing.lock.parent == standing.state_dir
    for is_all_gone in (False, True):
        standing.socket.unlink()
        if is_all_gone:
            shutil.rmtree(standing.runtime_dir)
        assert (await ControllerClient(standing).snapshot()).controller_pid == pid
        assert standing.socket.stat().st_mode & 0o777 == 0o600
        assert standing.runtime_dir.stat().st_mode & 0o777 == 0o700
    assert len(controllers_of(standing.state_dir.parent)) == 1


async def test_a_session_with_another_runtime_directory_finds_it(
    client: ControllerClient, standing: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = (await client.snapshot()).controller_pid
    other = standing.state_dir / "other"
    other.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))
    assert (await ControllerClient().snapshot()).controller_pid == pid
    assert len(controllers_of(standing.state_dir.parent)) == 1


async def test_frozen_ones_are_named(client: ControllerClient, standing: Paths) -> None:
    pid = (await client.snapshot()).controller_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.MonkeyPatch.context() as hasty:
            hasty.setattr(client._connection, "_silence_s", 0.3)
            await until(lambda: not is_busy(standing), "it is halted")
            silent = f"pid {pid}.*silent.*kill -CONT {pid}"
            with pytest.raises(ControllerError, match=silent):
                await client.snapshot()
            with pytest.raises(ControllerError, match="silent"):
                await client.stop()
            with pytest.raises(ControllerError, match="silent"):
                await anext(client.snapshots())
    finally:
        os.kill(pid, signal.SIGCONT)
    await until(lambda: is_busy(standing), "it runs")
    assert (await client.snapshot()).controller_pid == pid


async def test_a_quiet_stream_is_no_silent_one(standing: Paths) -> None:
    client = ControllerClient(standing, silence_s=3.0)
    began = asyncio.get_running_loop().time()
    stream = client.snapshots()
    first = await anext(stream)
    seqs = [first.seq]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(4):
            async for snapshot in stream:
                seqs.append(snapshot.seq)  # noqa: PERF401 -- ends by its time
    assert seqs == sorted(set(seqs))
    assert asyncio.get_running_loop().time() - began > 3.9


BAD_REQUESTS = {
    "cut": (post("/v1/launch", b"{"), b"400"),
    "not text": (post("/v1/launch", b"\xff\xfe"), b"400"),
    "not a plan": (post("/v1/launch", b'{"plan": 7}'), b"400"),
    "a list": (post("/v1/propose", b"[]"), b"400"),
    "offset": (b"GET /v1/logs/x?offset=abc HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
    "cluster": (b"GET /v1/usage?cluster=a%20b HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
    "big": (post("/v1/propose", b" " * (2 << 20)), b"413"),
    "path": (b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
    "junk": (b"no http at all\r\n\r\n", b"400"),
}


async def test_bad_requests_get_a_sentence(
    client: ControllerClient, standing: Paths
) -> None:
    for name, (request, status) in BAD_REQUESTS.items():
        answer = await raw(standing, request)
        assert answer.split()[1] == status, name
        assert b"Traceback" not in answer, name
    assert "Traceback" not in standing.controller_log.read_text()
    # Names with slashes and spaces arrive.
    with pytest.raises(RequestFailed, match="a b/c"):
        await client.remove_peer("a b/c")
    with pytest.raises(RequestFailed, match="no NUL character") as refused:
        await client.inspect("/models/a\0b.gguf")
    assert refused.value.value.what


async def test_broken_settings_are_told_and_stop_no_stopping(paths: Paths) -> None:
    paths.config_dir.mkdir(parents=True)
    paths.config_file.write_text("api_port = [")
    client = ControllerClient(paths)
    async with asyncio.timeout(60), aclosing(client.snapshots()) as snapshots:
        async for snapshot in snapshots:
            if "config.toml is not valid" in snapshot.message:
                break
    await client.stop()
    await client.shutdown()
    assert not await client.running()


async def test_what_somebody_did_is_told_with_who_it_was(
    paths: Paths, home: Path
) -> None:
    """The kernel says which process asked; the events outlive the controller."""
    client = ControllerClient(paths)
    await client.tell_built("built llama.cpp 7")
    assert not await client.running()
    await client.start()
    await client.tell_built("built llama.cpp 8")
    token = ASKING.set(ClientFacts(program="console"))
    try:
        await client.add_peer("bare", bare="127.0.0.1:1")
        await client.remove_peer("bare")
    finally:
        ASKING.reset(token)
    events = await client.events()
    assert [(event.number, event.text) for event in events] == [
        (1, "built llama.cpp 7"),
        (2, "built llama.cpp 8"),
        (3, "added the peer bare (127.0.0.1:1)"),
        (4, "removed the peer bare"),
    ]
    added, removed = events[2:]
    assert added.by.program == "console"
    assert added.by.pid == os.getpid()
    assert added.by.user == psutil.Process().username()
    assert added.by.host
    assert (await client.snapshot()).last_event == removed.number
    assert await client.events(after=added.number) == (removed,)
    await client.shutdown()
    assert await client.events() == events
    assert not await client.running(), "looking at them starts no controller"
    await until(lambda: not processes_of(home), "the end of the controller")


async def test_a_state_folder_that_cannot_be_written_is_told(paths: Paths) -> None:
    (paths.state_dir / "controller.err").mkdir(parents=True)
    with pytest.raises(ControllerError, match=r"cannot start: .*controller\.err"):
        await ensure_running(paths)


async def test_who_gives_up_waiting_ends_no_controller_that_another_uses(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began to listen just before that one was interrupted."""
    client = ControllerClient(paths)
    real, up = start._up, asyncio.Event()

    async def slow(*given: Any) -> Any:
        await real(*given)
        up.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(start, "_up", slow)
    starting = asyncio.create_task(ensure_running(paths))
    await up.wait()
    monkeypatch.setattr(start, "_up", real)
    async with aclosing(client.snapshots()) as snapshots:
        before = await anext(snapshots)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await asyncio.sleep(0.3)
        after = await client.snapshot()
    assert after.controller_pid == before.controller_pid


async def test_a_thousand_at_once_are_all_let_in(paths: Paths) -> None:
    """Also while the controller has not come to accept any of them."""
    socket_file = paths.runtime_dir / "s"
    async with Listening(web.Application(), socket_file):
        knocks = [socket.socket(socket.AF_UNIX) for _ in range(1000)]
        try:
            for knock in knocks:
                knock.setblocking(False)
                knock.connect(str(socket_file))
        finally:
            for knock in knocks:
                knock.close()


# --- A controller of another release: an older one is replaced, a newer one named ---

OTHER_RELEASE = """
import sys
import backends.controller.__main__ as controller
controller.API_VERSION = int(sys.argv[1])
sys.exit(controller.main())
"""


async def started(paths: Paths, api: int) -> subprocess.Popen[bytes]:
    """A controller of another release, listening."""
    paths.runtime_dir.mkdir(mode=0o700, exist_ok=True)
    # It outlives this call; the fixture ends what is left.
    process = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, "-c", OTHER_RELEASE, str(api)]
    )
    async with asyncio.timeout(60):
        while not await answers(paths.socket):  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.02)
    return process


async def test_who_is_no_controller_is_named(home: Path, paths: Paths) -> None:
    paths.runtime_dir.mkdir(mode=0o700, exist_ok=True)
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.UnixSite(runner, str(paths.socket)).start()
    with pytest.raises(ControllerError, match=r"sock does not say of which release"):
        await ControllerClient(paths).snapshot()
    await runner.cleanup()


async def test_newer_ones_are_left_alone_and_named(home: Path, paths: Paths) -> None:
    new = await started(paths, API_VERSION + 1)
    with pytest.raises(ControllerError, match=f"newer dllm-tui .*pid {new.pid}"):
        await ControllerClient(paths).snapshot()
    assert new.poll() is None


async def test_an_older_one_is_replaced_once_unless_one_only_watches(
    home: Path, paths: Paths
) -> None:
    old = await started(paths, API_VERSION - 1)
    token = ASKING.set(ClientFacts(readonly=True))
    with pytest.raises(ControllerError, match="of an older dllm-tui, and where you"):
        await ControllerClient(paths).snapshot()
    ASKING.reset(token)
    assert old.poll() is None
    snapshots = await asyncio.gather(
        *(ControllerClient(paths).snapshot() for _ in range(4))
    )
    assert await asyncio.to_thread(old.wait, 5) == 0
    (pid,) = {snapshot.controller_pid for snapshot in snapshots}
    assert pid != old.pid
    holder = lock_holder(paths.lock)
    assert holder is not None
    assert (holder.pid, holder.api) == (pid, API_VERSION)


# --- Its end -----------------------------------------------------------------------

SLOW_SEARCH = """
import asyncio, sys, threading
from pathlib import Path
import backends.controller.__main__ as controller
from backends.machines import local_inventory
from backends.machines.agent import AgentSession
from backends.state import EngineInfo, EngineSource

program = str(Path(sys.executable).resolve())
closed, spawned = threading.Event(), asyncio.Event()

def search(*asked):
    Path(sys.argv[1]).touch()
    closed.wait(60)
    return EngineInfo(
        directory="/", source=EngineSource.PATH, server_path=program,
        worker_path=program,
    )

async def close(self):
    await close_agent(self)
    spawned.clear()
    closed.set()
    try:
        async with asyncio.timeout(1):
            await spawned.wait()
    except TimeoutError:
        pass

def spawn(*argv, **options):
    spawned.set()
    return create(*argv, **options)

async def look_for_none(self):
    pass

create, asyncio.create_subprocess_exec = asyncio.create_subprocess_exec, spawn
close_agent, AgentSession.close = AgentSession.close, close
local_inventory.find_engine = search
controller.Clusters.look_for_engine = look_for_none
sys.exit(controller.main())
"""


async def test_it_ends_though_a_request_goes_on(home: Path, paths: Paths) -> None:
    """The request needs the agent again when that was ended: none is started."""
    began = home / "began"
    # The fixture ends what is left.
    process = await asyncio.to_thread(
        subprocess.Popen, [sys.executable, "-c", SLOW_SEARCH, str(began)]
    )
    await until(paths.socket.exists)
    asking = asyncio.ensure_future(
        ControllerClient(paths).prepare(Ask(model=str(MODEL_PATH)))
    )
    await until(began.exists)
    asking.cancel()
    process.terminate()
    assert await asyncio.to_thread(process.wait, 20) == 0


async def test_who_gives_up_twice_leaves_no_controller(
    home: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    @contextlib.asynccontextmanager
    async def silent(*_: object) -> AsyncIterator[None]:
        asked.set()
        yield await forever()

    monkeypatch.setattr(start, "request", silent)
    starting = asyncio.create_task(ensure_running(paths))
    await until(lambda: controllers_of(home))
    starting.cancel()
    await asked.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: not controllers_of(home))


# --- A plan that nobody proposed is held to what a proposed one keeps to ---

DEVICES = ("local/CPU", "worker1/CPU", "worker2/CPU")
PLAN = Plan(
    model=str(MODEL_PATH),
    split=make_split(12, DEVICES, (0, 6, 7)),
    workers=local_workers(2, 1, 2),
    ctx_size=512,
)
ELSEWHERE = make_split(12, ("local/CPU", "worker1/CPU", "mini/MTL0"), (0, 6, 7))


async def test_it_is_refused_before_anything_is_touched(
    client: ControllerClient,
) -> None:
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"ctx_size": -5}, "context of -5"),
        ({"ctx_size": 10**9}, "too large"),
        ({"api_port": 70_000}, "70000 as port"),
        ({"workers": local_workers(17, 1, 2)}, "17 workers cannot be started"),
        ({"workers": local_workers(2, 5000, 2)}, "5000 threads"),
        ({"server": ServerSettings(slots=0)}, "0 slots"),
        ({"server": ServerSettings(cache_type_k="q9")}, "no KV cache type q9"),
        ({"extra_args": ("--port", "9")}, "the plan decides it"),
        ({"extra_args": ("-md", "draft.gguf")}, "not a whole path"),
        ({"extra_args": ("-np", "4")}, "hold a setting"),
        ({"split": make_split(11, DEVICES, (0, 6, 6))}, "the model has 12"),
        ({"split": ELSEWHERE}, "no device mini/MTL0"),
    )
    for changes, why in wrong:
        plan = msgspec.structs.replace(PLAN, **changes)
        with pytest.raises(RequestFailed, match=why):
            await client.launch(plan)
    with pytest.raises(RequestFailed, match="no device mini/MTL0"):
        await client.prepare(msgspec.structs.replace(PLAN, split=ELSEWHERE))
    snapshot = await client.snapshot()
    assert snapshot.state is ClusterState.IDLE
    assert snapshot.plan is None
