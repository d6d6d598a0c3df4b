"""What only a process is to know: in a file of its own, and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.machines.agent import PRIVATE, ProcessSpec
from backends.state import ProcessRole
from tests.unit.machines.processes import SLEEPER, shell, wait_ended

if TYPE_CHECKING:
    from pathlib import Path

    from backends.machines.agent import AgentSession

SECRET = "5a" * 32


def spec(argv: tuple[str, ...] = SLEEPER, private: str = SECRET) -> ProcessSpec:
    return ProcessSpec(name="p", role=ProcessRole.RELAY, argv=argv, private=private)


async def test_a_process_finds_it_when_it_starts(host: AgentSession) -> None:
    script = f'stat -c %a "$DLLM_PROCESS_DIR/{PRIVATE}"; cat "$DLLM_PROCESS_DIR"/p*e'
    await host.start(spec(shell(script)))
    await wait_ended(host, "p")
    log = (await host.read_log("p", 0, 1000)).text
    assert log == f"600\n{SECRET}"


async def test_it_is_in_no_other_file_and_gone_with_the_process(
    host: AgentSession, run_dir: Path
) -> None:
    await host.start(spec())
    files = {file.name: file.read_text() for file in (run_dir / "p").iterdir()}
    assert [name for name, text in files.items() if SECRET in text] == [PRIVATE]
    await host.stop("p")
    assert not (run_dir / "p" / PRIVATE).exists()
    await host.remove("p")
    assert not (run_dir / "p").exists()


async def test_a_later_process_does_not_find_that_of_an_earlier_one(
    host: AgentSession, run_dir: Path
) -> None:
    await host.start(spec())
    await host.stop("p")
    (run_dir / "p" / PRIVATE).write_text("left by one whose supervisor was killed")
    await host.start(spec(private=""))
    assert not (run_dir / "p" / PRIVATE).exists()


async def test_an_agent_says_what_it_can_do(host: AgentSession) -> None:
    await host.connect()
    assert {"start:private", "worker"} <= set(host.features)


def test_it_makes_another_process_and_is_not_told() -> None:
    assert spec().digest != spec(private="5b" * 32).digest != spec(private="").digest
    assert SECRET not in repr(spec())
