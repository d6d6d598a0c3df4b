"""A text in the user's editor: its command, its file, and its failures."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from backends.errors import DllmError
from backends.text_editor import edit_text, editor_argv
from tests.kit.waiting import until


def test_visual_comes_before_editor_and_may_have_arguments() -> None:
    both = {"VISUAL": "'my code' --wait", "EDITOR": "vi"}
    assert editor_argv(both) == ["my code", "--wait"]
    assert editor_argv({"VISUAL": " ", "EDITOR": "vi; rm x"}) == ["vi;", "rm", "x"]
    for environ, said in (({}, "No editor is set"), ({"EDITOR": "'vi"}, "a quote")):
        with pytest.raises(DllmError, match=said):
            editor_argv(environ)


Editor = Callable[[str], object]


@pytest.fixture
def editor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Editor:
    """Sets the script that edits the file ``$1``."""
    script = tmp_path / "editor.sh"
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"sh -e '{script}'")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", None)
    return script.write_text


async def test_the_text_comes_back_and_nothing_is_left(
    editor: Editor, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    editor(f'cp -p "$1" "{seen}"; cp "$1" "$1~"; echo "more?\n" >> "$1"')
    assert await edit_text("Why,\nsky") == "Why,\nsky\nmore?"
    assert seen.read_text() == "Why,\nsky\n"
    assert stat.S_IMODE(seen.stat().st_mode) == 0o600
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 3", r"failed \(exit 3\)"),
        ("kill -9 $$", r"failed \(SIGKILL\)"),
        ("kill -35 $$", r"failed \(signal 35\)"),
        (': > "$1"', "left nothing"),
        ('rm "$1"', r"cannot be used \(No such file"),
    ],
)
async def test_a_failure_is_told_and_leaves_nothing(
    editor: Editor, tmp_path: Path, script: str, said: str
) -> None:
    editor(script)
    with pytest.raises(DllmError, match=said):
        await edit_text("Why?")
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    "stays", ["exec sleep 60", "trap '' TERM; while :; do sleep 0.05; done"]
)
async def test_ctrl_c_is_the_editors_and_cancelling_ends_it(
    editor: Editor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stays: str
) -> None:
    monkeypatch.setattr("backends.text_editor.ENDS_S", 0.2)
    editor(f'echo $$ > "{tmp_path}/pid"; {stays}')
    editing = asyncio.ensure_future(edit_text("Why?"))
    pid = tmp_path / "pid"
    await until(lambda: pid.exists() and pid.read_text().strip())
    await until(lambda: signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0)
    assert not editing.done()
    editing.cancel()
    await asyncio.wait([editing])
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not psutil.pid_exists(int(pid.read_text()))
