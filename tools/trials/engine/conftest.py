"""Trials of engines have fixtures of ``tests/engine``."""

from tests.engine.conftest import demo_model, user

__all__ = ["demo_model", "user"]
