"""Checks of model files, by what is known of those of all machines."""

from __future__ import annotations

from backends.doctor.check import Verdict
from backends.doctor.model_checks import other_files
from backends.machine_names import LOCAL
from backends.state import ModelFile


def known(identity: str, *machines: str) -> ModelFile:
    path = "/m.gguf" if LOCAL in machines else f"{machines[0]}:/srv/m.gguf"
    return ModelFile(
        path=path,
        name="m",
        size_bytes=1,
        source="models",
        identity=identity,
        held_by=machines,
    )


def test_files_that_were_not_read_whole_are_not_called_the_same_bytes() -> None:
    found = other_files([known("1-1-aa", LOCAL, "ada")])
    assert found.verdict is Verdict.OK
    assert found.detail == "1 model on several machines, the same by size and samples"


def test_another_file_of_a_name_is_told_by_machine() -> None:
    found = other_files([known("1-1-aa", LOCAL, "ada"), known("1-1-bb", "bob")])
    assert found.machines == ("bob",)
    assert "m.gguf there is another file" in found.detail
