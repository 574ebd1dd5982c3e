from __future__ import annotations

import os
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.clock import FakeClock
from stoker.core.digests import Digest, digest_bytes
from stoker.store.local_store import LocalStore, RecordMiss
from stoker.store.put import add_row
from stoker.store.refs import find_ref, ref_path, remove_ref
from stoker.store.verify import (
    EVERYTHING,
    DigestSample,
    StoreItemCheck,
    Throttle,
    bytes_to_check,
    check_store,
    part,
    read_sample,
)
from tests.unit.store.real_stores import (
    BIG,
    blob_of,
    clock_of_now,
    commit,
    found,
    key_of,
    make_store,
    put_contents,
    put_in,
    quarantined,
    record_of,
)

digests = st.binary(min_size=32, max_size=32).map(bytes.hex).map(Digest)


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "store")


def check(store: LocalStore, sample: DigestSample | None = EVERYTHING, heed=lambda _: None) -> list[StoreItemCheck]:
    return list(check_store(store, afresh=sample, heed=heed, clock=clock_of_now()))


def damages(store: LocalStore, sample: DigestSample | None = EVERYTHING) -> dict[str, str]:
    return {f"{one.what} {one.key[:6]}": one.damage for one in check(store, sample) if one.damage}


def rot(path: Path) -> None:
    """Change bytes and let nothing show it but the bytes."""
    info = path.stat()
    path.chmod(0o644)
    with open(path, "r+b") as file:
        file.write(b"!")
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    path.chmod(0o444)


@given(digests, st.integers(1, 40))
def test_every_digest_is_in_exactly_one_of_m_parts(digest, count):
    assert sum(part(number, count).takes(digest) for number in range(1, count + 1)) == 1


@given(st.integers(1, 1000))
def test_parts_are_of_the_same_size(count):
    widths = {part(number, count).width for number in range(1, count + 1)}
    assert max(widths) - min(widths) <= 1


@given(digests, st.integers(0, 2**64 - 1))
def test_a_share_takes_what_lies_behind_its_beginning_around_the_end(digest, start):
    place = int(digest[:16], 16)
    assert DigestSample(start=start, width=2**63).takes(digest) is ((place - start) % 2**64 < 2**63)
    assert EVERYTHING.takes(digest)


@pytest.mark.parametrize(
    ("text", "share"), [("1/20", Fraction(1, 20)), (" 3/3 ", Fraction(1, 3)), ("5%", Fraction(1, 20)), ("100%", 1)]
)
def test_a_sample_is_read_as_people_write_it(text, share):
    assert read_sample(text, chance=2**64 - 7).width == pytest.approx(2**64 * share)


@pytest.mark.parametrize("text", ["", "0/3", "4/3", "1/0", "5", "0%", "101%", "-1/3", "1/3/5", "a%", "1.5/3", "nan%"])
def test_a_sample_that_is_none_is_refused(text):
    with pytest.raises(ValueError, match="is not a part"):
        read_sample(text, chance=0)


def test_a_throttle_lets_no_more_pass_than_told_and_makes_nothing_up_in_a_rush():
    clock = FakeClock()
    told: list[int] = []
    throttle = Throttle(1000, clock, told.append)
    for _ in range(10):
        throttle.heed(500)
    assert clock.monotonic_s() == pytest.approx(5.0)
    assert sum(told) == 5000
    assert len(told) > 50, "whoever wants to stop waits for long"
    clock.advance(100.0)
    throttle.heed(500)
    before_s = clock.monotonic_s()
    for _ in range(10):
        throttle.heed(500)
    assert clock.monotonic_s() - before_s == pytest.approx(4.0, abs=0.6)


def test_all_is_well_with_what_is_well(store, tmp_path):
    commit(store, "a", {"x": b"1" * BIG, "small": b"s"}, body={"stage": "train"})
    (tmp_path / "f").write_bytes(b"2" * BIG)
    put_in(store, tmp_path / "f", "f")
    told: list[int] = []
    assert sorted((one.what, one.stage, one.damage) for one in check(store, heed=told.append)) == [
        ("put", "", ""),
        ("result", "train", ""),
    ]
    assert sum(told) == bytes_to_check(store, EVERYTHING) == 2 * BIG


def test_rot_that_shows_in_no_times_is_found_by_a_full_check_and_set_aside(store, monkeypatch):
    commit(store, "a", {"x": b"1" * BIG})
    commit(store, "b", {"y": b"1" * BIG, "z": b"2" * BIG})
    rotten = blob_of(store, "a", "x")
    rot(rotten)
    # As if even the ctime were what it was: the memo would vouch for it.
    monkeypatch.setattr(store.memo, "recall", lambda name, stamp: Digest(name))
    assert damages(store, None) == {}
    assert damages(store) == {
        f"result {key_of('a')[:6]}": "lost: x",
        f"result {key_of('b')[:6]}": "lost: y",
    }
    assert not rotten.exists()
    assert len(quarantined(store)) == 1


def test_a_blob_that_several_records_share_is_hashed_once(store):
    for name in ("a", "b", "c"):
        commit(store, name, {"x": b"1" * BIG})
    told: list[int] = []
    check(store, heed=told.append)
    assert sum(told) == BIG


def test_m_parts_hash_everything_once_and_find_all_damage(store):
    for number in range(30):
        commit(store, number, {"x": b"%d" % number * BIG})
    rotten = {number: blob_of(store, number, "x") for number in (3, 17, 29)}
    for path in rotten.values():
        rot(path)
    total = bytes_to_check(store, EVERYTHING)
    told: list[int] = []
    lost: set[str] = set()
    for number in range(1, 5):
        for one in check_store(store, afresh=part(number, 4), heed=told.append, clock=clock_of_now()):
            if one.damage:
                lost.add(one.key)
    assert sum(told) == total
    assert lost == {key_of(number) for number in rotten}
    assert len(quarantined(store)) == 3


def test_of_what_is_not_in_the_part_a_missing_or_short_blob_is_found_all_the_same(store):
    nothing = DigestSample(start=0, width=0)
    commit(store, "a", {"x": b"1" * BIG})
    commit(store, "b", {"x": b"2" * BIG})
    blob_of(store, "a", "x").unlink()
    short = blob_of(store, "b", "x")
    short.chmod(0o644)
    os.truncate(short, 10)
    assert set(damages(store, nothing).values()) == {"lost: x"}
    assert len(damages(store, nothing)) == 2
    assert not short.exists()


def orphan(store: LocalStore, data: bytes, *, name: str = "") -> Path:
    digest = name or digest_bytes(data)
    path = Path(store.places.blob(Digest(digest)))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def test_a_blob_that_no_record_names_is_checked_too(store):
    good, bad = orphan(store, b"good"), orphan(store, b"bad", name="ab" * 32)
    assert damages(store, None) == {}
    assert damages(store) == {"blob ababab": "does not have the bytes it is named by"}
    assert good.exists()
    assert not bad.exists()
    assert len(quarantined(store)) == 1
    assert damages(store) == {}


def test_a_damaged_record_is_set_aside_and_the_others_are_checked(store):
    for name in ("a", "b"):
        commit(store, name, {"x": name.encode() * BIG})
    os.truncate(record_of(store, "a"), 40)
    assert list(damages(store)) == [f"result {key_of('a')[:6]}"]
    assert found(store, "b").has_bytes


def test_to_check_is_not_to_use(store):
    commit(store, "a", {"x": b"1" * BIG})
    os.utime(record_of(store, "a"), (1000.0, 1000.0))
    check(store)
    check(store, None)
    assert record_of(store, "a").stat().st_mtime == 1000.0


def test_what_is_pruned_while_it_is_checked_is_not_called_lost(store, monkeypatch):
    commit(store, "a", {"x": b"1" * BIG})
    record = found(store, "a").record

    def prune(_size_bytes: int) -> None:
        store.swap(record, record.without_bytes())
        blob_of(store, "a", "x").unlink(missing_ok=True)

    really = store.holds
    monkeypatch.setattr(store, "holds", lambda entry, heed=None: (prune(0), really(entry, heed=heed))[1])
    assert damages(store) == {}


def test_a_tombstone_is_no_damage(store):
    record = commit(store, "a", {"x": b"1" * BIG}).record
    store.swap(record, record.without_bytes())
    blob = Path(store.places.blob(record.blobs()[0].sha256))
    blob.unlink()
    assert damages(store) == {}


@pytest.fixture
def put(store, tmp_path):
    (tmp_path / "f").write_bytes(b"2" * BIG)
    put_in(store, tmp_path / "f", "first")
    return put_in(store, tmp_path / "f", "f").ref


def test_a_damaged_ref_is_set_aside_and_read_back_from_the_index(store, put):
    path = Path(ref_path(store.places, "f"))
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:50])
    (one,) = (one for one in check(store, None) if one.damage)
    assert (one.what, one.names, one.stage) == ("ref", ("f",), "")
    assert "repaired from the index" in one.damage
    assert find_ref(store.places, "f") == put
    assert put_contents(store, "f") == {"f": b"2" * BIG}
    assert quarantined(store) == ["a damaged ref"]
    assert damages(store, None) == {}


def test_damage_to_what_was_put_is_told_by_its_names_and_its_digest(store, put):
    path = Path(store.places.blob(store.peek(put.key).blobs()[0].sha256))
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1])
    (one,) = (one for one in check(store, None) if one.damage)
    assert (one.what, one.names, one.digest, one.key) == ("put", ("f", "first"), put.digest, put.key)


def test_a_damaged_ref_that_the_index_does_not_know_stays_and_is_told(store, put):
    remove_ref(store.places, "f")
    add_row(store.places, {"did": "remove", "name": "f", "at": 0.0})
    Path(ref_path(store.places, "f")).write_bytes(b"junk")
    (one,) = (one for one in check(store, None) if one.damage)
    assert "put that again" in one.damage
    assert os.path.exists(ref_path(store.places, "f"))


def test_a_ref_whose_thing_is_gone_or_was_pruned_is_told(store, put):
    record = store.peek(put.key)
    assert not isinstance(record, RecordMiss)
    store.swap(record, record.without_bytes())
    assert damages(store, None)[f"ref {put.key[:6]}"] == "the bytes of its tree were pruned"
    os.unlink(store.places.record(put.key))
    assert damages(store, None)[f"ref {put.key[:6]}"] == "its tree is gone"


def test_a_check_that_is_stopped_leaves_everything_as_it_is(store):
    commit(store, "a", {"x": b"1" * BIG})

    def stop(_size_bytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check(store, heed=stop)
    assert found(store, "a").has_bytes
    assert quarantined(store) == []
