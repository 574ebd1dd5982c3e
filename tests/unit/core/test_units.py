import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.text import format_duration, format_size, parse_duration, parse_size
from tests.lengths import examples

bounded = settings(max_examples=examples(40, 100), deadline=None)
TIB = 1024**4


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("12345", 12345),
        ("512b", 512),
        ("1kB", 1000),
        ("1.001kB", 1001),
        ("500 MB", 500_000_000),
        ("2GB", 2_000_000_000),
        ("1TB", 10**12),
        ("1K", 1024),
        ("10G", 10 * 1024**3),
        ("1Ki", 1024),
        ("6GiB", 6 * 1024**3),
        ("6gib", 6 * 1024**3),
        ("1.5 GiB", 1536 * 1024**2),
        ("0.5 TiB", 512 * 1024**3),
        ("  6 GiB ", 6 * 1024**3),
        ("0.1", 0),
        ("0.3B", 0),
        ("9007199254740993", 2**53 + 1),
        ("9007199254740993.0", 2**53 + 1),
    ],
)
def test_a_size_is_read_to_the_byte(text, size_bytes):
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "GiB",
        "-1",
        "+1",
        "1e3",
        "1.",
        ".5",
        "1,5",
        "6XB",
        "6GiBs",
        "6 G iB",
        "nan",
        "inf",
        "0x10",
        "٣",
        "1_000",
    ],
)
def test_what_is_no_size_is_refused_with_examples(text):
    with pytest.raises(ValueError, match=rf"^{re.escape(repr(text))} is not a size; write for example"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (6 * 1024**3, "6.0 GiB"),
        (1024**4 - 1, "1.0 TiB"),
        (5000 * 1024**4, "5000.0 TiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_a_size_is_written_in_named_binary_units(size_bytes, text):
    assert format_size(size_bytes) == text


@bounded
@given(size_bytes=st.integers(min_value=0, max_value=2**80))
def test_plain_bytes_are_read_as_they_are(size_bytes):
    assert parse_size(str(size_bytes)) == size_bytes
    assert parse_size(f"{size_bytes} MiB") == size_bytes * 1024**2


@bounded
@given(size_bytes=st.integers(min_value=0, max_value=1024 * TIB))
def test_a_written_size_reads_back_within_its_rounding(size_bytes):
    text = format_size(size_bytes)
    number, unit = text.split()
    half_a_digit = 0 if unit == "B" else parse_size(f"0.05 {unit}") + 1
    assert abs(parse_size(text) - size_bytes) <= half_a_digit
    assert unit == "TiB" or float(number) < 1024


@bounded
@given(tenths=st.integers(min_value=10, max_value=10239), unit=st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_a_size_with_one_decimal_survives_reading_and_writing(tenths, unit):
    text = f"{tenths // 10}.{tenths % 10} {unit}"
    assert format_size(parse_size(text)) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("90", 90.0),
        ("1.5", 1.5),
        ("90s", 90.0),
        ("250ms", 0.25),
        ("15m", 900.0),
        ("2h", 7200.0),
        ("2H", 7200.0),
        ("7d", 604800.0),
        ("1w", 604800.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        ("1 h 30 m", 5400.0),
        ("1.5h", 5400.0),
        ("2m500ms", 120.5),
        (" 2h ", 7200.0),
    ],
)
def test_a_duration_is_read_as_seconds(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "h",
        "-1",
        "-2h",
        "1e3",
        "2y",
        "2h30",
        "1 0",
        "1 0s",
        "1. 5h",
        "2h,30m",
        "2 hours",
        "nan",
        "inf",
        "٣",
        "٣s",
        "1:30",
    ],
)
def test_what_is_no_duration_is_refused_with_examples(text):
    with pytest.raises(ValueError, match=rf"^{re.escape(repr(text))} is not a duration; write for example"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (0.42, "0.4s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (12, "12s"),
        (59.6, "1m00s"),
        (112, "1m52s"),
        (3599.6, "1h00m"),
        (7500, "2h05m"),
        (86399.9, "1d00h"),
        (273600, "3d04h"),
    ],
)
def test_a_duration_is_written_short_and_rounded(seconds, text):
    assert format_duration(seconds) == text


@bounded
@given(seconds=st.floats(min_value=0, max_value=1e8))
def test_a_written_duration_reads_back_within_its_smallest_part(seconds):
    text = format_duration(seconds)
    smallest_s = 0.05 if "." in text else parse_duration("1" + text[-1])
    assert abs(parse_duration(text) - seconds) <= smallest_s + 0.5 * (smallest_s > 1) + 1e-9


@bounded
@given(seconds=st.integers(min_value=10, max_value=3599))
def test_whole_seconds_below_an_hour_survive_writing_and_reading(seconds):
    assert parse_duration(format_duration(seconds)) == seconds
