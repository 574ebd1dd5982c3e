from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.frozen import changed
from stoker.host.identity import mine
from stoker.transfer.download.partial import Sidecar, dump_sidecar, load_sidecar

FULL = Sidecar(
    url="https://host/file",
    commit="c" * 40,
    size_bytes=10,
    sha256="a" * 64,
    git_sha1="b" * 40,
    etag='"tag"',
    last_modified="Wed, 01 Jan 2025 00:00:00 GMT",
    durable_bytes=5,
    boot_id="boot",
    writer=mine(),
)


@pytest.mark.parametrize("sidecar", [FULL, Sidecar(url=""), changed(FULL, writer=None, size_bytes=None, etag='W/"$"')])
def test_a_sidecar_is_read_as_it_was_written(sidecar):
    assert load_sidecar(dump_sidecar(sidecar)) == sidecar


@given(st.integers(0, len(dump_sidecar(FULL)) - 2), st.integers(1, 255))
def test_a_sidecar_with_one_wrong_byte_is_never_believed(at, flip):
    data = bytearray(dump_sidecar(FULL))
    data[at] ^= flip
    found = load_sidecar(bytes(data))
    assert isinstance(found, str) or found == FULL


@given(st.integers(0, len(dump_sidecar(FULL)) - 2))
def test_a_sidecar_that_was_cut_short_is_never_believed(length):
    assert isinstance(load_sidecar(dump_sidecar(FULL)[:length]), str)


@pytest.mark.parametrize("data", [b"", b"\0" * 400, b"[]", b"null", b"7", b'{"format":1}', b"\xff\xfe", b"[" * 5000])
def test_what_is_no_sidecar_is_never_believed(data):
    assert isinstance(load_sidecar(data), str)


def test_a_sidecar_of_another_format_says_so():
    body = json.loads(dump_sidecar(FULL))
    body["format"] = 2
    assert load_sidecar(json.dumps(body).encode()) == "its record has format 2, not 1"


@pytest.mark.parametrize("field", ["etag", "last_modified"])
@pytest.mark.parametrize("text", ['"a"\r\nX: 1', '"\u00e9"', "\0"])
def test_a_sidecar_with_a_validator_that_no_head_can_hold_is_not_believed(field, text):
    assert load_sidecar(dump_sidecar(changed(FULL, **{field: text}))) == "its record has invalid values"


@pytest.mark.parametrize("field", ["durable_bytes", "size_bytes"])
def test_a_sidecar_that_says_what_cannot_be_is_not_believed(field):
    assert load_sidecar(dump_sidecar(changed(FULL, **{field: -1}))) == "its record has invalid values"


def test_a_validator_is_a_tag_or_a_date():
    assert FULL.has_validator
    assert Sidecar(url="", last_modified="date").has_validator
    assert not Sidecar(url="", sha256="a" * 64).has_validator
