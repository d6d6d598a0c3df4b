"""The project as a whole: its start, its two halves, its Makefile and its checks."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.waiting import PATIENCE_S
from tools.check_circles import circles, imports
from tools.check_names import LINES_MIN, lonely, same_names
from tools.check_prose import WORDS_MAX, findings

SLOW = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            print("imports", flush=True)
            time.sleep(600)

sys.meta_path.insert(0, Slow())
sys.argv = ["dllm-tui", "status"]
from tui.entry import main
main()
"""


def interrupted(module: str, before: str, *others: signal.Signals) -> tuple[int, str]:
    """Exit status and stderr of a command that is interrupted as it imports that.

    ``before`` it does something; after the interruption come ``others``.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", before + SLOW.format(module=module)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "imports\n"
        for number in (signal.SIGINT, *others):
            process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    return process.returncode, said


HEARS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
IGNORES = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"


@pytest.mark.parametrize("module", ["click", "tui.cli.status"])
def test_it_just_ends(module: str) -> None:
    assert interrupted(module, HEARS) == (-signal.SIGINT, "")


def test_it_is_ignored_where_it_was() -> None:
    ended = interrupted("click", IGNORES, signal.SIGTERM)
    assert ended == (-signal.SIGTERM, "")


HEADLESS = [
    ("from backends.models.header import tensor_types", "gguf numpy yaml"),
    ("tensor_types(); import backends.models.catalogue", "gguf numpy yaml"),
    ("import backends.controller.__main__", "asyncssh prometheus_client"),
    ("import backends.doctor.examine", "textual rich click tui"),
    ("import backends.mesh.worker, backends.doctor.installation", "iroh blake3"),
    ("import backends.machines.peers, tui.cli.main, tui.cli.peers", "zeroconf"),
]
COMMANDS = [
    (
        "import tui.cli.up, tui.cli.plans, tui.cli.demo, tui.cli.bench",
        "textual rich numpy asyncssh",
    )
]
CONSOLE = [
    (
        "import tui.app.app",
        "h11 tree_sitter textual.widgets._data_table tui.dialogs.help_and_events "
        "tui.screens.logs.screen tui.screens.models.screen tui.screens.models.picker",
    ),
    (
        "from tui.cli.main import import_console; import_console()",
        "aiohttp asyncssh gguf numpy psutil tomlkit",
    ),
    (
        "import tui.screens.logs.screen, tui.screens.models.screen",
        "markdown_it rich.markdown textual.widgets._markdown tui.widgets.markdown_rows",
    ),
]


@pytest.mark.parametrize("steps", [HEADLESS, COMMANDS, CONSOLE])
def test_nothing_is_loaded_before_it_is_needed(steps: list[tuple[str, str]]) -> None:
    """To import it would take as long as all the rest of the start."""
    code = "\n".join(f"{one}\nimport sys; print(*sys.modules)" for one, _ in steps)
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    for (step, later), loaded in zip(steps, run.stdout.splitlines(), strict=True):
        assert not {*later.split()} & {*loaded.split()}, step


ROOT = Path(__file__).parents[2]
MAKEFILE = ROOT / "Makefile"


def would_run(target: str, folder: Path, programs: Path, **more: str) -> str:
    """The commands of a target in a checkout, none of which is run."""
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    (folder / "Makefile").symlink_to(MAKEFILE)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    return subprocess.check_output(
        ["make", "--dry-run", target],
        cwd=folder,
        env=env | {"PATH": f"{programs}{os.pathsep}{env['PATH']}"} | more,
        text=True,
    )


def test_a_checkout_may_have_a_space_in_its_path(tmp_path: Path) -> None:
    ccache = tmp_path / "ccache"
    ccache.write_text("#!/bin/sh\n")
    ccache.chmod(0o755)
    checkout = tmp_path / "a checkout"
    told = would_run("native-built", checkout, tmp_path).replace("\\\n", " ")
    lines = [shlex.split(line) for line in told.splitlines() if "CCACHE_DIR" in line]
    assert len(lines) == 3
    for words in lines:
        assert f"CCACHE_BASEDIR={checkout}" in words


def test_shells_are_tried_once_they_are_installed(tmp_path: Path) -> None:
    told = would_run("test-unit", tmp_path / "checkout", tmp_path, READY="another")
    assert 0 < told.index("apt-get install") < told.index("/pytest ")


@pytest.mark.trial
def test_without_openssl_fewer_tests_share_threads(tmp_path: Path) -> None:
    told = would_run("native-sanitized", tmp_path / "checkout", tmp_path)
    (built,) = [line for line in told.splitlines() if "--target" in line]
    targets = built.partition("--target ")[2].split()
    build = tmp_path / "build"
    configure = ("cmake", "-S", ROOT / "native", "-B", build, "-G", "Ninja")
    subprocess.run([*configure, "-DDLLM_TLS=OFF", "-DDLLM_SANITIZE=thread"], check=True)
    subprocess.run(["ninja", "-C", build, "-t", "query", *targets], check=True)


LONG = " ".join(["word"] * (WORDS_MAX + 1))


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ('"""What it is."""', "begins with 'What'"),
        ('def f():\n    """Whether it is."""', "begins with 'Whether'"),
        ('class A:\n    x = 1\n    """How many."""', "begins with 'How'"),
        (f'"""{LONG}."""', "more than 20 words"),
        (f'"""Short. {LONG}."""', "more than 20 words"),
        ('def _f():\n    """Give one."""\n    return 1', "short and private"),
        ('def __init__(s):\n    """Set it."""\n    s.x = 1', "__init__ has"),
    ],
)
def test_prose_that_is_not_plain_is_found(source: str, what: str) -> None:
    (finding,) = findings(source)
    assert what in finding.what


@pytest.mark.parametrize(
    "source",
    [
        '"""Whatever it is."""',
        f'"""Do it.\n\nRaises:\n    Error: {LONG}\n"""',
        'def f():\n    """Give one."""\n    return 1',
        'def _f():\n    """Only this."""',
        'x = "What"',
    ],
)
def test_plain_prose_passes(source: str) -> None:
    assert not list(findings(source))


def test_modules_that_reach_one_another_are_a_circle(tmp_path: Path) -> None:
    room = tmp_path / "backends"
    room.mkdir()
    (room / "a.py").write_text("from backends.b import x\n")
    (room / "b.py").write_text("if TYPE_CHECKING:\n    from backends import c\n")
    (room / "c.py").write_text("def f():\n    import backends.a\n")
    (room / "d.py").write_text("import backends.a, os\n")
    named = frozenset({"backends.a", "backends.b", "backends.c"})
    assert circles(imports(tmp_path)) == [named]


def test_names_of_classes_and_lonely_modules_are_found(tmp_path: Path) -> None:
    room = tmp_path / "backends"
    room.mkdir()
    (tmp_path / "tui").mkdir()
    (room / "a.py").write_text("from backends import b, d\nclass Way: ...\n")
    (room / "b.py").write_text("from backends import c\nclass Way: ...\n")
    (room / "c.py").write_text("class _Way: ...\n" * LINES_MIN)
    (room / "d.py").write_text("class _Way: ...\n" * (LINES_MIN - 1))
    assert same_names(tmp_path) == {"Way": ["backends.a", "backends.b"]}
    assert lonely(tmp_path) == ["backends.b", "backends.d"]
