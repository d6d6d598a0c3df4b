"""What machines, devices and models are called on the screen."""

from __future__ import annotations

from pathlib import PurePath

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def letter(mark: int) -> str:
    """The letter of a mark; after Z they begin again, in lower case."""
    text = LETTERS[mark % len(LETTERS)]
    return text if mark < len(LETTERS) else text.lower()


def device_label(device: str) -> str:
    """``worker1 CPU`` from ``worker1/CPU``."""
    return device.replace("/", " ", 1)


def model_name(path: str) -> str:
    """A model's file name without its ending."""
    name = PurePath(path).name
    return name.removesuffix(".gguf")
