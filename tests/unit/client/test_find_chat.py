"""Which chat is meant: by its id, its name or its first words."""

from __future__ import annotations

import pytest

from backends.client.chats import NoSuchChat, find_chat
from backends.errors import UsageError
from backends.state import ChatBrief, ChatListing


def brief(chat: str, title: str, name: str = "") -> ChatBrief:
    return ChatBrief(
        id=chat, cluster="default", model="m.gguf", title=name or title, name=name
    )


LISTING = ChatListing(
    chats=(
        brief("1-a", "Why is the sky blue?", name="Sky"),
        brief("2-b", "sky diving, how?"),
        brief("3-c", "Hello?", name="Twice"),
        brief("4-d", "Hello!", name="twice"),
        brief("5-e", "Grass", name="1-a"),
    )
)


@pytest.mark.parametrize(
    ("wanted", "chat"),
    [("1-a", "1-a"), (" SKY ", "1-a"), ("Sky  Diving", "2-b"), ("4-d", "4-d")],
)
def test_it_is_found(wanted: str, chat: str) -> None:
    assert find_chat(LISTING, wanted).id == chat


@pytest.mark.parametrize(("wanted", "ids"), [("twice", "3-c, 4-d")])
def test_of_several_an_id_is_asked_for(wanted: str, ids: str) -> None:
    with pytest.raises(UsageError, match="Several chats") as raised:
        find_chat(LISTING, wanted)
    assert ids in str(raised.value.hint)


@pytest.mark.parametrize("wanted", ["", " ", "grass", "Why"])
def test_there_is_none(wanted: str) -> None:
    with pytest.raises(NoSuchChat, match="There is no chat"):
        find_chat(LISTING, wanted)


def test_first_words_do_not_count_where_a_name_may_be_meant_for_a_new_one() -> None:
    assert find_chat(LISTING, "sky diving").id == "2-b"
    with pytest.raises(NoSuchChat):
        find_chat(LISTING, "sky diving", whole=True)
    assert find_chat(LISTING, "sky", whole=True).id == "1-a"
