"""Reading logs by byte offsets without ever cutting a character."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.errors import MachineError
from backends.machines.agent import _decode
from tests.unit.machines.processes import python, shell, spec, wait_ended

if TYPE_CHECKING:
    from pathlib import Path

    from backends.machines.agent import AgentSession
    from backends.state import LogChunk


def written(run_dir: Path, data: bytes) -> Path:
    """The directory of an ended process that logged that."""
    directory = run_dir / "p"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "log").write_bytes(data)
    (directory / "process.json").write_text('{"pid": 1, "start_id": "gone"}')
    return directory


def parts(chunk: LogChunk) -> tuple[str, int, int, bool]:
    return chunk.text, chunk.offset, chunk.next_offset, chunk.restarted


async def test_no_such_process(agent: AgentSession) -> None:
    with pytest.raises(MachineError, match="no process called p"):
        await agent.read_log("p", 0, 100)


async def test_a_new_process_restarts_the_log(agent: AgentSession) -> None:
    await agent.start(spec(argv=shell("echo a long first line")))
    await wait_ended(agent)
    end = (await agent.read_log("p", 0, 100)).next_offset
    await agent.start(spec(argv=shell("echo new")))
    await wait_ended(agent)
    assert parts(await agent.read_log("p", end, 100)) == ("new\n", 0, 4, True)


async def test_an_unfinished_character_waits_for_its_rest(
    agent: AgentSession, run_dir: Path
) -> None:
    await agent.start(spec())
    log = run_dir / "p/log"
    log.write_bytes("aé".encode()[:2])
    assert parts(await agent.read_log("p", 0, 100)) == ("a", 0, 1, False)
    assert parts(await agent.read_log("p", 1, 100)) == ("", 1, 1, False)
    log.write_bytes("aéb".encode())
    assert parts(await agent.read_log("p", 1, 100)) == ("éb", 1, 4, False)


DIGITS, EUROS, SMILES = b"0123456789", "€€".encode(), "😀😀".encode()


CASES: list[tuple[bytes, int, int, tuple[str, int, int, bool]]] = [
    (DIGITS, -4, 100, ("6789", 6, 10, False)),
    (DIGITS, -10, 100, ("0123456789", 0, 10, False)),
    (DIGITS, -99, 100, ("0123456789", 0, 10, False)),
    (DIGITS, 10, 100, ("", 10, 10, False)),
    (DIGITS, 11, 100, ("0123456789", 0, 10, True)),
    # From the end a cut character is passed over.
    (EUROS, -4, 100, ("€", 3, 6, False)),
    (EUROS, -3, 100, ("€", 3, 6, False)),
    (EUROS, -2, 100, ("", 6, 6, False)),
    # Bytes of no text are replaced, half a character at the end when it stays so.
    (b"a\xffb\x80\x80\x80\x80\x80c", 0, 100, ("a�b�����c", 0, 9, False)),
    (b"a\xe2\x82", 0, 100, ("a", 0, 1, False)),
    (b"a\xe2\x82", 1, 100, ("�", 1, 3, False)),
    # No limit is too small for a character.
    *((SMILES, 0, limit, ("😀", 0, 4, False)) for limit in (-1, 0, 1, 3)),
]


async def test_offsets_and_limits(agent: AgentSession, run_dir: Path) -> None:
    for log, offset, limit, expected in CASES:
        written(run_dir, log)
        told = parts(await agent.read_log("p", offset, limit))
        assert told == expected, (log, offset, limit)


async def test_a_directory_without_a_log(agent: AgentSession, run_dir: Path) -> None:
    directory = written(run_dir, b"")
    (directory / "log").unlink()
    assert parts(await agent.read_log("p", 0, 100)) == ("", 0, 0, False)
    assert parts(await agent.read_log("p", 7, 100)) == ("", 0, 0, True)


async def test_a_log_that_cannot_be_read(agent: AgentSession, run_dir: Path) -> None:
    (run_dir / "p/log").mkdir(parents=True)
    with pytest.raises(MachineError, match="cannot be read"):
        await agent.read_log("p", 0, 100)


@given(st.text(), st.integers(min_value=1, max_value=9))
def test_pieces_make_the_whole(text: str, size: int) -> None:
    data, found, at = text.encode(), "", 0
    while at < len(data):
        piece, pending = _decode(data[at : at + max(size, 4)])
        found += piece
        at += len(data[at : at + max(size, 4)]) - pending
    assert found == text


async def test_reading_while_it_grows(agent: AgentSession) -> None:
    code = "for i in range(5000): print(f'línea {i} ✓')"
    await agent.start(spec(argv=python(code)))
    text, at, ended = "", 0, False
    while True:
        chunk = await agent.read_log("p", at, 1000)
        assert (chunk.offset, chunk.restarted) == (at, False)
        if not chunk.text and ended:
            break
        record = await agent.record("p")
        ended = record is not None and not record.alive
        text, at = text + chunk.text, chunk.next_offset
    assert text == "".join(f"línea {i} ✓\n" for i in range(5000))
