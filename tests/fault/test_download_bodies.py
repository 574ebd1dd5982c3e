"""F27 to F36: bodies that are too short, too long, squeezed, damaged or something else altogether."""

from __future__ import annotations

import gzip
from dataclasses import replace

import pytest

from stoker.core.errors import BadAnswer, HashMismatch, NetworkFailed
from tests.fault.download_lab import HALF, ONE, SIZE, Case, both_ways, goes_on, judge, open_lab, parametrised
from tests.servers import habits as bad
from tests.servers.faulty import Answer, Asked, Habit, Line, Version, well

EMPTY = replace(ONE, data=b"")
PAGE = b"<html><body>please log in</body></html>"
ERROR = b"404: file not found\r\n"


def _drip(size: int) -> Habit:
    """Break off after so many bytes, every time."""
    return bad.cut(size)


def _length(*values: str, habit: Habit = well) -> Habit:
    return bad.with_fields(habit, content_length=values)


def _closing(habit: Habit) -> Habit:
    """End the connection after each answer."""

    def answer(asked: Asked, version: Version) -> Answer:
        right = habit(asked, version)
        right.is_last = True
        return right

    return answer


def _old_protocol(asked: Asked, version: Version) -> Answer:
    right = bad.ignores_ranges(asked, version).set("Accept-Ranges")
    right.protocol = "HTTP/1.0"
    return right


def _both_lengths(length: int) -> Habit:
    def answer(asked: Asked, version: Version) -> Answer:
        return bad.chunked()(asked, version).set("Content-Length", str(length))

    return answer


CASES = [
    Case(id="F27-cut", habit=bad.at_first(1, bad.cut(HALF)), asks=lambda asked: asked[1].first_byte == HALF),
    Case(id="F27-cut-before-the-first-byte", habit=bad.at_first(1, bad.cut(0))),
    Case(id="F27-cut-one-byte-short", habit=bad.at_first(1, bad.cut(-1))),
    Case(id="F27-cut-every-50000-bytes", habit=_drip(50_000), asks=lambda asked: len(asked) == SIZE // 50_000),
    Case(id="F27-cut-again-in-the-resume", habit=bad.at_first(2, bad.cut(50_000)), had=HALF, asks=goes_on),
    Case(id="F27-never-a-byte", habit=bad.to_gets(bad.cut(0)), ends=NetworkFailed),
    Case(id="F28-chunks-cut", habit=bad.at_first(1, bad.chunked(is_cut=True))),
    Case(
        id="F28-chunks-cut-always",
        habit=bad.to_gets(bad.chunked(is_cut=True, habit=bad.ignores_ranges)),
        ends=NetworkFailed,
    ),
    Case(id="F29-no-length", habit=bad.unannounced()),
    Case(id="F29-no-length-closed-early", habit=bad.to_gets(bad.unannounced(HALF))),
    Case(id="F30-length-too-small", habit=bad.to_gets(_length(str(HALF))), ends=HashMismatch, ends_bare=BadAnswer),
    Case(id="F30-length-too-large", habit=bad.at_first(1, _closing(_length(str(SIZE + 100))))),
    Case(id="F30-length-negative", habit=bad.to_gets(_closing(_length("-5"))), ends=BadAnswer),
    Case(id="F30-length-twice", habit=bad.to_gets(_length(str(SIZE), str(SIZE - 5))), ends=BadAnswer),
    Case(id="F30-length-twice-but-equal", habit=_length(str(SIZE), str(SIZE)), ends=None),
    Case(id="F30-length-in-words", habit=bad.to_gets(_closing(_length("many"))), ends=BadAnswer),
    Case(id="F30-length-empty", habit=bad.to_gets(_closing(_length(""))), ends=BadAnswer),
    Case(id="F30-length-signed", habit=bad.to_gets(_closing(_length(f"+{SIZE}"))), ends=BadAnswer),
    Case(id="F30-length-beyond-64-bits", habit=bad.to_gets(_closing(_length("9" * 30))), ends=BadAnswer),
    Case(id="F30-length-of-5000-digits", habit=bad.to_gets(_closing(_length("9" * 5000))), ends=BadAnswer),
    Case(id="F31-gzip", habit=bad.to_gets(bad.encoded("gzip")), ends=BadAnswer),
    Case(id="F31-gzip-in-the-resume", habit=bad.at_first(1, bad.encoded("gzip")), had=HALF, asks=goes_on),
    Case(id="F31-gzip-in-every-resume", habit=bad.to_resumes(bad.encoded("gzip")), had=HALF, ends=BadAnswer),
    Case(id="F31-deflate", habit=bad.to_gets(bad.encoded("deflate")), ends=BadAnswer),
    Case(id="F31-br", habit=bad.to_gets(bad.with_fields(content_encoding="br")), ends=BadAnswer),
    Case(id="F31-zstd", habit=bad.to_gets(bad.with_fields(content_encoding="zstd")), ends=BadAnswer),
    Case(id="F31-identity-said-aloud", habit=bad.with_fields(content_encoding="identity")),
    Case(id="F32-flipped-bit", habit=bad.flipped(HALF), ends=HashMismatch, ends_bare="blind"),
    Case(id="F32-flipped-bit-in-the-resume", habit=bad.to_resumes(bad.flipped(HALF + 1)), had=HALF, ends_bare="blind"),
    Case(id="F33-empty-file", habit=well, before=EMPTY, serves=EMPTY),
    Case(id="F33-empty-file-in-chunks", habit=bad.chunked(), before=EMPTY, serves=EMPTY),
    Case(id="F33-empty-file-without-length", habit=bad.unannounced(), before=EMPTY, serves=EMPTY),
    Case(id="F33-became-empty", habit=well, had=HALF, serves=replace(EMPTY, etag='"two"')),
    Case(id="F34-login-page", habit=bad.page(PAGE), ends=HashMismatch, ends_bare=BadAnswer),
    Case(
        id="F34-login-page-that-hides",
        habit=bad.with_fields(bad.page(PAGE), content_type="application/octet-stream"),
        ends=HashMismatch,
        ends_bare="blind",
    ),
    Case(id="F35-error-page-over-a-partial", habit=bad.to_gets(bad.page(ERROR)), had=HALF, ends=BadAnswer),
    Case(id="F36-one-byte-chunks", habit=bad.chunked([1] * 300 + [65536])),
    Case(id="F36-trailers", habit=bad.chunked(trailer="X-Sum: 5")),
    Case(id="F36-chunked-resume", habit=bad.chunked([1000]), had=HALF, asks=goes_on),
    Case(id="http-1.0", habit=_old_protocol, had=HALF),
    Case(id="length-and-chunks", habit=_both_lengths(SIZE), ends=BadAnswer),
    Case(id="wrong-length-and-chunks", habit=_both_lengths(5), ends=BadAnswer),
]


@both_ways
@parametrised(CASES)
def test_a_body_is_taken_only_when_it_is_whole(case, with_digest, memory):
    judge(case, memory / "out", with_digest=with_digest)


SMALL = replace(ONE, data=ONE.data[:50_000])
"""Held in memory until it is whole: there is never a part of it on the disk."""
SMALL_CASES = [
    Case(id="cut", habit=bad.at_first(2, bad.cut(20_000))),
    Case(id="cut-always", habit=bad.cut(20_000), ends=NetworkFailed),
    Case(id="reset", habit=bad.at_first(1, bad.cut(49_999, Line.reset))),
    Case(id="chunks-cut", habit=bad.at_first(1, bad.chunked(is_cut=True))),
    Case(id="length-too-large", habit=bad.at_first(1, _closing(_length("50100")))),
    Case(id="no-length-closed-early", habit=bad.at_first(1, bad.unannounced(20_000))),
    Case(id="gzip", habit=bad.encoded("gzip"), ends=BadAnswer),
    Case(id="flipped-bit", habit=bad.flipped(20_000), ends=HashMismatch, ends_bare="blind"),
    Case(id="flipped-bit-once-in-two-pieces", habit=bad.at_first(1, bad.cut(20_000, habit=bad.flipped(100)))),
    Case(id="over-a-larger-partial", habit=well, had=HALF, before=ONE, serves=replace(SMALL, etag='"two"')),
]


@both_ways
@parametrised(
    [
        replace(case, before=case.before if case.had else SMALL, serves=case.serves if case.had else SMALL)
        for case in SMALL_CASES
    ]
)
def test_a_small_body_is_taken_only_when_it_is_whole(case, with_digest, memory):
    judge(case, memory / "out", with_digest=with_digest)


def test_f31_what_is_stored_squeezed_on_the_server_stays_so(memory):
    """A file that is a gzip file is not decoded on its way."""
    squeezed = replace(ONE, data=gzip.compress(ONE.data))
    with open_lab(memory / "out", squeezed) as lab:
        lab.fetch(squeezed)
        assert lab.has() == squeezed.data


def test_f32_a_damaged_fetch_over_one_connection_is_not_tried_again(memory):
    """There is nothing that a second try could mend, and a large file is not fetched twice for nothing."""
    with open_lab(memory / "out") as lab:
        lab.server.become(bad.flipped(5))
        with pytest.raises(HashMismatch):
            lab.fetch(ONE)
        assert len(lab.server.gets()) == 1
        assert lab.has() is None


def test_f32_a_damaged_resume_is_fetched_anew_once_and_then_refused(memory):
    with open_lab(memory / "out") as lab:
        lab.interrupt(HALF, ONE)
        lab.server.become(bad.flipped(HALF + 5))
        with pytest.raises(HashMismatch):
            lab.fetch(ONE)
        assert [asked.first_byte for asked in lab.server.gets()] == [HALF, 0]
        assert lab.has() is None


@both_ways
def test_f37_a_reset_at_every_power_of_two_loses_nothing_that_came(memory, with_digest):
    places = [2**power for power in range(21) if 2**power < SIZE] + [SIZE - 1]
    with open_lab(memory / "out") as lab:
        for place in places:
            lab.server.become(bad.at_first(1, bad.cut(place, Line.reset)))
            lab.fetch(ONE if with_digest else None, force=True)
            assert lab.has() == ONE.data
            assert [asked.first_byte for asked in lab.server.gets()] == [0, place]
