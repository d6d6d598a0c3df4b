"""Bundles for bug reports: what names a person or a machine is not in them."""

from __future__ import annotations

import json
import secrets
import tarfile
from pathlib import Path

import pytest

from backends.client.client import ControllerClient
from backends.config import PeerConfig, put_peer
from backends.controller.event_log import EventFiles, EventLog
from backends.doctor.bundle import Scrubber, write_bundle
from backends.doctor.check import Check
from backends.gateway.keys import KeyFile
from backends.paths import Paths
from backends.state import Actor, EventKind

SCRUBBER = Scrubber(["ada", "studio.example.org", "studio"], ["grace"], ["secret-plan"])


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        (
            "ada is slow, ADA too; adage is not",
            "peer1 is slow, peer1 too; adage is not",
        ),
        ("grace@studio.example.org:22", "<user>:22"),
        ("worker-ada on studio", "worker-peer1 on peer3"),
        ("/home/grace/m.gguf /Users/x/y /root/z", "~/m.gguf ~/y ~/z"),
        ("10.0.0.7:50052 then 10.0.0.8 and 10.0.0.7", "ip1:50052 then ip2 and ip1"),
        ("http://127.0.0.1:8090", "http://127.0.0.1:8090"),
        ("fe80::1:2 at 12:34:56", "ip1 at 12:34:56"),
        ("02:00:00:aB:00:0f", "<mac>"),
        ("Authorization: Bearer abcdef123", "Authorization: Bearer <key>"),
        ("api_key = 'hunter22'", "api_key = <key>'"),
        ("secret-plan/worker1", "cluster1/worker1"),
        (
            "https://u:p@mirror.acme.example:8443/b1/x and http://localhost:1/",
            "https://host1/b1/x and http://localhost:1/",
        ),
        ("https://cdn.hf.co/a", "https://cdn.hf.co/a"),
        ("version 0.5.0 (build 11549)", "version 0.5.0 (build 11549)"),
        (
            "Qwen3-30B-A3B-Instruct-2507-UD-Q4_K_XL",
            "Qwen3-30B-A3B-Instruct-2507-UD-Q4_K_XL",
        ),
    ],
)
def test_a_text_is_scrubbed(text: str, scrubbed: str) -> None:
    fresh = Scrubber(
        ["ada", "studio.example.org", "studio"], ["grace"], ["secret-plan"]
    )
    assert fresh.text(text) == scrubbed


def test_the_home_of_the_user_is_scrubbed_wherever_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/srv/data/home")
    text = Scrubber((), ()).text("/srv/data/home/.local/x in /srv/data/homely")
    assert text == "~/.local/x in /srv/data/homely"


def test_keys_are_scrubbed() -> None:
    for key in (secrets.token_hex(32), f"sk-{secrets.token_urlsafe(24)}"):
        assert key not in SCRUBBER.text(f"the key {key} was used")
    fingerprint = "SHA256:qpS0mIgepxd0Ozp4d5xrB+Z5KukvNY20Q/+yw1h9mis"
    assert "qpS0mIg" not in SCRUBBER.text(f"key {fingerprint} refused")


def test_what_people_wrote_is_left_out() -> None:
    value = {
        "messages": [{"role": "user", "content": "my prompt"}],
        "argv": ["llama-server", "-p", "my prompt", "--api-key", "k", "-c", "512"],
        "failure": {"process": "llama-server", "log_tail": ["my prompt"]},
        "ada": ["ada"],
    }
    found = json.dumps(SCRUBBER.value(value))
    assert "my prompt" not in found
    assert '"-c", "512"' in found
    assert '"peer1": ["peer1"]' in found


def text_of(bundle: Path) -> str:
    """All files of a bundle."""
    with tarfile.open(bundle) as archive:
        files = map(archive.extractfile, archive)
        return "\n".join(file.read().decode() for file in files if file)


PEERS = "[peers.ada]\nssh = 'studio'\n"
RACK = """[peers.rack]\nssh = "hopper@lab"\ndata = 'lace.example.org:40001'\n"""
OTHER = "[peers]\nada = { 'ssh' = 'hopper@studio' }\nrack.ssh = 'me@lab'\n"


@pytest.mark.parametrize(
    "settings",
    [f"ctx_size = 'long'\n{PEERS}{RACK}", f"][\n{PEERS}{RACK}", OTHER],
    ids=["wrong", "broken", "other forms"],
)
async def test_settings_of_any_form_keep_names_out(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    monkeypatch.setenv("DLLM_ENGINE_URL", "https://mirror.acme.example/llama.cpp")
    monkeypatch.setenv("HF_ENDPOINT", "https://huggingface.co")
    monkeypatch.setenv("HTTPS_PROXY", "proxy.corp.example:3128")
    paths.config_file.parent.mkdir(parents=True)
    paths.config_file.write_text(settings)
    paths.controller_log.parent.mkdir(parents=True)
    paths.controller_log.write_text(
        "mirror.acme.example failed, proxy.corp.example refused huggingface.co\n"
    )
    target = tmp_path / "report.tar.gz"
    await write_bundle(paths, [Check(name="peer ada", detail="rack, lab")], target)
    text = text_of(target)
    planted = ("ada", "studio", "rack", "hopper", "lab", "lace", "acme", "corp")
    assert [word for word in (*planted, "example.org") if word in text] == []
    assert "refused huggingface.co" in text


async def test_nothing_planted_is_in_the_file(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "grace")
    put_peer(paths, "ada", PeerConfig(ssh="hopper@studio.example.org:2222"))
    put_peer(paths, "rack", PeerConfig(bare="192.168.7.31:50052"))
    places = "curie.example.net:50080 10.9.8.7:50080"
    put_peer(paths, "mill", PeerConfig(worker=places, host_key="ssh-ed25519 AAAA"))
    key, secret = "kitchen-tablet", secrets.token_hex(32)
    made = KeyFile(paths.keys_file).add(key)
    log = EventLog(EventFiles(paths.events_dir))
    who = Actor(user="turing", host="lovelace", program="console")
    log.tell(EventKind.ENGINE, f"told {secret} to ada", by=who, cluster="my-plan")
    log.close()
    prompt = "how do I bake a cake"
    chat = paths.chats_dir / "1.json"
    chat.parent.mkdir(parents=True, exist_ok=True)
    chat.write_text(prompt)
    paths.controller_log.write_text(
        f"hopper@studio.example.org refused {secret}\n/home/grace/x at 192.168.7.31\n"
    )
    check = Check(name="peer ada", detail="ada at 10.1.2.3 (lovelace)")
    target = tmp_path / "report.tar.gz"
    await write_bundle(paths, [check], target)
    assert not await ControllerClient(paths).running(), "it starts none"
    with tarfile.open(target) as archive:
        names = archive.getnames()
        texts = [f.read().decode() for n in names if (f := archive.extractfile(n))]
    whole = "\n".join([*names, *texts])
    planted = (
        *("curie", "example.net", "mill", "10.9.8.7"),
        *("ada", "rack", "studio", "example.org", "hopper", "grace", "lovelace"),
        *("turing", "my-plan"),
        *("192.168.7.31", "10.1.2.3", "/home/", secret, prompt, key, str(made)),
    )
    assert [word for word in planted if word in whole] == []
    assert "peer1" in whole
    assert {"dllm-doctor/checks.json", "dllm-doctor/controller.log"} <= set(names)
    assert target.stat().st_mode & 0o077 == 0
