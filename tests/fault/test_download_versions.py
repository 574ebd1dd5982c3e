"""F17 to F25: the file changes while it is fetched, or the server can't or won't say which version it serves.

Never a mixture: the bytes under the final name are those of one version. (F26, a branch that moves while a repository
is fetched, belongs to the hub.)
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.core.errors import BadAnswer, HashMismatch
from stoker.transfer.download.types import Status, TargetFile
from tests.fault.download_lab import (
    HALF,
    NAME,
    ONE,
    SIZE,
    TWO,
    Case,
    both_ways,
    goes_on,
    judge,
    open_lab,
    parametrised,
    random_bytes,
    starts_over,
)
from tests.servers import habits as bad
from tests.servers.faulty import Answer, Asked, Habit, Version, well

LONGER = replace(TWO, data=random_bytes(SIZE + 5000, 3))
SHORTER = replace(TWO, data=random_bytes(HALF - 5000, 4))
DATED = replace(ONE, etag=None)
DATED_TWO = replace(TWO, etag=None)
WEAK = replace(ONE, etag='W/"one"', last_modified=None)
WEAK_TWO = replace(TWO, etag='W/"two"', last_modified=None)
WEAK_DATED = replace(WEAK, last_modified=ONE.last_modified)
NAMELESS = replace(ONE, etag=None, last_modified=None)
NAMELESS_TWO = replace(TWO, etag=None, last_modified=None)
FUTURE = replace(ONE, etag=None, last_modified="Fri, 01 Jan 2100 00:00:00 GMT")
CLOCKLESS = replace(DATED, date=None)
YOUNG = replace(DATED, date="Wed, 01 Jan 2025 00:00:59 GMT")
UNQUOTED = replace(ONE, etag="one")
FOLDED = replace(ONE, etag='"one\r\n two"')
LATIN = replace(ONE, etag='"caf\u00e9"')
CONTROL = replace(ONE, etag='"a\x01b\x7f"')
GIANT_NAME = replace(ONE, etag='"' + "x" * 30_000 + '"')


def _deaf_to_conditions(version: Version) -> Habit:
    """Serve this version to whatever range is asked for, whatever it is to belong to."""
    return lambda asked, _: version.answer(asked.without("If-Range", "If-Match", "If-Unmodified-Since"))


def _dislikes_if_range(asked: Asked, version: Version) -> Answer:
    return version.answer(asked.without("Range") if asked.field("If-Range") else asked)


def _changed(id: str, before: Version, serves: Version, **more: object) -> Case:
    return Case(id=id, habit=well, had=HALF, before=before, serves=serves, **{"asks": starts_over, **more})  # type: ignore[arg-type]


def _unchanged(id: str, version: Version, **more: object) -> Case:
    return Case(id=id, habit=well, had=HALF, before=version, serves=version, **more)  # type: ignore[arg-type]


def _whole_or_by_date(asked: list[Asked]) -> bool:
    return all("W/" not in (one.field("If-Range") or "") for one in asked)


CASES = [
    _changed("F17-new-version-longer", ONE, LONGER, asks=lambda asked: True),
    _changed("F17-new-version-shorter-than-the-partial", ONE, SHORTER, asks=lambda asked: True),
    _changed("F18-new-version-same-size", ONE, TWO, asks=lambda asked: len(asked) == 1),
    Case(id="F18-if-range-ignored", habit=_deaf_to_conditions(TWO), had=HALF, serves=TWO, asks=starts_over),
    Case(
        id="F18-if-range-ignored-dated",
        habit=_deaf_to_conditions(DATED_TWO),
        had=HALF,
        before=DATED,
        serves=DATED_TWO,
        asks=starts_over,
    ),
    Case(
        id="F19-changes-between-two-requests",
        habit=bad.at_first(1, bad.cut(HALF, habit=bad.serving(ONE)), bad.serving(TWO)),
        serves=TWO,
    ),
    Case(
        id="F19-changes-between-two-requests-if-range-ignored",
        habit=bad.at_first(1, bad.cut(HALF, habit=bad.serving(ONE)), _deaf_to_conditions(TWO)),
        serves=TWO,
    ),
    Case(
        id="F19-changes-with-every-request",
        habit=lambda asked, _: (
            bad.cut(HALF)(asked, (ONE, TWO)[asked.number % 2]) if asked.number < 2 else TWO.answer(asked)
        ),
        serves=TWO,
    ),
    _unchanged("F20-weak-etag", WEAK, asks=_whole_or_by_date),
    _unchanged("F20-weak-etag-and-date", WEAK_DATED, asks=_whole_or_by_date),
    _changed("F20-weak-etag-changed", WEAK, WEAK_TWO, asks=_whole_or_by_date),
    _unchanged("F21-date-only", DATED, asks=lambda asked: asked[0].field("If-Range") == DATED.last_modified),
    _changed("F20-weak-etag-changed-date-kept", WEAK_DATED, replace(WEAK_DATED, data=TWO.data, etag='W/"two"')),
    _changed("F20-weak-etag-appears", DATED, replace(DATED, data=TWO.data, etag='W/"two"')),
    _changed("F20-weak-etag-goes", WEAK_DATED, replace(DATED, data=TWO.data)),
    _changed("F21-date-kept-without-a-clock", CLOCKLESS, replace(CLOCKLESS, data=TWO.data)),
    _changed("F21-date-kept-too-young", YOUNG, replace(YOUNG, data=TWO.data)),
    Case(
        id="F18-if-range-ignored-and-etag-gone",
        habit=_deaf_to_conditions(replace(NAMELESS, data=TWO.data)),
        had=HALF,
        serves=TWO,
        asks=starts_over,
    ),
    Case(
        id="F18-if-range-ignored-and-date-gone",
        habit=_deaf_to_conditions(replace(NAMELESS, data=TWO.data)),
        had=HALF,
        before=DATED,
        serves=TWO,
        asks=starts_over,
    ),
    _changed("F21-date-only-changed", DATED, DATED_TWO, asks=lambda asked: len(asked) == 1),
    _unchanged("F21-date-in-the-future", FUTURE),
    _unchanged("F22-no-validator", NAMELESS),
    _changed("F22-no-validator-changed", NAMELESS, NAMELESS_TWO),
    Case(
        id="F23-if-range-disliked",
        habit=_dislikes_if_range,
        had=HALF,
        asks=lambda asked: any(one.is_ranged and one.field("If-Range") is None for one in asked),
    ),
    Case(id="F24-head-says-other-size", habit=bad.to_heads(bad.with_fields(content_length="123"))),
    Case(id="F24-head-says-other-etag", habit=bad.to_heads(bad.with_fields(etag='"other"')), had=HALF),
    Case(id="F24-head-is-of-another-version", habit=bad.to_heads(bad.serving(LONGER))),
    Case(id="F25-304-to-a-plain-get", habit=bad.to_gets(bad.status(304)), ends=BadAnswer),
    Case(id="F25-304-to-a-resume", habit=bad.at_first(1, bad.status(304)), had=HALF, asks=goes_on),
    Case(id="F25-304-to-a-resume-always", habit=bad.to_resumes(bad.status(304)), had=HALF, ends=BadAnswer),
    Case(id="412-to-a-resume", habit=bad.to_resumes(bad.status(412)), had=HALF, asks=starts_over),
    _unchanged("etag-without-quotes", UNQUOTED),
    _unchanged("etag-of-two-lines", FOLDED),
    _unchanged("etag-beyond-ascii", LATIN),
    _unchanged("etag-with-control-characters", CONTROL),
    _unchanged("etag-of-30-kB", GIANT_NAME),
    Case(
        id="etag-reused-for-other-bytes",
        habit=well,
        had=HALF,
        serves=replace(ONE, data=TWO.data),
        ends_bare="blind",
    ),
]


@both_ways
@parametrised(CASES)
def test_the_bytes_are_those_of_one_version(case, with_digest, memory):
    judge(case, memory / "out", with_digest=with_digest)


def test_a_version_that_is_not_the_wanted_one_is_refused_and_nothing_is_left_of_it(memory):
    with open_lab(memory / "out") as lab:
        lab.interrupt(HALF, ONE)
        lab.server.become(well, TWO)
        with pytest.raises(HashMismatch) as caught:
            lab.fetch(ONE)
        assert caught.value.exit_code == 13
        assert lab.has() is None
        lab.server.become(well, ONE)
        lab.fetch(ONE)
        assert lab.has() == ONE.data


@pytest.mark.parametrize(("first", "second"), [(ONE, TWO), (NAMELESS, NAMELESS_TWO)], ids=["named", "nameless"])
def test_f22_the_start_of_another_version_is_found_out_by_the_digest_and_fetched_anew_once(memory, first, second):
    """What was wanted all along is only served by now; nothing but the digest may be able to tell."""
    with open_lab(memory / "out", first) as lab:
        lab.interrupt(HALF, second)
        lab.server.become(_deaf_to_conditions(second), second)
        lab.fetch(second)
        assert lab.has() == second.data
        assert len(lab.server.gets()) <= 2


@both_ways
def test_a_wanted_size_is_held_to(memory, with_digest):
    with open_lab(memory / "out") as lab:
        with pytest.raises((HashMismatch, BadAnswer)):
            lab.fetch(ONE if with_digest else None, size_bytes=SIZE + 1)
        assert lab.has() is None
        lab.fetch(ONE if with_digest else None, size_bytes=SIZE)
        assert lab.has() == ONE.data


@both_ways
def test_f25_a_file_that_is_there_and_unchanged_is_not_fetched_again(memory, with_digest):
    wanted = ONE if with_digest else None
    with open_lab(memory / "out") as lab:
        landing = TargetFile(folder=str(lab.folder), name=NAME, keeps_validators=True)
        assert lab.fetch(wanted, landing=landing).status == Status.DOWNLOADED
        lab.server.become(well)
        again = lab.fetch(wanted, landing=landing)
        assert (again.status, again.bytes_from_network) == (Status.CACHED, 0)
        lab.path.unlink()
        assert lab.fetch(wanted, landing=landing).status == Status.DOWNLOADED
        assert lab.has() == ONE.data


def test_f25_a_file_that_changed_on_the_server_is_fetched_again_and_replaces_the_old_one_whole(memory):
    with open_lab(memory / "out") as lab:
        landing = TargetFile(folder=str(lab.folder), name=NAME, keeps_validators=True)
        lab.fetch(landing=landing)
        lab.server.become(bad.at_first(1, bad.cut(HALF)), TWO)
        lab.fetch(landing=landing)
        assert lab.has() == TWO.data


def test_f25_an_edited_file_with_its_old_validators_is_not_passed_off_as_the_wanted_one(memory):
    with open_lab(memory / "out") as lab:
        landing = TargetFile(folder=str(lab.folder), name=NAME, keeps_validators=True)
        lab.fetch(ONE, landing=landing)
        lab.path.chmod(0o644)
        lab.path.write_bytes(b"edited")
        lab.fetch(ONE, landing=landing)
        assert lab.has() == ONE.data


def test_goes_on_where_it_was_when_nothing_changed(memory):
    with open_lab(memory / "out") as lab:
        lab.interrupt(HALF)
        lab.server.become(well)
        lab.fetch()
        assert goes_on(lab.server.gets())
