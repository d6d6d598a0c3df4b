"""``--draft auto`` over SSH: it tries, chooses and goes on serving.

The head is another machine, as its worker is; with ``DLLM_DRAFTS=all`` also this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backends.demo import MODEL_PATH
from tests.engine.test_drafts import EVERYTHING, settled
from tests.hosts.test_models_elsewhere import put
from tests.hosts.user import answer, prepared

if TYPE_CHECKING:
    from tests.hosts.network import Network
    from tests.hosts.user import HeadUser

HEADS = ["ada", "local"] if EVERYTHING else ["ada"]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.trial
def test_auto_over_ssh(network: Network, user: HeadUser, head: str) -> None:
    prepared(user, "ada", "bob")
    there = head != "local"
    model = f"{head}:{put(network, MODEL_PATH)}" if there else str(MODEL_PATH)
    up = ("up", "--model", model, "--peer", "bob", "--detach")
    user.run(*up, "--draft", "auto", "--threads", "1")
    plainly = answer(user)

    status = settled(user)
    now = status["draft_now"]
    assert status["plan"]["head"] == head
    assert {one["draft"] for one in now["trials"]} == {"none", "ngram"}
    assert all(one["tok_per_s"] > 0 and one["speedup"] for one in now["trials"])
    (server,) = (p for p in status["processes"] if p["name"] == "llama-server")
    assert server["peer"] == head
    assert ("--spec-type" in server["argv"]) == (now["draft"] == "ngram")
    assert [link["mode"] for link in status["links"]] == ["pair"]
    assert answer(user) == plainly
