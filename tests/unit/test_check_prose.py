"""The check of docstrings finds odd beginnings, long sentences and needless ones."""

from __future__ import annotations

import pytest

from tools.check_prose import CLEAN, WORDS_MAX, findings, main

LONG = " ".join(["word"] * (WORDS_MAX + 1))


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ('"""What it is."""', "begins with 'What'"),
        ('def f():\n    """Whether it is."""', "begins with 'Whether'"),
        ('class A:\n    x = 1\n    """How many."""', "begins with 'How'"),
        (f'"""{LONG}."""', "more than 25 words"),
        (f'"""Short. {LONG}."""', "more than 25 words"),
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


def test_clean_folders_stay_clean(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["check_prose", *CLEAN])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, capsys.readouterr().out
