"""Fields of one row that take some characters only: other keys keep their meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.widgets import Input

if TYPE_CHECKING:
    from textual import events


class LineInput(Input):
    """An input that fits where a row is all there is."""

    takes_digits: ClassVar[bool] = True
    """The key bar shows F1 for 1 while this has the focus."""

    DEFAULT_CSS = """
    LineInput {
        width: 1fr;
        height: 1;
        border: none;
        padding: 0 1;
        background: $panel;
        &:focus { border: none; background-tint: $foreground 0%; }
    }
    """


class ChoosyInput(LineInput):
    """Leaves what it does not take to the keys of the dialog, such as ``?``."""

    def takes(self, character: str) -> bool:
        """True if the field accepts the character."""
        raise NotImplementedError

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """True if the field accepts the key as text, before any binding."""
        return bool(character and character.isprintable() and self.takes(character))

    async def _on_key(self, event: events.Key) -> None:
        consumed = self.check_consume_key(event.key, event.character)
        if event.is_printable and not consumed:
            event.prevent_default()
        else:
            await super()._on_key(event)


class NumberInput(ChoosyInput):
    """Takes digits."""

    def takes(self, character: str) -> bool:
        """Digits as everybody types them."""
        return character.isascii() and character.isdigit()


class NameInput(ChoosyInput):
    """Takes all that a name can have in it."""

    def takes(self, character: str) -> bool:
        """All but the key for help."""
        return character != "?"
