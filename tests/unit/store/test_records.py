from __future__ import annotations

import hashlib
import math
import os

import pytest

from stoker.core.digests import Tree, TreeEntry, digest_bytes
from stoker.store.records import BadRecord, Record, parse_record, read_file, read_record
from tests.unit.store.real_stores import key_of

KEY = key_of("one")
TREE = Tree(
    (
        TreeEntry("big", 9000, digest_bytes(b"b" * 9000)),
        TreeEntry("link", 3, digest_bytes(b"big"), link_to="big"),
        TreeEntry("sub/größe", 2, digest_bytes(b"ab"), executable=True),
        TreeEntry("zero", 0, digest_bytes(b"")),
    )
)
INLINE = {"sub/größe": b"ab", "zero": b""}
BODY = {"loss": math.nan, "text": "ä\n", "$odd": [1, None]}
RECORD = Record.of(key=KEY, tree=TREE, inline=INLINE, body=BODY)


def test_a_record_comes_back_as_it_was_written():
    record = read_record(RECORD.to_bytes(), KEY)
    assert (record.key, record.digest, record.tree, record.inline) == (KEY, TREE.digest(), TREE, INLINE)
    assert math.isnan(record.body.pop("loss"))
    assert repr(record.body) == repr(BODY)
    assert not record.is_tombstone
    assert [entry.path for entry in record.blobs()] == ["big"]
    assert record.to_bytes() == RECORD.to_bytes()


def test_a_tombstone_knows_what_was_and_has_no_bytes():
    tombstone = read_record(RECORD.without_bytes().to_bytes(), KEY)
    assert tombstone.is_tombstone
    assert (tombstone.digest, tombstone.tree, tombstone.inline, tombstone.blobs()) == (TREE.digest(), TREE, {}, [])
    assert tombstone.body["text"] == "ä\n"


def test_the_same_bytes_may_lie_under_another_key():
    other = RECORD.under(key_of("two"), {"adopted": True})
    again = read_record(other.to_bytes(), key_of("two"))
    assert (again.tree, again.inline, again.body) == (TREE, INLINE, {"adopted": True})


def test_a_record_is_not_taken_for_another_ones():
    with pytest.raises(BadRecord, match=f"is the record of {KEY[:12]}"):
        read_record(RECORD.to_bytes(), key_of("two"))


def test_no_flipped_bit_and_no_truncation_goes_unnoticed():
    data = RECORD.to_bytes()
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        for damaged in (bytes(flipped), data[:position]):
            with pytest.raises(BadRecord):
                read_record(damaged, KEY)
    with pytest.raises(BadRecord):
        read_record(data + b"\n", KEY)


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"\n",
        b"too few fields\n",
        b"%b %b B x y\n" % (KEY.encode(), KEY.encode()),
        b"%b %b - 2 2\n[]{}" % (KEY.encode(), KEY.encode()),
        b"%b %b - 26 1\n{'tree':[[1]],'inline':[]} {" % (KEY.encode(), KEY.encode()),
        b"%b %b - 22 1\n%b{" % (KEY.encode(), KEY.encode(), b'{"tree":[],"inline":[]}'),
    ],
)
def test_nonsense_with_the_right_sum_is_no_record_either(rest):
    data = b"stoker-record 1 %b\n%b" % (hashlib.sha256(rest).hexdigest().encode(), rest)
    with pytest.raises(BadRecord):
        parse_record(data, KEY)


def test_another_format_is_not_read():
    with pytest.raises(BadRecord):
        read_record(RECORD.to_bytes().replace(b"stoker-record 1", b"stoker-record 2"), KEY)


def test_a_file_is_read_whole_whatever_its_size(tmp_path):
    for size in (0, 1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, 3_000_000):
        path = tmp_path / str(size)
        path.write_bytes(b"x" * size)
        os.utime(path, (7, 7))
        data, info = read_file(str(path)) or (b"", None)
        assert data == b"x" * size
        assert info == path.stat()


def test_no_file_is_nothing_and_anything_but_a_file_is_a_bad_record(tmp_path):
    assert read_file(str(tmp_path / "nothing")) is None
    (tmp_path / "loop").symlink_to("loop")
    for path in (tmp_path, tmp_path / "loop"):
        with pytest.raises(BadRecord, match="can't be read"):
            read_file(str(path))


def test_a_pipe_in_the_place_of_a_record_does_not_make_the_reader_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    data, _ = read_file(str(tmp_path / "pipe")) or (None, 0)
    assert data == b""
