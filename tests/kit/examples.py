"""The number of random examples that a test tries."""

from __future__ import annotations

import pytest

FEW_OR_MANY = pytest.mark.parametrize(
    "n_examples", [20, pytest.param(300, marks=pytest.mark.trial)]
)
"""Few with each change, many in trials."""
