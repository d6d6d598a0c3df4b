"""Trials on other machines have the marks and fixtures of ``tests/hosts``."""

from tests.hosts.conftest import (
    every_task_is_awaited,
    machines,
    network,
    pytest_collection_modifyitems,
    user,
)

__all__ = [
    "every_task_is_awaited",
    "machines",
    "network",
    "pytest_collection_modifyitems",
    "user",
]
