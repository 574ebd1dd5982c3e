from __future__ import annotations

import hashlib
import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.transfer.download.content import BodyHash, SumsBuilder, sum_file

DATA = random.Random(4).randbytes(5_000_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
GIT_SHA1 = hashlib.sha1(b"blob %d\0" % len(DATA) + DATA).hexdigest()


@pytest.fixture
def file(tmp_path):
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


def _feed(body, file, start, size=700_000):
    for at in range(start, len(DATA), size):
        piece = DATA[at : at + size]
        os.pwrite(file, piece, at)
        body.wrote(piece)


def test_a_body_is_hashed_while_it_is_written(file):
    body = BodyHash(file, git_size_bytes=len(DATA))
    _feed(body, file, 0)
    sums = body.finish()
    assert (sums.sha256, sums.git_sha1) == (SHA256, GIT_SHA1)
    assert body.hashed_bytes == len(DATA)


@pytest.mark.parametrize("prefix", [1, 1 << 20, 3_000_001, len(DATA)])
def test_what_was_there_before_is_read_back_first(file, prefix):
    os.pwrite(file, DATA[:prefix], 0)
    body = BodyHash(file, prefix_bytes=prefix)
    _feed(body, file, prefix)
    sums = body.finish()
    assert (sums.sha256, sums.git_sha1) == (SHA256, "")


def test_an_empty_body_has_a_digest_too(file):
    assert BodyHash(file).finish().sha256 == hashlib.sha256(b"").hexdigest()


def test_a_file_that_is_shorter_than_it_was_is_an_error(file):
    os.pwrite(file, DATA[:1000], 0)
    body = BodyHash(file, prefix_bytes=2000)
    with pytest.raises(OSError, match="ends at byte 1000"):
        body.finish()
    with pytest.raises(OSError, match="ends at byte 1000"):
        body.wrote(b"more")
    body.close()


def test_closing_ends_it_at_any_time(file):
    os.pwrite(file, DATA, 0)
    following = BodyHash(file, prefix_bytes=len(DATA))
    following.close()
    queueing = BodyHash(file)
    _feed(queueing, file, 0)
    queueing.close()
    queueing.close()
    assert not queueing._thread.is_alive()
    assert not following._thread.is_alive()


def test_a_file_is_summed_as_its_bytes_are(file):
    os.pwrite(file, DATA, 0)
    assert sum_file(file, len(DATA), with_git=True).git_sha1 == GIT_SHA1
    sums = sum_file(file, len(DATA), with_git=False)
    assert (sums.sha256, sums.git_sha1) == (SHA256, "")


@given(st.lists(st.binary(max_size=50), max_size=20))
def test_pieces_make_the_digest_of_the_whole(pieces):
    whole = b"".join(pieces)
    summing = SumsBuilder(len(whole))
    for piece in pieces:
        summing.add(piece)
    assert summing.sums().sha256 == hashlib.sha256(whole).hexdigest()
    assert summing.sums().git_sha1 == hashlib.sha1(b"blob %d\0" % len(whole) + whole).hexdigest()
