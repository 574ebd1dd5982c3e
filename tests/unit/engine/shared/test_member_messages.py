"""What a shared process and its members say: read whole or not at all, and never believed."""

from __future__ import annotations

import os
import struct

import pytest

from stoker.core.frozen import fields_of
from stoker.engine.runners.shared.members import (
    LONGEST_BYTES,
    Frames,
    SharedProcessExit,
    exit_from_json,
    framed,
    read_exit,
)


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_messages_arrive_as_they_were_sent_however_they_are_cut(size: int) -> None:
    bodies: list[dict[str, object]] = [{}, {"step": 1, "metrics": {"loss": 0.5}}, {"log": "ä\n$"}, {"$x": float("inf")}]
    sent = b"".join(map(framed, bodies))
    frames = Frames()
    heard = [body for at in range(0, len(sent), size) for body in frames.feed(sent[at : at + size])]
    assert heard == bodies


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack("!I", LONGEST_BYTES + 1),
        struct.pack("!I", 2) + b"[]",
        struct.pack("!I", 4) + b"nope",
        struct.pack("!I", 1) + b"\xff",
        struct.pack("!I", 100_000) + b"[" * 100_000,
    ],
    ids=["too long", "no object", "no JSON", "no text", "too deep"],
)
def test_bytes_that_are_no_message_are_refused(sent: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever is said of them
        Frames().feed(sent)


def test_what_is_longer_than_anybody_takes_is_not_sent() -> None:
    with pytest.raises(ValueError, match="the maximum is"):
        framed({"long": "x" * LONGEST_BYTES})


def test_last_words_are_read_once_they_are_whole() -> None:
    words = SharedProcessExit(how="signal 9 (SIGKILL)", number=9, was_out_of_memory=True, cap_bytes=7, said="oh")
    assert exit_from_json(fields_of(words)) == words
    descriptor = os.memfd_create("words")
    try:
        assert read_exit(descriptor) is None
        os.pwrite(descriptor, b'{"how":"exit', 0)
        assert read_exit(descriptor) is None
        os.pwrite(descriptor, b'{"how":"exit status 1"}\n', 0)
        assert read_exit(descriptor) == SharedProcessExit(how="exit status 1")
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("body", [None, 7, [], {"how": "so", "more": 1}])
def test_what_are_no_last_words_is_refused(body: object) -> None:
    with pytest.raises(ValueError, match="not the exit"):
        exit_from_json(body)
