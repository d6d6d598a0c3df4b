"""``dllm-tui peers``: add, look, install, forget; and what each failure says."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.engine.conftest import wait_for
from tests.hosts.user import CACHE_THERE, MODEL, answer, engine_folder, prepared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.hosts.network import Network
    from tests.hosts.user import HeadUser


def test_a_new_peer_is_looked_at_and_settings_keep_what_the_user_wrote(
    network: Network, user: HeadUser
) -> None:
    file = user.home / "config" / "dllm-tui" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("# mine\nctx_size = 2048 # enough\n")
    peer = user.json("peers", "add", "ada")
    assert peer["state"] == "no engine"
    assert "peers setup ada" in peer["note"]
    assert peer["facts"]["os"] == "Linux"
    assert peer["rtt_ms"] is not None
    wait_for(lambda: not network.peer("ada").processes(), "nothing is left behind")
    text = file.read_text()
    assert text.startswith("# mine\nctx_size = 2048 # enough\n")
    assert '[peers.ada]\nssh = "ada"' in text
    user.run("peers", "remove", "ada")
    assert file.read_text().strip() == "# mine\nctx_size = 2048 # enough"
    # What cannot be added says what to do.
    nowhere = user.run("peers", "add", "no-such-host.invalid", code=1)
    assert "no-such-host.invalid" in nowhere.stderr
    again = user.run("peers", "add", "no-such-host.invalid", code=1)
    assert "already" in again.stderr
    user.run("peers", "add", "-oProxyCommand=x", code=2)
    user.run("peers", "add", "root@ada", "--name", "local", code=2)
    user.run("peers", "remove", "nobody", code=1)


def test_provisioning_twice_is_instant_and_can_be_undone(
    network: Network, user: HeadUser
) -> None:
    prepared(user, "ada")
    peer = user.json("peers", "provision", "ada")
    assert peer["state"] == "ready"
    facts = peer["facts"]
    assert facts["hostname"] == "ada"
    assert 0 < facts["performance_cores"] <= facts["cores"]
    assert facts["memory_bytes"] > 1 << 30
    assert facts["disk_free_bytes"] > 0
    engine = facts["engines"][0]
    assert engine["source"] == "provisioned"
    assert network.peer("ada").inside(engine["server_path"]).exists()
    freed = user.json("peers", "clean", "ada")["freed_bytes"]
    assert freed > 1 << 20
    assert not network.peer("ada").inside(engine["server_path"]).exists()
    (left,) = user.json("peers", "list")
    assert left["state"] == "no engine"


def test_an_unknown_host_is_not_trusted_in_silence_nor_a_changed_one_at_all(
    network: Network, user: HeadUser
) -> None:
    # A command that fails ends the controller that was started for it.
    user.run("peers", "list")
    network.known_hosts.write_text("")
    refused = user.run("peers", "add", "ada", code=1)
    fingerprint = network.peer("ada").fingerprint
    assert fingerprint in refused.stderr
    # Nor is there work for it.
    refused = user.run("peers", "provision", "ada", code=1)
    assert "The host key of ada" in refused.stderr
    assert "--accept-host-key" in refused.stderr
    user.run("peers", "remove", "ada")
    wrong = "SHA256:" + "A" * 43
    no = user.run("peers", "add", "ada", "--accept-host-key", wrong, code=1)
    assert fingerprint in no.stderr
    assert network.known_hosts.read_text() == ""
    refused = user.run("peers", "add", "ada", code=1)
    assert f"--accept-host-key {fingerprint}" in refused.stderr
    user.run("peers", "add", "ada", "--accept-host-key", fingerprint)
    assert network.known_hosts.read_text() != ""
    user.run("peers", "remove", "ada")
    network.peer("ada").new_host_key()
    refused = user.run("peers", "add", "ada", code=1)
    assert "ssh-keygen -R" in refused.stderr
    (peer,) = user.json("peers", "list")
    assert peer["state"] == "unreachable"
    assert peer["question"] is None


@pytest.mark.trial
def test_a_question_is_dropped_when_ssh_itself_was_used(
    network: Network, user: HeadUser
) -> None:
    network.known_hosts.write_text("")
    user.run("peers", "add", "ada", code=1)
    network.write_ssh_config()
    (peer,) = user.json("peers", "probe", "ada")
    assert peer["state"] == "no engine"
    assert peer["question"] is None


@contextlib.contextmanager
def only_an_agent_has_the_key(network: Network, user: HeadUser) -> Iterator[str]:
    """Give the agent's socket, and start a controller that is older than the agent."""
    # A command that fails ends the controller that was started for it.
    user.run("peers", "list")
    key = network.make_key("kept")
    public = key.with_name("kept.pub").read_text().strip()
    network.peer("ada").authorize(public)
    network.write_ssh_config(identity=key)
    agent = network.home / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(agent)], stdout=-3)
    try:
        env = {**user.env, "SSH_AUTH_SOCK": str(agent)}
        add = ["ssh-add", "-q", str(key)]
        wait_for(
            lambda: subprocess.run(add, env=env).returncode == 0,
            "the agent takes the key",
        )
        key.unlink()
        yield str(agent)
    finally:
        process.terminate()
        process.wait()


def test_an_agent_younger_than_the_controller_is_used(
    network: Network, user: HeadUser
) -> None:
    with only_an_agent_has_the_key(network, user) as agent:
        refused = user.run("peers", "add", "ada", code=1)
        assert "refuses to let root in" in refused.stderr
        assert "Added ada, but it cannot be reached: " in refused.stderr
        user.env["SSH_AUTH_SOCK"] = agent
        (peer,) = user.json("peers", "probe", "ada")
        assert peer["state"] == "no engine"


@pytest.mark.trial
def test_a_try_that_began_before_the_agent_came_is_not_the_last(
    network: Network, user: HeadUser
) -> None:
    ada = network.peer("ada")
    with only_an_agent_has_the_key(network, user) as agent:
        user.run("peers", "add", "ada", code=1)
        with ada.frozen_sshd():
            wait_for(ada.greeted, "the next try")
            user.env["SSH_AUTH_SOCK"] = agent
            probe = user.start("peers", "probe", "ada", "--json")
            wait_for(lambda: agent in user.controller_log, "the controller is told")
        out, err = probe.communicate(timeout=180)
    assert err == ""
    (peer,) = json.loads(out)
    assert peer["state"] == "no engine"


@pytest.mark.trial
def test_another_protocol_is_refused_before_anything_starts(
    network: Network, user: HeadUser
) -> None:
    prepared(user, "ada")
    peer = network.peer("ada")
    folder = engine_folder(peer)
    engines = [p for p in (user.cache / "dllm-tui" / "engines").iterdir() if p.is_dir()]
    other = next(p for p in engines if p.name.startswith("8."))
    shutil.rmtree(folder)
    shutil.copytree(other, folder.with_name(other.name))
    (seen,) = user.json("peers", "probe", "ada")
    assert seen["state"] == "mismatch"
    assert "RPC 8.0.0" in seen["note"]
    assert "peers setup ada" in seen["note"]
    refused = user.run("up", "--model", MODEL, "--peer", "ada", "--detach", code=1)
    assert "RPC 8.0.0" in refused.stderr
    wait_for(lambda: not network.peer("ada").processes(), "nothing runs there")
    doctor = user.run("doctor")
    assert "ada (8.0.0) cannot work for local (7.0.0)" in doctor.stdout
    user.run("peers", "provision", "ada")
    user.run("up", "--model", MODEL, "--peer", "ada", "--detach")
    assert answer(user)


@pytest.mark.trial
def test_a_bare_worker_on_another_machine(network: Network, user: HeadUser) -> None:
    """Somebody started it by hand; we only know where it listens."""
    prepared(user, "ada")
    ada = network.peer("ada")
    worker = f"{CACHE_THERE}/engines/{engine_folder(ada).name}/ggml-rpc-server"
    user.run("peers", "remove", "ada")
    ada.run(
        [
            *("sh", "-c"),
            f"setsid {worker} -H 0.0.0.0 -p 50052 -d CPU >/dev/null 2>&1 </dev/null &",
        ]
    )
    wait_for(lambda: "50052" in " ".join(ada.listening()), "it listens")
    box = user.json("peers", "add", "box", "--bare", f"{ada.address}:50052")
    assert box["state"] == "ready"
    assert box["devices"][0]["free_bytes"] > 1 << 30
    user.run("up", "--model", MODEL, "--peer", "box", "--detach")
    assert answer(user)
    (link,) = wait_for(
        lambda: [k for k in user.status()["links"] if k["protocol"]], "it is metered"
    )
    assert link["mode"] == "metered"
    user.run("stop")
    assert ada.processes(), "it is not ours to stop"
    ada.kill_processes()
    gone = user.run("peers", "probe", "box", code=1)
    assert "connection refused" in gone.stderr
