"""The settings of a chat as text fields: what each takes, and what is wrong with it."""

from __future__ import annotations

import math
from typing import NamedTuple

from backends.state import Sampling


class ChatSettings(NamedTuple):
    """The settings of the sampling dialog."""

    system: str
    sampling: Sampling


class SamplingField(NamedTuple):
    """One number, and the range the server accepts."""

    name: str
    """Name of the attribute of ``Sampling``."""
    label: str
    low: float
    high: float
    whole: bool = False
    """Takes no fraction."""
    hint: str = ""
    """Shown while empty, besides the range."""

    @property
    def range_text(self) -> str:
        """``0–2``, ``1 or more``."""
        if self.high == math.inf:
            return f"{self.low:g} or more"
        return f"{self.low:g}–{self.high:.10g}"

    def parse(self, text: str) -> float | int | None:
        """The number typed; None leaves it to the server.

        Raises:
            ValueError: it is no such number; the message is a sentence.
        """
        text = text.strip()
        if not text:
            return None
        value = self._number(text)
        if value is None or not self.low <= value <= self.high:
            kind = "a whole number" if self.whole else "a number"
            raise ValueError(f"{self.label} takes {kind}, {self.range_text}.")
        return value

    def _number(self, text: str) -> float | int | None:
        try:
            value = int(text) if self.whole else float(text.replace(",", "."))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def shown(self, sampling: Sampling) -> str:
        value = getattr(sampling, self.name)
        return "" if value is None else f"{value:.10g}"


FIELDS = (
    SamplingField("temperature", "temperature", 0, 5),
    SamplingField("top_p", "top p", 0, 1),
    SamplingField("top_k", "top k", 0, 1_000_000, whole=True, hint="0: all"),
    SamplingField("min_p", "min p", 0, 1),
    SamplingField("repeat_penalty", "repeat penalty", 0, 10, hint="1: none"),
    SamplingField("max_tokens", "max tokens", 1, math.inf, whole=True, hint="no limit"),
    SamplingField("seed", "seed", 0, 2**32 - 1, whole=True, hint="random"),
)


def parse_sampling(texts: dict[str, str]) -> Sampling:
    """Settings from the texts of all fields, by name.

    Raises:
        ValueError: the first field that is wrong; the message is a sentence.
    """
    values = {field.name: field.parse(texts.get(field.name, "")) for field in FIELDS}
    return Sampling(**values)  # type: ignore[arg-type]
