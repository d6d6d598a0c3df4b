"""Which answers can be gone on with, by their API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backends.gateway.native import NativeCourse
from backends.gateway.openai import ChatCourse, CompletionsCourse
from backends.gateway.wish import is_one_prompt, wish_of

if TYPE_CHECKING:
    from backends.gateway.course import Course

_KINDS: dict[str, type[Course]] = {
    "/completion": NativeCourse,
    "/completions": NativeCourse,
    "/v1/completions": CompletionsCourse,
    "/chat/completions": ChatCourse,
    "/v1/chat/completions": ChatCourse,
}


def course_of(path: str, raw: bytes) -> Course | None:
    """How the answer to a request is gone on with; None where it is not."""
    kind = _KINDS.get(path)
    wish = wish_of(raw) if kind else None
    if kind is None or wish is None:
        return None
    if kind is not ChatCourse and not is_one_prompt(wish.fields.get("prompt")):
        return None
    return kind(wish)
