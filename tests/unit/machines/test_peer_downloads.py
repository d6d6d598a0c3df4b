"""A peer gets a model: itself or from another machine, whole or some layers of it."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path

import pytest
from aiohttp import web
from gguf import GGUFReader
from msgspec.structs import replace

from backends.errors import ModelError, PlanError
from backends.gateway.listen_settings import server_context
from backends.machines import peer_downloads
from backends.machines.machine import stand_ins
from backends.machines.peer_downloads import (
    Addresses,
    ByItself,
    FromHere,
    FromHub,
    FromPeer,
    Wanted,
    Way,
    deliver_model,
    whole_files,
)
from backends.machines.shell import WrongFile
from backends.models.layer_file import Run, has_layers_of, layer_files
from backends.models.layers import read_model
from backends.planning.checking import check_holes
from backends.split.layout import make_split
from backends.state import ModelFile, PeerWork, Plan
from backends.state.models import Delivered, RemoteFile, RemoteModel
from tests.kit.local_peer import LocalShell
from tests.unit.gateway.test_listen_settings import certify
from tests.unit.models.ggufs import LLAMA, llama_tensors, write_gguf
from tests.unit.models.hub import Hub

NAME = "m-Q4_0.gguf"
N_LAYER = 12


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A model of 0.4 MiB, no two bytes of which are the same by plan."""
    file = tmp_path_factory.mktemp("m") / NAME
    tensors = {
        name: ((128, 64) if len(shape) == 2 else shape, kind)
        for name, (shape, kind) in llama_tensors(N_LAYER).items()
    }
    write_gguf(file, LLAMA | {"block_count": N_LAYER}, tensors)
    header = GGUFReader(file).tensors[0].data_offset
    body = random.Random(2).randbytes(file.stat().st_size - header)
    return file.read_bytes()[:header] + body


@pytest.fixture
async def hub(content: bytes) -> AsyncIterator[Hub]:
    one = Hub({NAME: content})
    async with one.served():
        yield one


@pytest.fixture
def model(content: bytes, tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    file = tmp_path / "here" / NAME
    file.write_bytes(content)
    return file


@pytest.fixture
def there(home: Path) -> Path:
    return home / ".models" / NAME


def read(path: Path) -> bytes:
    return path.read_bytes()


def is_there(path: Path) -> bool:
    return path.exists()


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(data)


def whole(content: bytes, sha256: str = "") -> Wanted:
    sha256 = sha256 or hashlib.sha256(content).hexdigest()
    return Wanted(NAME, b"", (Run(0, len(content), 0),), sha256)


def some_layers(model: Path, layers: str) -> Wanted:
    (file,) = layer_files(model, layers)
    return Wanted(file.name, file.header, file.runs)


class Peer:
    """One peer, and the hub as it is told of it."""

    def __init__(self, shell: LocalShell, hub: Hub, works: list[PeerWork]) -> None:
        self.shell = shell
        self.hub = hub
        self.works = works
        self.token = ""
        self.renewals = 0
        self.addresses = Addresses(self.remote(), self.ask)

    def remote(self) -> RemoteModel:
        file = RemoteFile(
            name=NAME,
            size_bytes=len(self.hub.files[NAME]),
            url=f"{self.hub.url}/cdn/{NAME}",
            token=self.token,
        )
        return RemoteModel(
            source="owner/name:Q4_0", quant="Q4_0", size_bytes=1, files=(file,)
        )

    async def ask(self) -> RemoteModel:
        self.renewals += 1
        return self.remote()

    async def gets(self, wanted: Wanted, *ways: Way) -> Delivered:
        return await deliver_model(
            self.shell,
            [wanted],
            ways or [ByItself(self.addresses)],
            report=self.works.append,
            renew=self.addresses.renew,
        )


@pytest.fixture
def peer(shell: LocalShell, hub: Hub, works: list[PeerWork]) -> Peer:
    return Peer(shell, hub, works)


async def test_a_peer_downloads_itself(peer: Peer, content: bytes, there: Path) -> None:
    got = await peer.gets(whole(content))
    assert read(there) == content
    assert (got.path, got.verified_by) == (str(there), "SHA-256")
    assert got.how.startswith(f"by itself from {peer.hub.url[7:]} ")
    assert [path.name for path in there.parent.iterdir()] == [NAME]
    served = peer.hub.served_bytes
    assert (await peer.gets(whole(content))).how == "there already"
    assert peer.hub.served_bytes == served


async def test_the_token_reaches_the_host_that_it_is_for(
    peer: Peer, content: bytes
) -> None:
    peer.token = 'hf_"secret"\\'
    await peer.addresses.renew()
    await peer.gets(whole(content))
    assert peer.hub.tokens[-1][1] == 'Bearer hf_"secret"\\'
    assert not any("hf_" in script for script in peer.shell.scripts)
    assert not any("hf_" in str(work) for work in peer.works)


@pytest.mark.parametrize("tenth", [1, 9])
async def test_a_download_goes_on_where_it_was_cut(
    peer: Peer, content: bytes, there: Path, tenth: int
) -> None:
    peer.hub.cut_after = cut = len(content) * tenth // 10
    await peer.gets(whole(content))
    assert read(there) == content
    last = len(content) - 1
    first, second = peer.hub.ranges
    assert first == f"bytes=0-{last}"
    # A reset connection may take the last bytes with it.
    assert 0 < int(second.removeprefix("bytes=").partition("-")[0]) <= cut


async def cancelled_half_way(
    peer: Peer, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_downloads, "CHUNK_BYTES_MAX", 1 << 16)
    peer.hub.hold_after = len(content) // 2
    running = asyncio.create_task(peer.gets(whole(content)))
    while not any(work.progress for work in peer.works):
        await asyncio.wait([running], timeout=0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    peer.hub.hold_after = None
    peer.hub.go.set()


async def test_a_cancelled_download_goes_on(
    peer: Peer, content: bytes, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cancelled_half_way(peer, content, monkeypatch)
    assert not is_there(there)
    await peer.gets(whole(content), FromHub(peer.addresses))
    assert read(there) == content
    assert not peer.hub.ranges[-1].startswith("bytes=0-")


async def test_where_curl_fails_it_goes_through_this_machine(
    peer: Peer, content: bytes, there: Path
) -> None:
    peer.shell.program("curl", "no route", 7)
    ways = ByItself(peer.addresses), FromHub(peer.addresses)
    got = await peer.gets(whole(content), *ways)
    assert read(there) == content
    assert "through this machine" in got.how
    assert peer.renewals == 1


async def test_a_hub_is_trusted_by_the_certificates_of_this_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = certify(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", access.certificate)
    peer_downloads._trusted.cache_clear()

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(status=206, body=b"data")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    sealed = server_context(access.certificate, access.private_key)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=sealed).start()
    url = f"https://localhost:{runner.addresses[0][1]}/{NAME}"
    file = RemoteFile(name=NAME, size_bytes=4, url=url)
    model = RemoteModel(source="", quant="", size_bytes=4, files=(file,))
    way = FromHub(Addresses(model, NotImplemented))
    assert [piece async for piece in way.read(0, 0, 4)] == [b"data"]
    await runner.cleanup()
    peer_downloads._trusted.cache_clear()


async def test_no_way_is_one_sentence(peer: Peer, content: bytes) -> None:
    peer.hub.status = 403
    with pytest.raises(ModelError, match=r"by itself from .*: HTTP 403"):
        await peer.gets(whole(content))


@pytest.mark.parametrize("kind", [ByItself, FromHub])
async def test_the_page_of_a_gate_is_not_taken_for_the_file(
    peer: Peer, content: bytes, there: Path, kind: type[ByItself | FromHub]
) -> None:
    """Also of a file whose hash nobody knows."""
    unknown = whole(content)._replace(sha256="")
    peer.hub.page = True
    with pytest.raises(ModelError, match="a web page came in place of the file"):
        await peer.gets(unknown, kind(peer.addresses))
    peer.hub.page = False
    await peer.gets(unknown, kind(peer.addresses))
    assert read(there) == content


async def test_damaged_bytes_are_removed(
    peer: Peer, content: bytes, there: Path
) -> None:
    with pytest.raises(WrongFile, match="arrived changed"):
        await peer.gets(whole(content, "0" * 64))
    assert list(there.parent.iterdir()) == []


async def test_another_file_of_that_name_is_left_alone(
    peer: Peer, content: bytes, there: Path
) -> None:
    put(there, b"precious")
    with pytest.raises(WrongFile, match="Another file"):
        await peer.gets(whole(content))
    assert read(there) == b"precious"


class Slow(FromHere):
    """A slow way."""

    label = "from a slow machine"

    async def read(
        self, index: int, at: int, length: int
    ) -> AsyncGenerator[bytes, None]:
        async for chunk in super().read(index, at, min(length, 1 << 16)):
            await asyncio.sleep(0.2)
            yield chunk


def test_a_half_copy_is_of_one_version(content: bytes) -> None:
    """Also where no hash tells versions apart."""
    first, second = (
        whole(content)._replace(sha256="", origin=origin) for origin in ("a", "b")
    )
    assert first.key != second.key
    assert first._replace(header=b"h").key != second._replace(header=b"h").key


async def test_it_says_how_a_file_that_was_there_was_compared(
    peer: Peer, content: bytes, there: Path, model: Path
) -> None:
    put(there, content)
    (known,) = whole_files([model])
    got = await peer.gets(known, FromHere([model]))
    assert got.verified_by == "length and samples alone: it was there already"
    unknown = whole(content)._replace(sha256="")
    assert (await peer.gets(unknown)).verified_by == "unverified: length alone"


async def test_a_read_of_a_file_there_ends_though_we_are_cancelled() -> None:
    ended = asyncio.Event()

    class Slowly:
        read_len = 0

        async def read(self, length: int, _: int) -> bytes:
            await asyncio.sleep(0.01)
            ended.set()
            return bytes(length)

    reading = asyncio.create_task(peer_downloads._piece(Slowly(), 0, 4))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert ended.is_set()


async def test_every_way_is_tried_and_the_fastest_taken(
    peer: Peer,
    content: bytes,
    there: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_downloads, "TRIED_FROM_BYTES", 0)
    monkeypatch.setattr(peer_downloads, "TRIAL_S", 0.1)
    ways: Sequence[Way] = (Slow([model]), FromHere([model]))
    got = await peer.gets(whole(content), *ways)
    assert read(there) == content
    assert got.how.startswith("from this machine ")
    assert "(from a slow machine 0." in got.how
    assert any("trying it from a slow machine" in work.detail for work in peer.works)


async def test_from_another_peer_it_goes_through_this_machine(
    peer: Peer, content: bytes, there: Path, model: Path, tmp_path: Path
) -> None:
    other = LocalShell(tmp_path)
    other.name = "nuc"
    got = await peer.gets(whole(content), FromPeer(other, [str(model)]))
    assert read(there) == content
    assert got.how.startswith("from nuc through this machine")


# --- some layers ---------------------------------------------------------------------


@pytest.mark.parametrize("layers", ["0,3,11", "9-11,output"])
async def test_only_its_layers_cross(
    peer: Peer, content: bytes, model: Path, there: Path, layers: str
) -> None:
    wanted = some_layers(model, layers)
    got = await peer.gets(wanted)
    file = Path(got.path)
    assert file.parent == there.parent
    assert got.verified_by.startswith("unverified")
    runs = sum(run.length for run in wanted.runs)
    assert peer.hub.served_bytes == runs < len(content) // 2
    theirs = {t.name: t for t in GGUFReader(model).tensors}
    ours = {t.name: t for t in GGUFReader(file).tensors}
    info = read_model(file)
    assert info.sparse is not None
    kept = {f"blk.{index}." for index in info.sparse.layers}
    assert {name[: name.index(".", 4) + 1] for name in ours if "blk" in name} == kept
    for name, tensor in ours.items():
        assert tensor.data.tobytes() == theirs[name].data.tobytes()
        assert tensor.shape.tolist() == theirs[name].shape.tolist()


async def test_layers_from_here_are_hashed(
    peer: Peer, model: Path, content: bytes
) -> None:
    (file,) = layer_files(model, "2-5")
    runs = [content[run.source_at :][: run.length] for run in file.runs]
    sha256 = hashlib.sha256(file.header + b"".join(runs)).hexdigest()
    wanted = Wanted(file.name, file.header, file.runs, sha256)
    got = await peer.gets(wanted, FromHere([model]))
    assert got.verified_by == "SHA-256"
    assert has_layers_of(Path(got.path).name, NAME)
    assert read_model(got.path).sparse.layers == (2, 3, 4, 5)  # type: ignore[union-attr]


def test_a_worker_finds_its_layers_and_no_head_takes_them(
    model: Path, tmp_path: Path
) -> None:
    (file,) = layer_files(model, "4-6")
    made = tmp_path / file.name
    body = model.read_bytes()
    runs = [body[run.source_at :][: run.length] for run in file.runs]
    made.write_bytes(file.header + b"".join(runs))
    info = read_model(made)
    assert info.sparse is not None
    found = [
        ModelFile(path=f"/m/{name}", name=name, size_bytes=1, source="models")
        for name in (made.name, "other.layers-4-6.gguf")
    ]
    sparse = replace(info.sparse, source=str(model), identity="1-1-ab")
    assert stand_ins(sparse, "/here/head.gguf", found) == (f"/m/{made.name}",)
    split = make_split(N_LAYER, ["local/CPU"], [N_LAYER + 1])
    with pytest.raises(PlanError, match=r"has some layers of m-Q4_0\.gguf"):
        check_holes(Plan(model=info.path, split=split), info)
