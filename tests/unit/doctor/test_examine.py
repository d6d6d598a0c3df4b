"""The checks as a whole, on a machine where something is wrong."""

from __future__ import annotations

from backends.doctor.examine import Wish, examine
from backends.paths import Paths


async def test_wrong_settings_are_told_once(paths: Paths) -> None:
    paths.config_file.parent.mkdir(parents=True)
    paths.config_file.write_text("ctx_size = 'long'\n")
    checks = [check async for check in examine(paths, Wish())]
    told = [check.name for check in checks if "is not valid" in check.detail]
    assert told == ["settings"]
    golden = next(check for check in checks if check.name == "golden")
    assert golden.detail == "left out: mend the settings first"
