from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.transfer.download.response_rules import ContentRange, read_content_range


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bytes 0-9/10", (0, 9, 10)),
        ("bytes 5-9/*", (5, 9, None)),
        ("bytes */10", (None, None, 10)),
        (" Bytes 5-5/6 ", (5, 5, 6)),
    ],
)
def test_a_valid_range_is_read(text, expected):
    first, last, total = expected
    assert read_content_range((text,)) == ContentRange(first=first, last=last, total=total)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bytes",
        "bytes */*",
        "bytes 9-5/10",
        "bytes 0-10/10",
        "bytes -5-9/10",
        "bytes 0-9",
        "items 0-9/10",
        "bytes=0-9/10",
        "bytes 0-9/10, bytes 0-9/10",
        "bytes 0-99999999999999999999/100000000000000000000",
        "bytes 0-\u0669/10",
        "bytes 0x0-9/10",
        "bytes +0-9/10",
    ],
)
def test_anything_else_is_no_range(text):
    assert read_content_range((text,)) is None


def test_a_missing_or_repeated_field_is_no_range():
    assert read_content_range(()) is None
    assert read_content_range(("bytes 0-9/10", "bytes 0-9/10")) is None


@given(st.text(), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_what_is_read_makes_sense(noise, first, last, total):
    for text in (noise, f"bytes {first}-{last}/{total}"):
        found = read_content_range((text,))
        if found is not None and found.first is not None and found.last is not None:
            assert 0 <= found.first <= found.last
            assert found.total is None or found.last < found.total
