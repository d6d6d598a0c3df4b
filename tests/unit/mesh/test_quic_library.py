"""The library of QUIC: tried before use, and told about where it is not there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from backends.doctor.check import Verdict
from backends.doctor.installation import CHECKS
from backends.errors import MachineError
from backends.mesh import quic_library
from backends.mesh.quic_library import iroh_library, iroh_version
from tests.kit.clusters import paths_in
from tests.unit.mesh.needing_iroh import needs_iroh


@pytest.fixture(autouse=True)
def _untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quic_library, "_works", "")


@needs_iroh
async def test_it_is_tried_at_its_first_use() -> None:
    library = await iroh_library()
    assert quic_library._works == iroh_version()
    assert library is await iroh_library()


@needs_iroh
async def test_a_library_that_changes_bytes_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repair = quic_library._repair

    def wrong(library: SimpleNamespace) -> None:
        repair(library)
        builder = library.iroh_ffi._UniffiRustBufferBuilder
        right = builder.write
        monkeypatch.setattr(
            builder, "write", lambda self, value: right(self, bytes(len(value)))
        )

    monkeypatch.setattr(quic_library, "_repair", wrong)
    with pytest.raises(MachineError, match="does not work here"):
        await iroh_library()
    assert not quic_library._works


@needs_iroh
async def test_no_text_of_its_own_is_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def panics(_: object) -> None:
        raise RuntimeError("called `Result::unwrap()` on an `Err` value")

    monkeypatch.setattr(quic_library, "_try", panics)
    caplog.set_level("INFO")
    with pytest.raises(MachineError) as raised:
        await iroh_library()
    assert "unwrap" not in str(raised.value)
    assert "unwrap" in caplog.text


@needs_iroh
async def test_what_it_sends_is_copied_at_once() -> None:
    """A newer one that copies byte by byte would be twenty times slower."""
    library = await iroh_library()
    write = library.iroh_ffi._UniffiRustBufferBuilder.write
    assert not any("enumerate" in name for name in write.__code__.co_names)


@pytest.mark.parametrize("version", ["", "0.35.0", "2.0.0", "1.1.9"])
async def test_a_missing_or_strange_one_is_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(quic_library, "iroh_version", lambda: version)
    with pytest.raises(MachineError, match=r"pip install 'dllm-tui\[mesh\]'"):
        await iroh_library()


@needs_iroh
async def test_doctor_tells_that_it_works(tmp_path: Path) -> None:
    check = await CHECKS["quic"](paths_in(tmp_path))
    assert (check.verdict, check.detail) == (Verdict.OK, f"iroh {iroh_version()} works")


async def test_doctor_takes_no_offence_where_it_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.doctor.installation.iroh_version", lambda: "")
    check = await CHECKS["quic"](paths_in(tmp_path))
    assert check.verdict is Verdict.OK
    assert "TCP alone" in check.detail
    assert "dllm-tui[mesh]" in check.fix
