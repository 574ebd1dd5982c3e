"""A web server on raw sockets that answers as badly as it is told to, and remembers what it was asked.

What it serves is a `Version` of a file per path; how it answers is one `Habit`: a function from what was asked, and the
version that is served there, to the `Answer` that goes out, byte for byte. `well` is the good habit, everything in
`habits.py` a bad one. `become` changes the habit between two runs and starts the record of requests anew.

Standard library only: benchmarks start it beside programs that know nothing of Stoker.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import select
import socket
import ssl
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

REASONS = {200: "OK", 206: "Partial Content", 304: "Not Modified", 404: "Not Found", 416: "Range Not Satisfiable"}
_LONGEST_REQUEST = 1 << 20
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request as it came."""

    method: str
    target: str
    fields: tuple[tuple[str, str], ...]
    number: int = 0
    """How many requests with this method and path came before it, since the server has its habit."""
    connection: int = 0
    """Which connection it came on, from 0."""

    @property
    def path(self) -> str:
        """What is asked for, without the query and, where we are asked as a proxy, without the server."""
        return re.sub(r"\Ahttps?://[^/]*", "", self.target).split("?")[0]

    @property
    def first_byte(self) -> int:
        """Where the range begins that was asked for; 0 without one."""
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.field("Range") or "")
        return int(found[1]) if found else 0

    @property
    def is_ranged(self) -> bool:
        return self.field("Range") is not None

    def field(self, name: str) -> str | None:
        return next((value for key, value in self.fields if key.lower() == name.lower()), None)

    def without(self, *names: str) -> Asked:
        """The same request, had these fields not been in it."""
        gone = {name.lower() for name in names}
        return replace(self, fields=tuple((key, value) for key, value in self.fields if key.lower() not in gone))

    def having(self, name: str, value: str) -> Asked:
        """The same request with another value of one field."""
        return replace(self, fields=(*self.without(name).fields, (name, value)))


Act = Callable[["Line"], None]
"""What is done with a connection besides sending bytes."""


@dataclass(slots=True, kw_only=True)
class Answer:
    """What goes out: a head made of its parts (or raw), then a body of bytes and acts."""

    status: int = 200
    fields: list[tuple[str, str]] = field(default_factory=list)
    body: Iterable[bytes | Act] = ()
    reason: str | None = None
    protocol: str = "HTTP/1.1"
    raw_head: bytes | None = None
    sends_body_of_head: bool = False
    is_last: bool = False
    """Whether the connection is closed after it."""

    @property
    def data(self) -> bytes:
        """All bytes of the body."""
        return b"".join(piece for piece in self.body if isinstance(piece, bytes))

    def get(self, name: str) -> str | None:
        return next((value for key, value in self.fields if key.lower() == name.lower()), None)

    def set(self, name: str, *values: str) -> Self:
        """Return a field these values in place of those it has; none removes it."""
        self.fields = [(key, old) for key, old in self.fields if key.lower() != name.lower()]
        self.fields += [(name, value) for value in values]
        return self

    def head(self) -> bytes:
        if self.raw_head is not None:
            return self.raw_head
        reason = self.reason if self.reason is not None else REASONS.get(self.status, "So")
        lines = [f"{self.protocol} {self.status} {reason}", *(f"{name}: {value}" for name, value in self.fields)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of a file, and the answers of a good server that has it."""

    data: bytes
    etag: str | None = '"one"'
    last_modified: str | None = "Wed, 01 Jan 2025 00:00:00 GMT"
    date: str | None = "Thu, 01 Jan 2026 00:00:00 GMT"
    """What its clock says."""
    extra: tuple[tuple[str, str], ...] = ()
    """Fields that every answer has."""

    def answer(self, asked: Asked) -> Answer:
        if asked.method not in ("GET", "HEAD"):
            return Answer(status=405, fields=[("Content-Length", "0")])
        validators = [("Date", self.date), ("ETag", self.etag), ("Last-Modified", self.last_modified)]
        named = [(name, value) for name, value in validators if value is not None]
        fields = [("Accept-Ranges", "bytes"), *named, *self.extra]
        if self._is_known(asked):
            return Answer(status=304, fields=fields)
        size = len(self.data)
        span = self._span(asked)
        if span is None:
            return Answer(fields=[*fields, ("Content-Length", str(size))], body=(self.data,))
        first, last = span
        if first >= size or last < first:
            refused = [("Content-Range", f"bytes */{size}"), ("Content-Length", "0")]
            return Answer(status=416, fields=[*fields, *refused])
        ranged = [("Content-Range", f"bytes {first}-{last}/{size}"), ("Content-Length", str(last - first + 1))]
        return Answer(status=206, fields=[*fields, *ranged], body=(self.data[first : last + 1],))

    def _is_known(self, asked: Asked) -> bool:
        etags = asked.field("If-None-Match")
        if etags is not None:
            return self.etag is not None and self.etag in etags
        since = asked.field("If-Modified-Since")
        return since is not None and since == self.last_modified

    def _span(self, asked: Asked) -> tuple[int, int] | None:
        """Return the range to answer with, if any: `If-Range` must name this version, by its strong validator."""
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", asked.field("Range") or "")
        unless = asked.field("If-Range")
        strong = self.etag if self.etag is not None and not self.etag.startswith("W/") else None
        if not found or (unless is not None and unless not in (strong, self.last_modified)):
            return None
        end = len(self.data) - 1
        return int(found[1]), min(int(found[2]), end) if found[2] else end


Habit = Callable[[Asked, Version], Answer]


def well(asked: Asked, version: Version) -> Answer:
    """Answer as a good server does."""
    return version.answer(asked)


class Line:
    """One accepted connection."""

    def __init__(self, link: socket.socket, number: int) -> None:
        self.link = link
        self.number = number
        self.is_open = True
        self._unread = b""

    def send(self, data: bytes) -> None:
        self.link.sendall(data)

    def read_head(self) -> bytes:
        """Return the next request up to its empty line; nothing at the end."""
        while b"\r\n\r\n" not in self._unread:
            more = self.link.recv(65536)
            if not more or len(self._unread) > _LONGEST_REQUEST:
                return b""
            self._unread += more
            if not self._unread[:1].isalpha():
                self.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                return b""
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        return head

    def close(self) -> None:
        """End the connection in order, everything sent before it."""
        self.is_open = False
        with contextlib.suppress(OSError):
            if isinstance(self.link, ssl.SSLSocket):
                self.link.setblocking(True)
                self.link.unwrap()
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)
        self.link.close()

    def drop(self) -> None:
        """End the connection without a word of TLS."""
        self.is_open = False
        with contextlib.suppress(OSError):
            self.link.shutdown(socket.SHUT_RDWR)
        self.link.close()

    def reset(self) -> None:
        """End the connection with a reset, once the other side has everything that was sent."""
        self.drain()
        with contextlib.suppress(OSError):
            self.link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.is_open = False
        self.link.close()

    def drain(self) -> None:
        """Wait until everything that was sent has arrived at the other computer, or the connection is gone."""
        gone = select.poll()
        gone.register(self.link, 0)
        deadline_s = time.monotonic() + _PATIENCE_S
        with contextlib.suppress(OSError):
            while struct.unpack("i", fcntl.ioctl(self.link, termios.TIOCOUTQ, b"\0\0\0\0"))[0]:
                if gone.poll(0) or time.monotonic() > deadline_s:
                    break
                time.sleep(0.0002)

    def stall(self) -> None:
        """Say nothing more until the other side, or the server, ends the connection."""
        with contextlib.suppress(OSError):
            while self.link.recv(65536):
                pass
        self.drop()


class FaultyServer:
    """Listens from the moment it is made until it is closed; `with` closes it."""

    def __init__(
        self,
        version: Version | None = None,
        habit: Habit = well,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((host, port))
        self._listener.listen(128)
        self._tls = tls
        self._lock = threading.Lock()
        self._lines: list[Line] = []
        self._threads: list[threading.Thread] = []
        self._is_closing = False
        self._habit = habit
        self.host = host
        self.port: int = self._listener.getsockname()[1]
        self.versions: dict[str, Version] = {} if version is None else {"/file": version}
        self.asked: list[Asked] = []
        self.mishaps: list[BaseException] = []
        """What a habit raised: a bug of the test, to be looked at when it is over."""
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def origin(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.origin}/file"

    @property
    def connections(self) -> int:
        """How many connections were ever made."""
        return len(self._lines)

    def become(self, habit: Habit, version: Version | None = None) -> None:
        """Answer in another way from now on, perhaps with another version; what was asked before is forgotten."""
        with self._lock:
            self._habit = habit
            self.asked = []
            if version is not None:
                self.versions["/file"] = version

    def gets(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == "GET"]

    def hang_up(self) -> None:
        """Cut every connection that is open."""
        with self._lock:
            lines = list(self._lines)
        for line in lines:
            with contextlib.suppress(OSError):
                line.link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join()
        self.hang_up()
        for thread in self._threads:
            thread.join(_PATIENCE_S)
        assert not any(thread.is_alive() for thread in self._threads), "a connection does not end"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        if kind is None and self.mishaps:
            raise self.mishaps[0]

    def _accept(self) -> None:
        while not self._is_closing:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                line = Line(link, len(self._lines))
                self._lines.append(line)
            thread = threading.Thread(target=self._converse, args=(line,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _converse(self, line: Line) -> None:
        try:
            if self._tls is not None:
                line.link = self._tls.wrap_socket(line.link, server_side=True)
            while line.is_open and (head := line.read_head()):
                self._answer(line, *self._record(head, line.number))
        except (OSError, ssl.SSLError):
            pass
        except BaseException as error:  # noqa: BLE001 - told to the test that owns the habit
            self.mishaps.append(error)
        finally:
            line.drop()

    def _record(self, head: bytes, connection: int) -> tuple[Asked, Habit]:
        first, *rest = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        fields = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in rest))
        with self._lock:
            asked = Asked(method=method, target=target, fields=fields, connection=connection)
            number = sum((earlier.method, earlier.path) == (method, asked.path) for earlier in self.asked)
            asked = replace(asked, number=number)
            self.asked.append(asked)
            return asked, self._habit

    def _answer(self, line: Line, asked: Asked, habit: Habit) -> None:
        version = self.versions.get(asked.path)
        missing = Answer(status=404, fields=[("Content-Length", "0")])
        answer = habit(asked, version) if version is not None else missing
        line.send(answer.head())
        if asked.method != "HEAD" or answer.sends_body_of_head:
            for piece in answer.body:
                if isinstance(piece, bytes):
                    line.send(piece)
                else:
                    piece(line)
                if not line.is_open:
                    return
        if answer.is_last or answer.protocol == "HTTP/1.0":
            line.close()
