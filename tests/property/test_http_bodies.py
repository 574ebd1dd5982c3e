"""Any body, framed in any way, sent in any pieces: it comes out as it went in, or not as a whole one."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from contextlib import closing
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.host.http.http_errors import Ended, Malformed
from stoker.host.http.streams import CancelHandle, Framing, Wire, body
from tests.lengths import examples

CHUNKED = Framing(is_chunked=True)
bodies = st.lists(st.binary(min_size=1, max_size=300), max_size=8)


def _chunked(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def _received(sent: bytes, cuts: list[int], frame: Framing, piece_bytes: int) -> tuple[bytes, bool]:
    """Return the bytes that came out, and whether they were said to be all."""
    near, far = socket.socketpair()
    places = sorted({min(cut, len(sent)) for cut in cuts} | {0, len(sent)})

    def send() -> None:
        with contextlib.suppress(OSError), far:
            for start, end in pairwise(places):
                far.sendall(sent[start:end])

    sender = threading.Thread(target=send)
    sender.start()
    got = b""
    try:
        with closing(Wire(near, near.dup())) as wire:
            wire.begin(CancelHandle(), deadline_s=time.monotonic() + 5)
            wire.expect_body(5)
            found = body(wire, frame)
            while piece := found.read(piece_bytes):
                assert len(piece) <= piece_bytes
                got += piece
            return got, True
    except (Ended, Malformed):
        return got, False
    finally:
        sender.join()
        far.close()


@settings(max_examples=examples(24, 60), deadline=None)
@given(bodies, st.lists(st.integers(0, 2500), max_size=6), st.sampled_from([1, 7, 4096]), st.booleans())
def test_a_whole_body_comes_out_as_it_went_in(pieces, cuts, piece_bytes, is_chunked):
    whole = b"".join(pieces)
    sent, frame = (_chunked(pieces), CHUNKED) if is_chunked else (whole, Framing(length_bytes=len(whole)))
    assert _received(sent, cuts, frame, piece_bytes) == (whole, True)


@settings(max_examples=examples(24, 60), deadline=None)
@given(bodies.filter(bool), st.data(), st.sampled_from([7, 4096]), st.booleans())
def test_a_cut_body_gives_a_beginning_of_it_and_is_never_said_to_be_all(pieces, data, piece_bytes, is_chunked):
    whole = b"".join(pieces)
    sent, frame = (_chunked(pieces), CHUNKED) if is_chunked else (whole, Framing(length_bytes=len(whole)))
    size = data.draw(st.integers(0, len(sent) - 1))
    got, is_all = _received(sent[:size], [], frame, piece_bytes)
    assert not is_all
    assert whole.startswith(got)


@settings(max_examples=examples(24, 60), deadline=None)
@given(st.binary(max_size=200))
def test_rubbish_instead_of_chunks_always_comes_to_an_end(rubbish):
    _received(rubbish, [], CHUNKED, 4096)
