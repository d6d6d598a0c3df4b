"""Hyperparameters: typed, bounded access to a model's metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.errors import ModelError
from backends.models.text import printable

if TYPE_CHECKING:
    from backends.models.header import Header, Value

NUMBER_MAX = 2**30
"""Larger hyperparameters are damage; the largest known is a context of 10 485 760."""


class Params:
    """Metadata of one model, its architecture's prefix put in front of every key."""

    def __init__(self, header: Header, arch: str) -> None:
        self.arch = arch
        self._header = header

    def raw(self, key: str) -> Value | None:
        """The value of ``<arch>.<key>`` as stored."""
        return self._header.metadata.get(f"{self.arch}.{key}")

    def number(self, key: str, default: int = 0) -> int:
        """A whole number; the largest one where the file has one per layer."""
        value = self.raw(key)
        if isinstance(value, tuple):
            return max((self._checked(key, item) for item in value), default=default)
        return default if value is None else self._checked(key, value)

    def per_layer(self, key: str, n_layer: int) -> list[int]:
        """One number per layer, from an array or from one number for all.

        A short array is filled up with zeros: some files leave out the layers that
        predict further tokens.
        """
        value = self.raw(key)
        if not isinstance(value, tuple):
            return [self.number(key)] * n_layer
        numbers = [self._checked(key, item) for item in value[:n_layer]]
        return numbers + [0] * (n_layer - len(numbers))

    def flags(self, key: str, n_layer: int) -> list[bool] | None:
        """One yes or no per layer, None when the file has no such array."""
        if not isinstance(self.raw(key), tuple):
            return None
        return [bool(value) for value in self.per_layer(key, n_layer)]

    def _checked(self, key: str, value: Value) -> int:
        if isinstance(value, int) and 0 <= value <= NUMBER_MAX:
            return int(value)
        raise ModelError(
            f"{printable(self._header.path.name)} is corrupt: its "
            f"{printable(self.arch)}.{key} cannot be {printable(str(value), 40)}",
            "Copy or download it again.",
        )
