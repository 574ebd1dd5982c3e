"""Bad habits of servers, each under a name: what tests and the table of peers are made of.

A habit is a function from what was asked and the version served to an answer; some are made by a function that takes
their particulars. `at_first`, `to_resumes` and `to_heads` say when a bad habit shows.
"""

from __future__ import annotations

import gzip
import threading
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace

from tests.servers.faulty import Act, Answer, Asked, Habit, Line, Version, well

# --- when a habit shows


def at_first(count: int, bad: Habit, then: Habit = well) -> Habit:
    """Show it on the first so many requests of each method."""
    return lambda asked, version: (bad if asked.number < count else then)(asked, version)


def after(count: int, bad: Habit, before: Habit = well) -> Habit:
    """Show it from the request after so many of each method."""
    return at_first(count, before, bad)


def to_resumes(bad: Habit, otherwise: Habit = well) -> Habit:
    """Show it where the rest of a file is asked for."""
    return lambda asked, version: (bad if asked.method == "GET" and asked.first_byte else otherwise)(asked, version)


def to_gets(bad: Habit) -> Habit:
    return lambda asked, version: (bad if asked.method == "GET" else well)(asked, version)


def to_heads(bad: Habit) -> Habit:
    return lambda asked, version: (bad if asked.method == "HEAD" else well)(asked, version)


def serving(version: Version) -> Habit:
    """Serve another version than the one that is there."""
    return lambda asked, _: version.answer(asked)


# --- ranges


def ignores_ranges(asked: Asked, version: Version) -> Answer:
    return version.answer(asked.without("Range", "If-Range"))


def shifted(by_bytes: int, *, as_long: bool = False, claims_as_asked: bool = False) -> Habit:
    """Begin a range elsewhere; `as_long`: with the length that was asked for, so that it ends elsewhere as well."""

    def answer(asked: Asked, version: Version) -> Answer:
        size, first = len(version.data), asked.first_byte + by_bytes
        last = min(size, first + size - asked.first_byte) - 1 if as_long else size - 1
        claimed = f"bytes {asked.first_byte}-{size - 1}/{size}" if claims_as_asked else f"bytes {first}-{last}/{size}"
        body = version.data[first : last + 1]
        right = version.answer(asked)
        right.body = (body,)
        return right.set("Content-Range", claimed).set("Content-Length", str(len(body)))

    return answer


def content_range(value: str | None, *, whole_body: bool = False) -> Habit:
    """Answer a range with this `Content-Range` (`{first}`, `{last}` and `{size}` are filled in), or with none."""

    def answer(asked: Asked, version: Version) -> Answer:
        right = version.answer(asked.without("If-Range"))
        size = len(version.data)
        values = () if value is None else (value.format(first=asked.first_byte, last=size - 1, size=size),)
        right.set("Content-Range", *values)
        if whole_body:
            right.body = (version.data,)
            right.set("Content-Length", str(size))
        return right

    return answer


def resized(by_bytes: int) -> Habit:
    """Send fewer or more bytes than `Content-Range` announces, with a `Content-Length` of what is sent."""

    def answer(asked: Asked, version: Version) -> Answer:
        right = version.answer(asked)
        if right.get("Content-Range") is None:
            # The whole of a file that has changed: nothing but a digest could show that it is longer than it should be.
            return right
        body = right.data
        right.body = (body + b"+" * by_bytes if by_bytes > 0 else body[:by_bytes],)
        return right.set("Content-Length", str(len(right.data)))

    return answer


def multipart(asked: Asked, version: Version) -> Answer:
    right = version.answer(asked)
    part = f"--cut\r\nContent-Type: model/x\r\nContent-Range: {right.get('Content-Range')}\r\n\r\n".encode()
    right.body = (part + right.data + b"\r\n--cut--\r\n",)
    right.set("Content-Type", "multipart/byteranges; boundary=cut").set("Content-Range")
    return right.set("Content-Length", str(len(right.data)))


def partial_unasked(asked: Asked, version: Version) -> Answer:
    """Answer with a part although the whole was asked for."""
    half = len(version.data) // 2
    return version.answer(asked.without("If-Range").having("Range", f"bytes=0-{half - 1}"))


def refusing_range(*, tells_size: bool = True, size: int | None = None) -> Habit:
    """Answer 416."""

    def answer(asked: Asked, version: Version) -> Answer:
        total = len(version.data) if size is None else size
        fields = [("Content-Range", f"bytes */{total}")] if tells_size else []
        return Answer(status=416, fields=[*fields, ("Content-Length", "0")])

    return answer


# --- fields


def with_fields(habit: Habit = well, **values: str | tuple[str, ...] | None) -> Habit:
    """Set fields of an answer; None removes one, a tuple repeats it. `content_length` means `Content-Length`."""

    def answer(asked: Asked, version: Version) -> Answer:
        right = habit(asked, version)
        for name, value in values.items():
            given = () if value is None else (value,) if isinstance(value, str) else value
            right.set("-".join(part.capitalize() for part in name.split("_")), *given)
        return right

    return answer


def raw_head(change: Callable[[bytes], bytes], habit: Habit = well) -> Habit:
    """Change the head of an answer as bytes."""

    def answer(asked: Asked, version: Version) -> Answer:
        right = habit(asked, version)
        right.raw_head = change(right.head())
        return right

    return answer


# --- bodies


def cut(at: int, end: Act = Line.close, habit: Habit = well) -> Habit:
    """End the connection after so many bytes of the body (from its end, where negative)."""

    def answer(asked: Asked, version: Version) -> Answer:
        right = habit(asked, version)
        right.body = (right.data[:at], end)
        return right

    return answer


def breaking_off(at: int) -> Habit:
    """Send so many bytes of the body, and never one again."""
    return at_first(1, cut(at), before_head(Line.close))


def stalling(at: int, reached: threading.Event | None = None, habit: Habit = well) -> Habit:
    """Return nothing more after so many bytes of the body, and tell when all of them were received."""

    def wait(line: Line) -> None:
        line.drain()
        if reached is not None:
            reached.set()
        line.stall()

    return cut(at, wait, habit)


def chunked(sizes: Iterable[int] = (65536,), *, trailer: str = "", is_cut: bool = False, habit: Habit = well) -> Habit:
    """Send a body in chunks, the last size again and again; `is_cut`: without the chunk that ends it."""

    def answer(asked: Asked, version: Version) -> Answer:
        right = habit(asked, version).set("Content-Length").set("Transfer-Encoding", "chunked")
        pieces, data, known = [], right.data, list(sizes)
        if is_cut:
            data = data[: len(data) // 2]
        while data:
            size = known.pop(0) if len(known) > 1 else known[0]
            pieces.append(b"%x\r\n%s\r\n" % (len(data[:size]), data[:size]))
            data = data[size:]
        end = b"" if is_cut else b"0\r\n" + (f"{trailer}\r\n".encode() if trailer else b"") + b"\r\n"
        right.body = (b"".join(pieces) + end,)
        right.is_last = is_cut
        return right

    return answer


def unannounced(at: int | None = None) -> Habit:
    """Send a body without its length, ended by closing, perhaps too early."""

    def answer(asked: Asked, version: Version) -> Answer:
        right = version.answer(asked).set("Content-Length")
        right.body = (right.data[:at],)
        right.is_last = True
        return right

    return answer


def encoded(coding: str) -> Habit:
    """Compress a body although nobody asked for it."""

    def answer(asked: Asked, version: Version) -> Answer:
        right = version.answer(asked)
        squeezed = gzip.compress(right.data, 1) if coding == "gzip" else zlib.compress(right.data, 1)
        right.body = (squeezed,)
        return right.set("Content-Encoding", coding).set("Content-Length", str(len(squeezed)))

    return answer


def flipped(at: int) -> Habit:
    """Flip one bit of the file on its way."""

    def answer(asked: Asked, version: Version) -> Answer:
        data = bytearray(version.data)
        data[at] ^= 1
        return replace(version, data=bytes(data)).answer(asked)

    return answer


def page(text: bytes, status: int = 200, **fields: str) -> Habit:
    """Answer everything with a page that has nothing to do with the file."""

    def answer(asked: Asked, version: Version) -> Answer:
        named = [(name.replace("_", "-"), value) for name, value in fields.items()]
        head = [("Content-Type", "text/html"), ("Content-Length", str(len(text)))]
        return Answer(status=status, fields=[*head, *named], body=(text,))

    return answer


# --- connections


def before_head(*acts: bytes | Act) -> Habit:
    """Do this instead of sending a head; what it was to be is forgotten."""
    return lambda asked, version: Answer(raw_head=b"", body=acts, sends_body_of_head=True, is_last=True)


def in_pieces(size: int, between: Callable[[], object], habit: Habit = well, start: int = 0) -> Habit:
    """Send a body piece by piece from one byte on, and do something before each."""

    def answer(asked: Asked, version: Version) -> Answer:
        right = habit(asked, version)
        data = right.data

        def pieces() -> Iterable[bytes | Act]:
            yield data[:start]
            for at in range(start, len(data), size):
                between()
                yield data[at : at + size]

        right.body = pieces()
        return right

    return answer


# --- statuses


def status(code: int, **fields: str) -> Habit:
    """Answer with a status and nothing else."""
    return page(b"", code, **fields)


def redirected(location: str, code: int = 302) -> Habit:
    return lambda asked, version: Answer(status=code, fields=[("Location", location), ("Content-Length", "0")])
