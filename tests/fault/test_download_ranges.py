"""F01 to F16: servers that answer a resume with the wrong part, or with no part at all.

Each of them ends with the right bytes, from zero where there is no other way. Where the lie can't be seen without a
digest, the run that was told none is blind, and says so in the table.
"""

from __future__ import annotations

import os

import pytest

from stoker.core.errors import BadAnswer
from tests.fault.download_lab import (
    HALF,
    ONE,
    SIZE,
    TWO,
    Case,
    both_ways,
    goes_on,
    judge,
    open_lab,
    parametrised,
    starts_over,
)
from tests.servers import habits as bad
from tests.servers.faulty import Answer, Asked, Habit, Version, well

NONSENSE = {
    "other-unit": "bits {first}-{last}/{size}",
    "no-unit": "{first}-{last}/{size}",
    "negative": "bytes -{first}-{last}/{size}",
    "overflow": "bytes {first}-99999999999999999999999999/{size}",
    "stars": "bytes */*",
    "star-size": "bytes */{size}",
    "backwards": "bytes {last}-{first}/{size}",
    "past-the-end": "bytes {first}-{size}/{size}",
    "empty": "",
    "words": "bytes some-more/{size}",
    "other-digits": "bytes {first}-{last}/\u00b2",
    "twice-in-one": "bytes {first}-{last}/{size}, bytes {first}-{last}/{size}",
    "hexadecimal": "bytes 0x10-0x20/{size}",
    "signed": "bytes +{first}-+{last}/+{size}",
}


def _short_ranges(asked: Asked, version: Version) -> Answer:
    """Return at most 10,000 bytes of what was asked for, and say so."""
    last = min(len(version.data), asked.first_byte + 10_000) - 1
    return version.answer(asked.having("Range", f"bytes={asked.first_byte}-{last}"))


def _two_content_ranges(asked: Asked, version: Version) -> Answer:
    right = version.answer(asked)
    right.fields.append(("Content-Range", f"bytes 0-{SIZE - 1}/{SIZE}"))
    return right


def _other_bytes_unnamed(asked: Asked, version: Version) -> Answer:
    """The right range, of another version, with nothing that names it."""
    return Version(data=TWO.data, etag=None, last_modified=None).answer(asked.without("If-Range"))


def _whole_file_with_content_range(asked: Asked, version: Version) -> Answer:
    return version.answer(asked.without("Range")).set("Content-Range", f"bytes 0-{SIZE - 1}/{SIZE}")


def _resumed(id: str, habit: Habit, **more: object) -> Case:
    return Case(id=id, habit=bad.to_resumes(habit), had=HALF, **{"asks": starts_over, **more})  # type: ignore[arg-type]


CASES = [
    _resumed("F01-range-ignored", bad.ignores_ranges, asks=lambda asked: len(asked) <= 2),
    _resumed("F01-200-with-content-range", _whole_file_with_content_range, asks=lambda asked: len(asked) <= 2),
    _resumed("F02-starts-early", bad.shifted(-1000)),
    _resumed("F02-starts-at-zero", bad.shifted(-HALF)),
    _resumed("F03-starts-late", bad.shifted(1000)),
    _resumed("F04-misaligned-but-as-long", bad.shifted(-1000, as_long=True)),
    _resumed("F04-misaligned-and-lies", bad.shifted(-1000, as_long=True, claims_as_asked=True), ends_bare="blind"),
    _resumed("F05-no-content-range", bad.content_range(None)),
    _resumed("F05-no-content-range-from-zero", bad.content_range(None, whole_body=True)),
    *(_resumed(f"F06-{name}", bad.content_range(value)) for name, value in NONSENSE.items()),
    _resumed("F06-two-fields-that-differ", _two_content_ranges),
    _resumed("F07-larger-total", bad.content_range("bytes {first}-{last}/1200005")),
    _resumed("F07-smaller-total", bad.content_range("bytes {first}-{last}/1199995")),
    _resumed("F08-shorter-than-it-says", bad.resized(-1000)),
    _resumed("F08-empty", bad.resized(-HALF)),
    _resumed("F09-longer-than-it-says", bad.resized(1000)),
    _resumed("F10-multipart", bad.multipart),
    Case(id="F11-part-of-what-was-asked-whole", habit=bad.to_gets(bad.partial_unasked), ends=BadAnswer),
    _resumed("F12-416-true-size", bad.refusing_range()),
    _resumed("F12-416-other-size", bad.refusing_range(size=HALF)),
    _resumed("F13-416-without-size", bad.refusing_range(tells_size=False)),
    _resumed("F15-ranges-not-announced", bad.with_fields(accept_ranges=None), asks=goes_on),
    _resumed("F15-ranges-denied-but-work", bad.with_fields(accept_ranges="none"), asks=lambda asked: True),
    Case(id="F15-announced-but-ignored", habit=bad.ignores_ranges, had=HALF),
    _resumed("other-version-with-no-name", _other_bytes_unnamed, ends_bare="blind"),
    _resumed("short-ranges", _short_ranges, asks=lambda asked: True),
]


@both_ways
@parametrised(CASES)
def test_a_resume_ends_with_the_right_bytes_or_none(case, with_digest, memory):
    judge(case, memory / "out", with_digest=with_digest)


@both_ways
@pytest.mark.parametrize("knows_range", [True, False], ids=["416", "200"])
def test_f14_a_partial_that_is_whole_is_checked_and_not_fetched_again(memory, with_digest, knows_range):
    with open_lab(memory / "out") as lab:
        wanted = ONE if with_digest else None
        lab.interrupt(SIZE - 1, wanted)
        with open(lab.partial, "ab") as file:
            file.write(ONE.data[-1:])
        lab.server.become(well if knows_range else bad.ignores_ranges)
        fetched = lab.fetch(wanted)
        assert lab.has() == ONE.data
        assert lab.leftovers() == []
        if with_digest:
            assert fetched.bytes_from_network == 0


@both_ways
@pytest.mark.parametrize("more", [1, SIZE], ids=["by-one-byte", "twice-as-long"])
def test_f16_a_partial_that_is_longer_than_the_file_is_not_trusted(memory, with_digest, more):
    with open_lab(memory / "out") as lab:
        wanted = ONE if with_digest else None
        lab.interrupt(HALF, wanted)
        with open(lab.partial, "ab") as file:
            file.write(os.urandom(SIZE - HALF + more))
        lab.server.become(well)
        lab.fetch(wanted)
        assert lab.has() == ONE.data
        assert lab.leftovers() == []


@both_ways
def test_what_was_resumed_is_counted_apart_from_what_came(memory, with_digest):
    with open_lab(memory / "out") as lab:
        wanted = ONE if with_digest else None
        lab.interrupt(HALF, wanted)
        lab.server.become(well)
        fetched = lab.fetch(wanted)
        assert (fetched.bytes_resumed, fetched.bytes_from_network) == (HALF, SIZE - HALF)
        (asked,) = lab.server.gets()
        assert asked.field("Range") == f"bytes={HALF}-"
        assert asked.field("If-Range") == ONE.etag
        assert asked.field("Accept-Encoding") == "identity"
