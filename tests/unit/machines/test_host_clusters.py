"""Clusters in the run directory, what an earlier version left, foreign files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from backends.errors import HostError
from tests.unit.machines.processes import (
    exists,
    python,
    shell,
    spec,
    wait_ended,
)

if TYPE_CHECKING:
    from pathlib import Path

    from backends.machines.agent import AgentSession


async def test_names_are_those_of_a_cluster(host: AgentSession, run_dir: Path) -> None:
    one = await host.start(spec("one/w"))
    two = await host.start(spec("two/w"))
    assert one.log_path == str(run_dir / "one/w/log")
    assert [record.name for record in await host.records()] == ["one/w", "two/w"]
    await host.stop("one/w")
    assert not exists(one.pid)
    assert exists(two.pid)
    await host.remove("one/w")
    assert os.listdir(run_dir) == ["two"]


async def test_what_an_earlier_version_started_is_not_lost(host: AgentSession) -> None:
    """Straight below the run directory, without a cluster."""
    old = await host.start(spec("worker-a"))
    new = await host.start(spec("default/worker-a"))
    assert [(r.name, r.pid) for r in await host.records()] == [
        ("default/worker-a", new.pid),
        ("worker-a", old.pid),
    ]
    await host.stop("worker-a")
    await host.remove("worker-a")
    assert [r.name for r in host.seen] == ["default/worker-a"]
    assert exists(new.pid)


async def test_a_process_is_no_cluster(host: AgentSession) -> None:
    await host.start(spec("a"))
    await host.start(spec("b/c"))
    with pytest.raises(HostError, match="a is a process, not a cluster"):
        await host.start(spec("a/b"))
    with pytest.raises(HostError, match=r"b did not start .*it holds 'c'"):
        await host.start(spec("b"))
    with pytest.raises(HostError, match=r"b cannot be deleted \(it holds c\)"):
        await host.remove("b")
    assert [r.name for r in await host.records()] == ["a", "b/c"]


async def test_foreign_files_stay(host: AgentSession, run_dir: Path) -> None:
    """A slip must never delete what is not ours."""
    await host.start(spec("default/w", argv=("true",)))
    await wait_ended(host, "default/w")
    (run_dir / "default/w/thesis.txt").write_text("years of work")
    (run_dir / "default/w/photos").mkdir()
    with pytest.raises(HostError, match=r"it holds photos, thesis\.txt"):
        await host.remove("default/w")
    assert sorted(os.listdir(run_dir / "default/w")) == ["photos", "thesis.txt"]
    assert await host.record("default/w") is None


async def test_a_link_is_not_followed_to_be_deleted(
    host: AgentSession, run_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text("not ours")
    os.makedirs(run_dir / "p")
    (run_dir / "p/log").symlink_to(tmp_path / "log")
    await host.remove("p")
    assert (tmp_path / "log").read_text() == "not ours"


async def test_bytes_in_arguments_arrive(host: AgentSession) -> None:
    """A file name need not be text."""
    code = "import os, sys; print(os.fsencode(sys.argv[1]).hex())"
    await host.start(spec(argv=python(code, "a\udcff\udc80é")))
    await wait_ended(host)
    assert (await host.read_log("p", 0, 100)).text == "61ff80c3a9\n"


async def test_asking_a_program(host: AgentSession) -> None:
    outcome = await host.run(shell('echo "$A"; exit 3'), env={"A": "b c"})
    assert (outcome.code, outcome.stdout, outcome.timed_out) == (3, "b c\n", False)
    late = await host.run(("sleep", "600"), timeout_s=0.1)
    assert (late.timed_out, late.code) == (True, None)
    with pytest.raises(HostError, match="cannot execute '/no/such'"):
        await host.run(("/no/such",))


async def test_memory_of_processes(host: AgentSession) -> None:
    started = await host.start(spec())
    found = await host.rss_bytes([started.pid, 1 << 22])
    assert list(found) == [started.pid]
    assert found[started.pid] > 0
