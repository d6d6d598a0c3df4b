"""Tokens as text: read as they were written, or refused in one sentence."""

from __future__ import annotations

import base64
import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from backends.errors import UsageError
from backends.machine_names import is_token
from backends.mesh.quic_place import ADDRESSES_MAX, QuicPlace
from backends.mesh.token import PREFIX, Token, TokenKind, _check, new_token, read_token

KEY = bytes(range(32))
HOSTS = st.one_of(
    st.ip_addresses().map(str), st.from_regex(r"[a-z][a-z0-9.-]{0,40}", fullmatch=True)
)
RELAYS = st.sampled_from(["", "http://203.0.113.5:50090", "https://relay.example.org"])
PLACES = st.builds(
    QuicPlace,
    node=st.binary(min_size=32, max_size=32),
    addresses=st.lists(
        st.ip_addresses(v=4).map("{}:50080".format), max_size=ADDRESSES_MAX
    ).map(tuple),
    relay=RELAYS,
    relay_key=st.from_regex(r"[A-Za-z0-9_-]{0,22}", fullmatch=True),
)
TOKENS = st.builds(
    Token,
    kind=st.just(TokenKind.ADD),
    name=st.text(
        st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=64
    ).filter(str.isprintable),
    addresses=st.lists(HOSTS, min_size=1, max_size=8).map(tuple),
    port=st.integers(1, 65535),
    key=st.binary(min_size=32, max_size=32),
    secret=st.binary(min_size=16, max_size=16),
    expires_at=st.integers(2_000_000_000, 3_000_000_000),
    quic=st.none() | PLACES,
)


def made(kind: TokenKind = TokenKind.ADD) -> Token:
    return new_token(kind, "nuc", ("10.0.0.7", "fd00::7"), 50080, KEY)


PLACE = QuicPlace(node=KEY, addresses=("10.0.0.7:50080",), relay_key="k")
FEW = st.sampled_from([made(), replace(made(), name="é" * 64, quic=PLACE)])


def text_of(data: bytes) -> str:
    """Bytes as a token with a right check."""
    whole = base64.urlsafe_b64encode(data + _check(data)).decode().rstrip("=")
    return PREFIX + whole


@given(TOKENS)
def test_it_is_read_as_it_was_written(token: Token) -> None:
    assert read_token(f"  {token.text}\n", TokenKind.ADD, now=0.0) == token


@given(TOKENS)
def test_what_a_token_says_since_later_is_no_trouble_to_older_programs(
    token: Token,
) -> None:
    whole = msgspec.msgpack.decode(msgspec.msgpack.encode(token))
    *older, quic = whole
    assert (quic is None) is (token.quic is None)
    text = text_of(msgspec.msgpack.encode(older))
    assert read_token(text, TokenKind.ADD, now=0.0) == replace(token, quic=None)
    text = text_of(msgspec.msgpack.encode([*whole, "from the future"]))
    assert read_token(text, TokenKind.ADD, now=0.0) == token


def test_places_are_ready_to_dial() -> None:
    assert made().places == ("10.0.0.7:50080", "[fd00::7]:50080")


def test_two_tokens_have_two_secrets_of_128_bits_each() -> None:
    secrets = {made().secret for _ in range(100)}
    assert len(secrets) == 100
    assert {len(secret) for secret in secrets} == {16}


def test_no_secret_is_shown_by_accident() -> None:
    token = made()
    assert token.secret.hex() not in repr(token)
    assert str(token.secret) not in repr(token)


@given(FEW, st.data())
def test_a_token_that_is_cut_off_is_refused(token: Token, data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(token.text) - 1))
    with pytest.raises(UsageError) as caught:
        read_token(token.text[:end], TokenKind.ADD, now=0.0)
    assert any(why in caught.value.what for why in ("cut off", "no token", "signs"))


@given(FEW, st.data())
def test_a_token_with_another_sign_is_refused(
    token: Token, data: st.DataObject
) -> None:
    at = data.draw(st.integers(len(PREFIX), len(token.text) - 1))
    sign = data.draw(st.sampled_from("AZaz09-_").filter(token.text[at].__ne__))
    with pytest.raises(UsageError):
        read_token(
            token.text[:at] + sign + token.text[at + 1 :], TokenKind.ADD, now=0.0
        )


@given(st.text(max_size=3000))
def test_any_text_is_read_or_refused(text: str) -> None:
    for each in (text, PREFIX + text):
        with pytest.raises(UsageError):
            read_token(each, TokenKind.ADD)


@given(st.binary(max_size=400))
def test_any_bytes_with_a_right_check_are_read_or_refused(data: bytes) -> None:
    with pytest.raises(UsageError):
        read_token(text_of(data), TokenKind.ADD)


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": KEY[:31]},
        {"secret": b""},
        {"port": 0},
        {"port": 65536},
        {"addresses": ()},
        {"addresses": ("10.0.0.7; rm -rf /",)},
        {"addresses": ("a",) * 9},
        {"name": ""},
        {"name": "a\x1b[2J"},
        {"expires_at": 1 << 50},
        {"quic": QuicPlace(node=KEY[:31])},
        {"quic": QuicPlace(node=KEY, addresses=("a host:1",))},
        {"quic": QuicPlace(node=KEY, relay="file:///etc/passwd")},
        {"quic": QuicPlace(node=KEY, relay_key="\r\nHost: other")},
    ],
)
def test_a_forged_token_without_sense_is_refused(wrong: dict[str, object]) -> None:
    forged = text_of(msgspec.msgpack.encode(replace(made(), **wrong)))
    with pytest.raises(UsageError, match="nothing that makes sense"):
        read_token(forged, TokenKind.ADD)


def test_an_expired_token_says_since_when() -> None:
    token = made()
    assert read_token(token.text, TokenKind.ADD, now=token.expires_at - 1.0) == token
    with pytest.raises(UsageError, match=r"of nuc expired .* ago. Ask for another"):
        read_token(token.text, TokenKind.ADD, now=token.expires_at + 60.0)


def test_it_is_good_for_an_hour_unless_one_says_otherwise() -> None:
    assert abs(made().expires_at - time.time() - 3600) < 60


def test_a_token_of_another_version_names_both() -> None:
    with pytest.raises(UsageError, match="of version 7, this dllm-tui reads 1"):
        read_token("dllm7-AAAA", TokenKind.ADD)


def test_a_token_for_the_other_side_says_where_it_belongs() -> None:
    with pytest.raises(UsageError, match="dllm-tui join TOKEN"):
        read_token(made(TokenKind.JOIN).text, TokenKind.ADD)
    with pytest.raises(UsageError, match="dllm-tui peers add TOKEN"):
        read_token(made(TokenKind.ADD).text, TokenKind.JOIN)


def test_a_host_is_no_token() -> None:
    assert is_token(made().text)
    assert not any(map(is_token, ("dllm1", "mini", "ada@10.0.0.7", "dllm-box", "")))
