"""Where a body ends: decided from the head, and kept to while it is read."""

from __future__ import annotations

import socket
import time
from contextlib import closing

import pytest

from stoker.host.http.exchange import Headers
from stoker.host.http.http_errors import Ended, Malformed, Overlong
from stoker.host.http.streams import CancelHandle, Framing, Wire, body, framing

CHUNKED = Framing(is_chunked=True)


def _framing(*fields: tuple[str, str], method: str = "GET", status: int = 200) -> Framing:
    return framing(method, status, Headers(fields))


def _read(sent: bytes, frame: Framing, piece_bytes: int = 1 << 20) -> bytes:
    """Read a body that is all there, its connection closed behind it."""
    near, far = socket.socketpair()
    with closing(Wire(near, near.dup())) as wire, far:
        far.sendall(sent)
        far.close()
        wire.begin(CancelHandle(), deadline_s=time.monotonic() + 5)
        wire.expect_body(5)
        found = body(wire, frame)
        got = b"".join(iter(lambda: found.read(piece_bytes), b""))
        assert found.left_bytes == 0
        return got


def test_a_length_frames_a_body():
    assert _framing(("Content-Length", "12")) == Framing(length_bytes=12)
    assert _framing(("content-length", "12"), ("CONTENT-LENGTH", "012, 12")) == Framing(length_bytes=12)


def test_without_a_word_about_it_a_body_ends_with_the_connection():
    assert _framing() == Framing()
    assert _framing(("Transfer-Encoding", "identity")) == Framing()


def test_chunks_frame_a_body():
    assert _framing(("Transfer-Encoding", "Chunked")) == CHUNKED


@pytest.mark.parametrize("fields", [(("Content-Length", "9"),), (("Transfer-Encoding", "chunked"),), ()])
@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("HEAD", 404), ("GET", 204), ("GET", 304)])
def test_some_answers_never_have_a_body(fields, method, status):
    assert _framing(*fields, method=method, status=status) == Framing(length_bytes=0)


@pytest.mark.parametrize(
    "fields",
    [
        [("Content-Length", "-1")],
        [("Content-Length", "1.5")],
        [("Content-Length", "1_0")],
        [("Content-Length", "\u0661")],
        [("Content-Length", "")],
        [("Content-Length", " , ")],
        [("Content-Length", "1" * 19)],
        [("Content-Length", "5"), ("Content-Length", "6")],
        [("Content-Length", "5, 6")],
        [("Content-Length", "5"), ("Transfer-Encoding", "chunked")],
        [("Transfer-Encoding", "gzip, chunked")],
        [("Transfer-Encoding", "gzip")],
        [("Transfer-Encoding", "chunked, chunked")],
        [("Transfer-Encoding", "chunked"), ("Transfer-Encoding", "chunked")],
        [("Transfer-Encoding", "xchunked")],
    ],
)
def test_what_contradicts_itself_or_nobody_asked_for_is_refused(fields):
    with pytest.raises(Malformed):
        _framing(*fields)


def test_a_bad_length_is_refused_even_where_there_is_no_body():
    with pytest.raises(Malformed):
        _framing(("Content-Length", "-1"), method="HEAD")


@pytest.mark.parametrize("piece_bytes", [1, 3, 1 << 20])
@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"0\r\n\r\n", b""),
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (b"1\r\nh\r\n0004\r\nello\r\n000\r\n\r\n", b"hello"),
        (b"5;name=value;x\r\nhello\r\n0;last\r\n\r\n", b"hello"),
        (b"5 \r\nhello\r\n0\r\n\r\n", b"hello"),
        (b"A\r\n0123456789\r\n0\r\nDigest: x\r\nMore: y\r\n\r\n", b"0123456789"),
        (b"2\r\n\r\n\r\n0\r\n\r\n", b"\r\n"),
    ],
)
def test_chunks_are_put_together(sent, text, piece_bytes):
    assert _read(sent, CHUNKED, piece_bytes) == text


@pytest.mark.parametrize(
    "sent",
    [
        *(b"-5\r\nhello\r\n0\r\n\r\n", b"+5\r\nhello\r\n0\r\n\r\n", b"0x5\r\nhello\r\n0\r\n\r\n", b"\r\nhello\r\n"),
        *(
            b" 5\r\nhello\r\n0\r\n\r\n",
            b"1_0\r\nhello\r\n0\r\n\r\n",
            b"5\nhello\r\n0\r\n\r\n",
            b"g\r\n",
            b"5,5\r\nhello\r\n",
        ),
        *(
            b"f" * 16 + b"\r\nhello",
            b"5\r\nhelloXX0\r\n\r\n",
            b"4\r\nhello\r\n0\r\n\r\n",
            b"5;" + b"x" * 9000 + b"\r\nhello",
        ),
        b"0\r\n" + b"X: y\r\n" * 100 + b"\r\n",
    ],
)
def test_chunks_that_are_none_are_refused(sent):
    with pytest.raises(Malformed):
        _read(sent, CHUNKED)


@pytest.mark.parametrize("frame", [CHUNKED, Framing(length_bytes=8)], ids=["chunks", "length"])
def test_a_body_cut_at_any_byte_is_never_whole(frame):
    sent = b"3\r\nabc\r\n5;x\r\ndefgh\r\n0\r\nT: x\r\n\r\n" if frame.is_chunked else b"abcdefgh"
    assert _read(sent, frame) == b"abcdefgh"
    for size in range(len(sent)):
        with pytest.raises(Ended):
            _read(sent[:size], frame)


def test_how_much_of_a_cut_body_is_missing_is_known_where_a_length_was():
    with pytest.raises(Ended) as caught:
        _read(b"abc", Framing(length_bytes=8))
    assert caught.value.missing_bytes == 5


def test_many_small_chunks_are_given_together():
    near, far = socket.socketpair()
    with closing(Wire(near, near.dup())) as wire, far:
        far.sendall(b"".join(b"1\r\n%c\r\n" % byte for byte in b"0123456789" * 100) + b"0\r\n\r\n")
        wire.begin(CancelHandle(), deadline_s=time.monotonic() + 5)
        wire.expect_body(5)
        found = body(wire, CHUNKED)
        assert found.read(1 << 20) == b"0123456789" * 100
        assert found.read(1 << 20) == b""


def test_chunks_that_came_are_given_before_the_bad_one_is_told():
    near, far = socket.socketpair()
    with closing(Wire(near, near.dup())) as wire, far:
        far.sendall(b"5\r\nhello\r\nrubbish\r\n")
        wire.begin(CancelHandle(), deadline_s=time.monotonic() + 5)
        wire.expect_body(5)
        found = body(wire, CHUNKED)
        assert found.read(100) == b"hello"
        for _ in range(2):
            with pytest.raises(Malformed):
                found.read(100)


def test_bytes_behind_the_last_chunk_are_told_once_all_of_them_are_given():
    near, far = socket.socketpair()
    with closing(Wire(near, near.dup())) as wire, far:
        far.sendall(b"5\r\nhello\r\n0\r\n\r\nmore")
        wire.begin(CancelHandle(), deadline_s=time.monotonic() + 5)
        wire.expect_body(5)
        found = body(wire, CHUNKED)
        assert found.read(100) == b"hello"
        with pytest.raises(Overlong):
            found.read(100)
        assert found.left_bytes is None


@pytest.mark.timing
def test_a_chunk_that_came_does_not_wait_for_the_next():
    near, far = socket.socketpair()
    with closing(Wire(near, near.dup())) as wire, far:
        far.sendall(b"5\r\nhello\r\n")
        wire.begin(CancelHandle(), deadline_s=time.monotonic() + 5)
        wire.expect_body(60)
        started_s = time.monotonic()
        assert body(wire, CHUNKED).read(100) == b"hello"
        assert time.monotonic() - started_s < 5
