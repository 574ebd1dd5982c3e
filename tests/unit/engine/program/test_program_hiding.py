"""Secrets in what a program prints."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.runners.program.sandbox import SecretRedactor

SECRET = "s3cr3t/Tok+en=abc"
PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\nEFAASCBKcwggSjAgEAAo\n-----END KEY-----"


@pytest.mark.parametrize(
    "shown",
    [
        SECRET,
        json.dumps({"token": SECRET}),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        base64.b64encode(SECRET.encode()).decode(),
        base64.b64encode(f"user:{SECRET}".encode()).decode(),
        base64.b64encode(f"ab{SECRET}tail".encode()).decode(),
        base64.urlsafe_b64encode(f"x{SECRET}?".encode()).decode(),
        SECRET.encode().hex(),
    ],
    ids=["plain", "json", "url", "form", "base64", "basic-auth", "base64-2", "base64-url", "hex"],
)
def test_a_value_is_hidden_however_it_is_written(shown: str):
    hidden = SecretRedactor([SECRET]).hide(f"before {shown} after")
    assert shown not in hidden
    assert "***" in hidden
    assert hidden.startswith("before ")
    assert hidden.endswith(" after")
    assert "s3cr3t" not in hidden


def test_a_line_of_a_longer_secret_is_hidden_by_itself():
    hidden = SecretRedactor([PEM]).hide("key: MIIEvQIBADANBgkqhkiG9w0BAQ\n")
    assert hidden == "key: ***\n"


@given(
    pieces=st.lists(st.sampled_from([SECRET, SECRET[:5], SECRET[3:], "abcdefgh", "abcd", " loss=0.5\n", "s", "é"])),
    cuts=st.lists(st.integers(1, 9), min_size=1),
)
def test_no_border_between_two_pieces_lets_a_value_through(pieces: list[str], cuts: list[int]):
    whole = "".join(pieces).encode()
    hiding, shown, at, turn = SecretRedactor([SECRET, "abcdefgh", "abcd"]), b"", 0, 0
    while at < len(whole):
        step = cuts[turn % len(cuts)]
        shown += hiding.feed(whole[at : at + step])
        at, turn = at + step, turn + 1
    shown += hiding.finish()
    assert shown == SecretRedactor([SECRET, "abcdefgh", "abcd"]).feed(whole + b"\n").removesuffix(b"\n")
    assert SECRET.encode() not in shown
    assert b"abcd" not in shown


def test_what_is_no_secret_is_not_held_back():
    hiding = SecretRedactor([SECRET])
    assert hiding.feed(b"epoch 1\n") == b"epoch 1\n"
    assert hiding.feed(b"s3cr") == b""
    assert hiding.feed(b"ets are fine\n") == b"s3crets are fine\n"
    assert hiding.finish() == b""


def test_without_secrets_nothing_is_touched():
    assert SecretRedactor([]).feed(b"\x00\xff anything") == b"\x00\xff anything"
    assert SecretRedactor([]).hide("text") == "text"
