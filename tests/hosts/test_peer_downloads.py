"""Peers get models themselves over a real network and sshd: whole, or some layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backends.demo import MODEL_PATH
from backends.models.layers import read_model
from tests.engine.conftest import COMMAND_S, wait_for
from tests.hosts.user import answer, prepared
from tests.unit.models.ggufs import LLAMA, llama_tensors, write_gguf
from tests.unit.models.hub import Hub

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.hosts.network import Network
    from tests.hosts.user import HeadUser

NAME = "m-Q4_0.gguf"
TOKEN = "hf_secret_of_this_test"


@pytest.fixture
def hub(network: Network, tmp_path: Path) -> Iterator[Hub]:
    """A hub on the network of the peers."""
    params = LLAMA | {"block_count": 12}
    content = write_gguf(tmp_path / NAME, params, llama_tensors(12)).read_bytes()
    with Hub({NAME: content}, address=network.address).served_aside() as one:
        yield one


def command_lines() -> str:
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(process.read_bytes().decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)


def test_two_peers_download_at_once_and_the_token_is_in_no_command_line(
    network: Network, user: HeadUser, hub: Hub
) -> None:
    network.write_ssh_config()
    user.env |= {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}
    for name in ("ada", "bob"):
        user.run("peers", "add", name)
    hub.hold_after = 1 << 16
    getting = user.start(
        *("models", "get", "owner/name:Q4_0", "--peer", "ada", "--peer", "bob"),
    )
    both = [network.peer(name) for name in ("ada", "bob")]

    def all_download() -> bool:
        # Of this machine's other processes some may be other tests' downloads.
        return all(any(p.startswith("curl -K -") for p in b.left()) for b in both)

    wait_for(all_download, "both download at once")
    assert TOKEN not in command_lines()
    hub.release()
    out, err = getting.communicate(timeout=COMMAND_S)
    assert getting.returncode == 0, err
    assert out.count("by itself from") == 2
    assert out.count("SHA-256") == 2
    for peer in both:
        there = peer.home / ".models" / NAME
        assert there.read_bytes() == hub.files[NAME]
    files = zip(hub.tokens, hub.paths, strict=True)
    asked = {token for (_, token), path in files if path.endswith(".gguf")}
    assert asked == {f"Bearer {TOKEN}"}


@pytest.mark.trial
def test_a_peer_gets_only_some_layers(
    network: Network, user: HeadUser, hub: Hub
) -> None:
    network.write_ssh_config()
    user.env["HF_ENDPOINT"] = hub.url
    user.run("peers", "add", "ada")
    (got,) = user.json(
        *("models", "get", "owner/name:Q4_0", "--peer", "ada", "--layers", "4-6")
    )
    there = network.peer("ada").home / ".models" / "m-Q4_0.layers-4-6.gguf"
    assert got["path"].endswith(there.name)
    sparse = read_model(there).sparse
    assert sparse is not None
    assert sparse.layers == (4, 5, 6)
    assert got["size_bytes"] == there.stat().st_size < len(hub.files[NAME]) // 3


BY_HAND = ("--layers", "6-11,output")


@pytest.mark.parametrize(
    "which",
    [("--only-its-share",), pytest.param(BY_HAND, marks=pytest.mark.trial)],
)
def test_a_worker_with_its_layers_is_sent_no_weights(
    network: Network, user: HeadUser, hub: Hub, which: tuple[str, ...]
) -> None:
    prepared(user, "ada")
    content = MODEL_PATH.read_bytes()
    hub.files = {"demo-Q8_0.gguf": content}
    user.env["HF_ENDPOINT"] = hub.url
    source = ("models", "get", "owner/name:Q8_0")
    here, there = user.json(*source, "--peer", "local", "--peer", "ada", *which)
    assert there["size_bytes"] < len(content)
    by_hand = () if which == ("--only-its-share",) else ("--split", "6,7")
    up = ("up", "--model", here["path"], "--peer", "ada", *by_hand, "--detach")
    user.run(*up)
    wait_for(lambda: user.status()["links"][0]["weight_bytes_home"], "weights told")
    (link,) = user.status()["links"]
    assert link["weight_bytes_sent"] == 0
    assert link["wire_bytes_up"] < there["size_bytes"] / 10
    assert answer(user)
